"""Bounds what is in flight; what is not admitted is held."""

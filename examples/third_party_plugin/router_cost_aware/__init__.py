"""Prefers cheap workers."""

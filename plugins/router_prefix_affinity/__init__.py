"""Sends a request where most of its prompt is cached."""

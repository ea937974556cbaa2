"""Keeps the requests of one prompt on one worker."""

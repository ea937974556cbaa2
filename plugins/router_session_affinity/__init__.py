"""Keeps each session on one worker."""

"""Sends requests only to workers whose weights are fresh enough, and pauses dispatch."""

"""Exact tokens behind a text interface: what a rollout sent and sampled, found again by its text."""

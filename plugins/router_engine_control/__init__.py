"""Sends control verbs to every worker, aborts by rid, and asks any worker what it serves."""

"""Tries a request on another worker when it provably was not processed."""

"""Balances by the number of requests in flight."""

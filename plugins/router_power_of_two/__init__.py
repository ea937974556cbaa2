"""Balances by the better of two random workers."""

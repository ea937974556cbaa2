"""Balances by turns."""

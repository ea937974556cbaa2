"""Routed experts (R3): the expert ids a worker chose for each token, found in its answer, checked and kept whole."""

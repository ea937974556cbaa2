"""Token-in token-out capture: the exact ids a model sampled, kept and continued without tokenising them again."""

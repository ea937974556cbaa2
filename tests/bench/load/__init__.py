"""What a request costs in this router and in others, side by side: ``python -m tests.bench.load --help``."""

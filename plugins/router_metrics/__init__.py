"""Shows what the router does, as a Prometheus page."""

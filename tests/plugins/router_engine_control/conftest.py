from router_core.testing.pytest_plugin import scripted_worker, scripted_workers  # noqa: F401  # fixtures

"""What every plugin must keep to, tried over real HTTP: ``assert_plugin_conforms``."""

from router_core.testing.conformance.run import CHECKS, Report, assert_plugin_conforms

__all__ = ["CHECKS", "Report", "assert_plugin_conforms"]

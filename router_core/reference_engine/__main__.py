"""``python -m router_core.reference_engine``: the same as ``router-core engine``."""

import argparse

from router_core.reference_engine.command import add_arguments, run_engine

parser = argparse.ArgumentParser(prog="router-core engine", description="Serve a small real engine.")
add_arguments(parser)
raise SystemExit(run_engine(parser.parse_args()))

"""A small real engine: numpy computes every id, logprob and expert choice that its two wires (SGLang, vLLM) serve.

It is what ``router-core engine`` starts, what the demo runs against and what tests recompute answers from. Only the
command line and tests import it. Importing this package is cheap: numpy, the tokenizer and the server are loaded when
an engine is made.
"""

from router_core.reference_engine.command import add_arguments, run_engine, running_engine, serve
from router_core.reference_engine.options import EngineOptions

__all__ = ["EngineOptions", "add_arguments", "run_engine", "running_engine", "serve"]

"""A small real engine: numpy computes every id, logprob and expert choice that its two wires (SGLang, vLLM) serve.

It is what ``router-core engine`` starts, what the demo runs against and what tests recompute answers from. Only the
command line and tests import it. Importing this package is cheap: numpy, the tokenizer and the server are loaded when
an engine is made.

Same request, same seed, same answer, bit for bit: whatever else runs, whether or not a prompt was cached, and when a
request is aborted and sent again with the tokens it had. ``write_checkpoint`` writes the model for SGLang and vLLM,
which compute the same ids, logprobs (to four decimals) and experts.

What real servers do and this one does not: an id outside the vocabulary kills it (400 here); SGLang answers a streamed
``/generate`` with a bad value by 200 and an error event (400 here), adds ``"defer_loading": null`` to the tools it
renders, and gives all of ``n`` samples with one seed the same words (seed + number here, as vLLM does); grammars,
penalties and ``tool_choice: required`` constrain sampling (400, 400, no constraint).
"""

from router_core.reference_engine.command import add_arguments, run_engine, running_engine, serve
from router_core.reference_engine.options import EngineOptions

__all__ = ["EngineOptions", "add_arguments", "run_engine", "running_engine", "serve"]

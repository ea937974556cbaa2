"""Words that are dictated instead of sampled. Only the words: their logprobs and experts are the model's own."""

import orjson
from starlette.requests import Request

from router_core.reference_engine.errors import InvalidFieldError
from router_core.reference_engine.options import Script
from router_core.reference_engine.tokenizer import Tokenizer

SCRIPT_HEADER = "x-reference-script"
"""JSON: a list of ids that are the answer as far as they go, or a text, which is followed by the end of the turn."""


def read_script(request: Request, tokenizer: Tokenizer) -> list[int] | None:
    """Return the ids that the script header dictates, or None without it."""
    raw = request.headers.get(SCRIPT_HEADER)
    if raw is None:
        return None
    try:
        script = orjson.loads(raw)
    except orjson.JSONDecodeError:
        script = None
    if isinstance(script, str):
        return [*tokenizer.encode(script), tokenizer.eos_id]
    if not isinstance(script, list) or not all(isinstance(item, int) for item in script):
        raise InvalidFieldError(SCRIPT_HEADER, f"{SCRIPT_HEADER} must be JSON: a text or a list of ids, got {raw!r}.")
    return script


def scripted(prompt_ids: list[int], header: list[int] | None, script: Script | None) -> list[int] | None:
    """Return the words for a prompt: those of the header, else those of the engine's script, else None."""
    if header is not None or script is None:
        return header
    words = script(prompt_ids)
    return None if words is None else list(words)

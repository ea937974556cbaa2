"""The ends of a session that are no fault: clean stops in the form in which OpenAI says that a context is full.

Agents finish their run on them instead of trying again, if they know them: LiteLLM (mini-swe-agent) by the words "this
model's maximum context length is", LangChain by the code in the message, others by the field ``code``. All are there.
"""

from __future__ import annotations

from router_core import Reject

from .session_options import SessionOptions

CODE = "context_length_exceeded"


def stop(limit: str, what: str) -> Reject:
    """The refusal, ``what`` of the session being used up; ``limit`` names the key or setting that ends it."""
    as_if = f"This model's maximum context length is treated as reached ({CODE})."
    return Reject(400, CODE, f"This session's {what} are used up ({limit}). {as_if}", limit)


def check_turn(options: SessionOptions, *, turns: int, age_s: float) -> None:
    """Raise a stop if no further turn may begin."""
    if options.max_turns is not None and turns >= options.max_turns:
        raise stop("max_turns", f"{options.max_turns} turns")
    if options.max_wall_clock_s is not None and age_s >= options.max_wall_clock_s:
        raise stop("max_wall_clock_s", f"{options.max_wall_clock_s:g} seconds")


def check_prompt(options: SessionOptions, prompt_tokens: int) -> None:
    """Raise a stop if a prompt leaves no room for an answer."""
    limit = options.max_total_tokens
    if limit is not None and prompt_tokens >= limit:
        raise Reject(
            400,
            CODE,
            f"This model's maximum context length is {limit} tokens (max_total_tokens of the session)."
            f" However, your messages resulted in {prompt_tokens} tokens ({CODE}).",
            "max_total_tokens",
        )


def room(options: SessionOptions, prompt_tokens: int, worker_limit: int | None) -> int | None:
    """Most tokens that the answer may have, None where nothing of ours limits it."""
    if options.max_total_tokens is None:
        return None
    limit = options.max_total_tokens if worker_limit is None else min(options.max_total_tokens, worker_limit)
    return max(limit - prompt_tokens, 1)

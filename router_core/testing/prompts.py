"""What a request asks a scripted engine: its prompts as ids, and how much it may say."""

from typing import Any

from router_core.testing.tokens import encode, render_chat


class BadRequestError(Exception):
    """A body the engine refuses with 400."""


def read_prompts(body: dict[str, Any], path: str) -> list[list[int]]:
    """The ids of each prompt; a prompt asked for ``n`` times is there ``n`` times."""
    if path == "/v1/chat/completions":
        return [_chat_prompt(body)]
    given = body.get("prompt") if path == "/v1/completions" else body.get("input_ids", body.get("text"))
    if not given:
        raise BadRequestError("Either text, input_ids or input_embeds should be provided.")
    prompts = given if _is_list_of_prompts(given) else [given]
    if path == "/v1/completions" and len(prompts) * _copies(body) > 1:
        raise BadRequestError("a scripted engine completes one prompt at a time")
    return [
        encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts for _ in range(_copies(body))
    ]


def is_batch(body: dict[str, Any], path: str) -> bool:
    """Whether ``/generate`` answers with a list."""
    given = body.get("input_ids", body.get("text"))
    return path == "/generate" and (_is_list_of_prompts(given) or _copies(body) > 1)


def max_tokens(body: dict[str, Any]) -> int | None:
    """The most tokens the request allows, whichever way it says so."""
    sampling = body.get("sampling_params") or {}
    limits = (sampling.get("max_new_tokens"), body.get("max_completion_tokens"), body.get("max_tokens"))
    return next((int(limit) for limit in limits if limit is not None), None)


def _chat_prompt(body: dict[str, Any]) -> list[int]:
    messages = body.get("messages")
    if not messages:
        raise BadRequestError("Messages cannot be empty.")
    ids = body.get("input_ids") or (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    return list(ids) if ids else encode(render_chat(messages))


def _is_list_of_prompts(given: object) -> bool:
    return isinstance(given, list) and bool(given) and isinstance(given[0], list | str)


def _copies(body: dict[str, Any]) -> int:
    return int((body.get("sampling_params") or {}).get("n") or body.get("n") or 1)

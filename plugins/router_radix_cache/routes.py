"""``/retrieve_from_text`` and ``/radix_cache``: what the rollout used, and how much is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from router_core import Reject, read_json
from router_radix_cache.cache import Retrieved, TextCache


class CacheRoutes:
    """The routes over one cache; ``bounds`` are the settings shown with the statistics."""

    def __init__(self, cache: TextCache, bounds: Mapping[str, Any]) -> None:
        self._cache = cache
        self._bounds = bounds

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/retrieve_from_text", self.retrieve, methods=["POST"]),
            Route("/radix_cache/stats", self.stats, methods=["GET"]),
            Route("/radix_cache/clear", self.clear, methods=["POST"]),
        ]

    async def retrieve(self, request: Request) -> Response:
        """The exact tokens of a text. Raises Reject: 400 naming the key, 404 for what is unknown."""
        body = await read_json(request)
        if not isinstance(body, dict):
            raise Reject(400, "malformed_body", 'the body must be a JSON object such as {"text": "..."}', "text")
        narrow = {key: _name(body, key) for key in ("rid", "session_id", "weight_version")}
        is_strict = body.get("strict", False)
        if not isinstance(is_strict, bool):
            raise Reject(400, "bad_value", f"strict must be true or false, not {is_strict!r}", "strict")
        text, rid = body.get("text"), narrow["rid"]
        if text is None and rid is not None:
            return _answer(self._by_rid(rid))
        if not isinstance(text, str) or not text:
            raise Reject(400, "bad_value", "text must be a text that is not empty", "text")
        try:
            found = await self._cache.retrieve(text, **narrow)
        except ValueError as error:
            raise Reject(400, "bad_value", f"text cannot be encoded: {error}", "text") from error
        if is_strict and not found.is_complete:
            told = f"{found.matched_characters} of {len(text)} characters are known"
            raise Reject(404, "unknown_text", f"{told}, and strict asks for all of them", "text")
        return _answer(found)

    async def stats(self, request: Request) -> Response:
        tree, counts, encodings = self._cache.tree.stats(), self._cache.counts, self._cache.encodings
        return _json(
            {
                "trajectories": tree.trajectories,
                "sessions": tree.sessions,
                "segments": tree.segments,
                "tokens": tree.tokens,
                "bytes": tree.bytes,
                **self._bounds,
                "requests_with_text": counts.texts,
                "requests_with_ids": counts.ids,
                "reused_tokens": counts.reused_tokens,
                "encoded_tokens": encodings.encoded_tokens,
                "stored": counts.stored,
                "not_stored": dict(counts.not_stored),
                "dropped": tree.dropped,
            }
        )

    async def clear(self, request: Request) -> Response:
        """Drops everything; what a running request uses is kept."""
        cleared = self._cache.tree.clear()
        return _json({"cleared": cleared, "kept": self._cache.tree.stats().trajectories})

    def _by_rid(self, rid: str) -> Retrieved:
        found = self._cache.retrieve_by_rid(rid)
        if found is None:
            raise Reject(404, "unknown_rid", f"nothing is kept for the rid {rid!r}", "rid")
        return found


def _name(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    if key == "weight_version" and type(value) is int:
        return str(value)
    if value is not None and (not isinstance(value, str) or not value):
        raise Reject(400, "bad_value", f"{key} must be a text that is not empty, not {value!r}", key)
    return value


def _answer(found: Retrieved) -> Response:
    tokens = found.tokens
    return _json(
        {
            "tokens": tokens.ids.tolist(),
            "response": found.text,
            "loss_mask": tokens.loss_mask,
            "token_length": len(tokens),
            "loss_mask_length": len(tokens),
            "rollout_logp": tokens.all_logprobs,
            "weight_versions": tokens.weight_versions,
            "matched_characters": found.matched_characters,
            "complete": found.is_complete,
            "ambiguous": found.is_ambiguous,
        }
    )


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")

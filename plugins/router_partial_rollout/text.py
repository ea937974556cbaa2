"""Text of ids as their worker would have written it in one go: a character may be split where two segments meet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from router_core import Reject, Router, Worker
from router_partial_rollout.wire import Finish, Json, Wire

NO_CHARACTER = "\ufffd"


class Texts:
    """Decodes by the tokenizer of another plugin, else by the worker's own ``/detokenize``; neither: None."""

    def __init__(self, router: Router, *, timeout_s: float) -> None:
        self._router = router
        self._timeout_s = timeout_s

    async def decode(self, worker: Worker, ids: Sequence[int], *, skip_special: bool, model: object) -> str | None:
        if (door := await self._door()) is not None:
            tokenizer = await door.ready()
            hidden = tokenizer.special_ids if skip_special else ()
            text: str = await door.run(tokenizer.decode, [token_id for token_id in ids if token_id not in hidden])
            return text
        asked = {"tokens": list(ids), "skip_special_tokens": skip_special}
        told = await self._ask(worker, "/detokenize", asked, model)
        found = told.get("text", told.get("prompt"))
        return found if isinstance(found, str) else None

    async def encode(self, worker: Worker, text: str, *, model: object) -> list[int] | None:
        """The ids of a prompt's text: the worker's own, since they are what it generated from."""
        told = await self._ask(worker, "/tokenize", {"prompt": text}, model)
        ids = told.get("tokens")
        if isinstance(ids, list):
            return ids
        if (door := await self._door()) is None:
            return None
        tokenizer = await door.ready()
        encoded: list[int] = (await door.run(_encode, tokenizer, text))[0]
        return encoded

    async def _door(self) -> Any:
        door = self._router.find_tokenizer(None)
        if door is not None:
            try:
                await door.ready()
            except Reject:
                return None
        return door

    async def _ask(self, worker: Worker, path: str, body: Json, model: object) -> Json:
        named = body if model is None else {"model": model, **body}
        answer = await self._router.control.call(
            worker,
            "POST",
            path,
            timeout_s=self._timeout_s,
            body=json.dumps(named).encode(),
            headers={"content-type": "application/json"},
        )
        told = answer.json() if answer.is_ok else None
        return told if isinstance(told, dict) else {}


def _encode(tokenizer: Any, text: str) -> Any:
    return tokenizer.encode_with_ends([text], add_special_tokens=True)[0]


def ids_of_text(wire: Wire, body: Json, ids: Sequence[int], finish: Finish) -> Sequence[int]:
    """The ids that are shown as text: not the one that ended it."""
    is_id = isinstance(finish.matched, int) or (finish.matched is None and finish.kind == "stop")
    return ids[:-1] if is_id and not wire.keeps_stop(body) else ids


def without_stop(wire: Wire, body: Json, text: str, finish: Finish) -> str:
    """The text up to the stop text that ended it."""
    if not isinstance(finish.matched, str) or (at := text.find(finish.matched)) < 0:
        return text
    return text[: at + (len(finish.matched) if wire.keeps_stop(body) else 0)]


def split_stops(text: str, stops: Sequence[str]) -> list[str]:
    """What would complete a stop text whose beginning the text ends with: a worker that goes on must look for it.

    >>> split_stops("so </ans", ["</answer>"])
    ['wer>']
    """
    rests = [stop[at:] for stop in stops for at in range(1, len(stop)) if text.endswith(stop[:at])]
    return [rest for rest in dict.fromkeys(rests) if rest not in stops]


def settled(text: str, stops: Sequence[str]) -> str:
    """The text without what may yet become another: a part of a character, or the beginning of a stop text."""
    text = text.rstrip(NO_CHARACTER)
    held = max((at for stop in stops for at in range(1, len(stop)) if text.endswith(stop[:at])), default=0)
    return text[: len(text) - held].rstrip(NO_CHARACTER) if held else text


def is_same_text(decoded: str, parts: str) -> bool:
    """Whether a decoded text is the workers' own texts in a row, but for characters that were split between two.

    It is not where the decoder shows what workers hide, such as control tokens. What was split is no ASCII, and a space
    at the beginning of a text may have been dropped.
    """
    more, less = Counter(decoded), Counter(parts)
    more.subtract(less)
    return all(
        count <= 0 if character.isascii() and character != " " else True for character, count in more.items()
    ) and all(count >= 0 or character == NO_CHARACTER for character, count in more.items())

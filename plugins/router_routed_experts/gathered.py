"""What an answer or the events of a stream say beside their routed experts: which choices, and how many tokens."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router_routed_experts.asking import packed_ids
from router_routed_experts.places import Place, places_of


@dataclass(slots=True)
class Choice:
    """One choice as far as it is known."""

    rid: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    output_ids: array[int] | None = None
    is_aborted: bool = False
    place: Place | None = None

    @property
    def counted(self) -> int | None:
        """Its output tokens: as they were counted, else the ids that came."""
        if self.output_tokens is None and self.output_ids is not None:
            return len(self.output_ids)
        return self.output_tokens


@dataclass(slots=True)
class Gathered:
    """Takes in whole answers (``absorb``) or one event of a stream after the other."""

    id: str | None = None
    choices: dict[int, Choice] = field(default_factory=dict)
    _usage: Mapping[str, Any] = field(default_factory=dict)

    def absorb(self, answer: object, *, has_places: bool = True) -> None:
        """Take in one parsed JSON; what is no answer says nothing. ``has_places``: routed experts may be in it."""
        for number, part in enumerate(answer if isinstance(answer, list) else [answer]):
            if isinstance(part, dict):
                self._take(part, number)
        for place in places_of(answer) if has_places else ():
            choice = self._choice(place.choice)
            if place.value_index is not None or choice.place is None:
                choice.place = place

    def settle(self) -> None:
        """All is taken in: what the answer counts as a whole is that of its choice if there is only one."""
        for choice in self.choices.values():
            if choice.prompt_tokens is None:
                choice.prompt_tokens = _count(self._usage, "prompt_tokens")
            if choice.counted is None and len(self.choices) == 1:
                choice.output_tokens = _count(self._usage, "completion_tokens")

    def _take(self, part: Mapping[str, Any], number: int) -> None:
        if isinstance(part.get("id"), str) or isinstance(part.get("request_id"), str):
            self.id = self.id or part.get("id") or part.get("request_id")
        if isinstance(usage := part.get("usage"), dict):
            self._usage = usage
        if isinstance(meta := part.get("meta_info"), dict):
            index = part.get("index")
            choice = self._choice(index if type(index) is int else number)
            choice.output_ids = packed_ids(part.get("output_ids"))
            _take_meta(choice, meta)
        if isinstance(told := part.get("choices"), list):
            prompt_ids = packed_ids(part.get("prompt_token_ids"))
            for place, item in enumerate(told):
                if isinstance(item, dict):
                    index = item.get("index")
                    self._take_choice(self._choice(index if type(index) is int else place), item, prompt_ids)
        if isinstance(sglext := part.get("sglext"), dict):
            self._take_sglext(sglext)

    def _take_choice(self, choice: Choice, item: Mapping[str, Any], prompt_ids: array[int] | None) -> None:
        own = packed_ids(item.get("prompt_token_ids")) or prompt_ids
        if own is not None:
            choice.prompt_tokens = len(own)
        ids = packed_ids(item.get("token_ids")) or packed_ids(item.get("response_token_ids"))
        if ids is not None:
            choice.output_ids = ids if choice.output_ids is None else choice.output_ids + ids
        if item.get("finish_reason") == "abort":
            choice.is_aborted = True
        if isinstance(item.get("meta_info"), dict):
            _take_meta(choice, item["meta_info"])

    def _take_sglext(self, sglext: Mapping[str, Any]) -> None:
        prompt_ids, outputs = packed_ids(sglext.get("input_ids")), sglext.get("output_ids")
        for index, ids in enumerate(outputs if isinstance(outputs, list) else []):
            choice = self._choice(index)
            choice.output_ids = packed_ids(ids) or array("i")
        if prompt_ids is not None:
            for choice in self.choices.values():
                choice.prompt_tokens = len(prompt_ids)

    def _choice(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())


def _take_meta(choice: Choice, meta: Mapping[str, Any]) -> None:
    reason = meta.get("finish_reason")
    if (reason.get("type") if isinstance(reason, dict) else reason) == "abort":
        choice.is_aborted = True
    rid = meta.get("id")
    choice.rid = rid if isinstance(rid, str) else None
    choice.prompt_tokens = _count(meta, "prompt_tokens")
    choice.output_tokens = _count(meta, "completion_tokens")


def _count(told: Mapping[str, Any], key: str) -> int | None:
    value = told.get(key)
    return value if type(value) is int and value >= 0 else None

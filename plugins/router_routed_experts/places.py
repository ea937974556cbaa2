"""Where an answer keeps routed experts, once they are cut out and the rest is parsed.

SGLang: ``meta_info.routed_experts`` on /generate (a list of answers with ``n`` or a batch), ``choices[].meta_info``
with ``return_meta_info``, else ``sglext`` on chat. vLLM: ``choices[].routed_experts``. Anywhere else the key means
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FIELD = "routed_experts"


@dataclass(frozen=True, slots=True)
class Place:
    """The field for one choice: ``value_index`` tells which cut-out value stood there, None when it was null.

    ``dtype`` is what a field ``routed_experts_dtype`` beside it says.
    """

    choice: int
    path: str
    value_index: int | None
    dtype: str | None


def places_of(answer: object) -> list[Place]:
    """The places of one parsed answer or stream event, in the order of choices; a place without the field is left
    out."""
    if isinstance(answer, list):
        return [place for number, part in enumerate(answer) for place in _generated(part, number, f"[{number}].")]
    if not isinstance(answer, dict):
        return []
    places = _generated(answer, 0, "")
    choices = answer.get("choices")
    for number, choice in enumerate(choices if isinstance(choices, list) else []):
        if isinstance(choice, dict):
            index = _index_of(choice, number)
            places += _at(choice, index, f"choices[{number}]")
            places += _at(choice.get("meta_info"), index, f"choices[{number}].meta_info")
    return places + _at(answer.get("sglext"), 0, "sglext")


def _generated(answer: object, number: int, prefix: str) -> list[Place]:
    if not isinstance(answer, dict):
        return []
    return _at(answer.get("meta_info"), _index_of(answer, number), f"{prefix}meta_info")


def _index_of(part: Mapping[str, object], number: int) -> int:
    index = part.get("index")
    return index if isinstance(index, int) else number


def _at(holder: object, choice: int, path: str) -> list[Place]:
    if not isinstance(holder, dict) or FIELD not in holder:
        return []
    placeholder = holder[FIELD]
    dtype = holder.get(f"{FIELD}_dtype")
    index = int(placeholder) if isinstance(placeholder, str) and placeholder.isdecimal() else None
    return [Place(choice, f"{path}.{FIELD}", index, dtype if isinstance(dtype, str) else None)]

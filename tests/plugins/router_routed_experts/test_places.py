from __future__ import annotations

import orjson
from router_routed_experts.places import places_of

from router_core import ValueScanner

from .answers import dumped, generate_answer


def places_in(answer: object) -> list[tuple[int, str, int | None]]:
    scanner = ValueScanner(b"routed_experts")
    scanner.feed(dumped(answer))
    return [(place.choice, place.path, place.value_index) for place in places_of(orjson.loads(scanner.rest_bytes()))]


def test_each_place_of_the_two_dialects_is_found() -> None:
    assert places_in(generate_answer("AA")) == [(0, "meta_info.routed_experts", 0)]
    assert places_in([generate_answer("AA"), generate_answer("BB")]) == [
        (0, "[0].meta_info.routed_experts", 0),
        (1, "[1].meta_info.routed_experts", 1),
    ]
    assert places_in({"choices": [{"index": 0, "routed_experts": "AA"}, {"index": 1, "routed_experts": None}]}) == [
        (0, "choices[0].routed_experts", 0),
        (1, "choices[1].routed_experts", None),
    ]
    assert places_in({"choices": [{"meta_info": {"routed_experts": {"data": "AA"}}}]}) == [
        (0, "choices[0].meta_info.routed_experts", 0)
    ]
    assert places_in({"choices": [], "sglext": {"routed_experts": "AA"}}) == [(0, "sglext.routed_experts", 0)]


def test_the_key_anywhere_else_means_nothing() -> None:
    assert (
        places_in({"routed_experts": "AA", "usage": {"routed_experts": "BB"}, "meta_info": "x", "choices": [None]})
        == []
    )
    assert places_in("text") == places_in([1, None]) == places_in({"choices": {}}) == []


def test_the_choice_is_told_by_its_index() -> None:
    assert places_in({"choices": [{"index": 3, "routed_experts": "AA"}]}) == [(3, "choices[0].routed_experts", 0)]
    assert places_in({**generate_answer("AA"), "index": 2}) == [(2, "meta_info.routed_experts", 0)]


def test_a_dtype_beside_the_field_is_told() -> None:
    (place,) = places_of({"meta_info": {"routed_experts": "0", "routed_experts_dtype": "uint16"}})
    assert place.dtype == "uint16"

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core.reference_engine.errors import InvalidFieldError
from router_core.reference_engine.sampling import choose, log_softmax, read_sampling_params, uniform

LOGPROBS = log_softmax(np.array([2.0, 1.0, 0.0, -1.0, -5.0], dtype=np.float32))


def params(**body: object) -> object:
    return read_sampling_params(body, vocabulary_size=5)


def test_draws_follow_the_shares() -> None:
    drawn = [choose(LOGPROBS, params(), seed, 7) for seed in range(4000)]
    assert np.allclose(np.bincount(drawn, minlength=5) / 4000, np.exp(LOGPROBS), atol=0.03)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_a_draw_depends_on_seed_and_position_alone(seed: int, position: int) -> None:
    assert uniform(seed, position) == uniform(seed, position)
    assert 0.0 <= uniform(seed, position) < 1.0
    assert choose(LOGPROBS, params(), seed, position) == choose(LOGPROBS, params(), seed, position)


def test_positions_of_one_seed_are_drawn_independently() -> None:
    drawn = np.array([uniform(3, position) for position in range(4000)])
    assert abs(drawn.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.6}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"min_p": 0.3}, {0, 1}),
        ({"top_k": 1}, {0}),
    ],
)
def test_cuts_leave_out_the_unlikely(body: dict[str, object], kept: set[int]) -> None:
    assert {choose(LOGPROBS, params(**body), seed, 0) for seed in range(300)} == kept


def test_temperature_zero_takes_the_likeliest() -> None:
    assert {choose(LOGPROBS, params(temperature=0), seed, 0) for seed in range(50)} == {0}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 0),
        ("max_new_tokens", -3),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", True),
        ("stop", [1]),
        ("stop_token_ids", [99]),
        ("ignore_eos", "yes"),
        ("n", 0),
        ("repetition_penalty", 1.1),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidFieldError, match=field) as caught:
        read_sampling_params({field: value}, vocabulary_size=5)
    assert caught.value.field == field


def test_null_is_the_default() -> None:
    named = ("temperature", "top_p", "top_k", "stop", "stop_token_ids", "n", "ignore_eos")
    assert read_sampling_params(dict.fromkeys(named), 5) == read_sampling_params({}, 5)

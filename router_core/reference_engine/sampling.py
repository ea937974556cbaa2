"""How the next token is chosen.

The choice at a position depends on the logits, the request's seed and the position alone. So a request that is
aborted and sent again with the tokens it had, and the same seed, goes on as if nothing had happened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
import numpy.typing as npt

from router_core.reference_engine import fields
from router_core.reference_engine.errors import InvalidFieldError
from router_core.reference_engine.kv_cache import FloatArray

_MASK64 = 2**64 - 1
_LEAST_TEMPERATURE = 1e-6
_MOST_SIBLINGS = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks of sampling, under SGLang's names and with its defaults."""

    max_new_tokens: int | None = 128
    """None: as many as the context has room for."""
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    sampling_seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    n: int = 1

    @property
    def is_greedy(self) -> bool:
        """The likeliest token is always taken; logprobs are then those at temperature 1, as SGLang gives them."""
        return self.temperature < _LEAST_TEMPERATURE or self.top_k == 1

    def sibling(self, number: int) -> "SamplingParams":
        """Return the parameters of the sample ``number`` of ``n``: its own seed, or all samples would be the same."""
        if self.sampling_seed is None:
            return self
        return replace(self, sampling_seed=self.sampling_seed + number)


def read_sampling_params(body: Mapping[str, Any], vocabulary_size: int) -> SamplingParams:
    """Read SGLang's ``sampling_params``; what this engine cannot do, and would have to ignore, is refused."""
    for name, harmless in _UNSUPPORTED.items():
        if body.get(name) not in (None, harmless):
            raise InvalidFieldError(name, f"{name} is not supported by the reference engine, got {body[name]!r}.")
    seed = body.get("sampling_seed")
    top_k = fields.integer(body, "top_k", -1)
    if top_k < 1 and top_k != -1:
        raise InvalidFieldError("top_k", f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    top_p = fields.number(body, "top_p", 1.0, 0.0, 1.0)
    if top_p == 0.0:
        raise InvalidFieldError("top_p", "top_p must be in (0, 1], got 0.")
    max_new_tokens = None
    if body.get("max_new_tokens", 128) is not None:
        max_new_tokens = fields.integer(body, "max_new_tokens", 128, at_least=0)
    min_new_tokens = fields.integer(body, "min_new_tokens", 0, at_least=0)
    if max_new_tokens is not None and min_new_tokens > max_new_tokens:
        raise InvalidFieldError(
            "min_new_tokens", f"min_new_tokens must be in [0, max_new_tokens({max_new_tokens})], got {min_new_tokens}."
        )
    siblings = fields.integer(body, "n", 1, at_least=1)
    if siblings > _MOST_SIBLINGS:
        raise InvalidFieldError("n", f"n must be at most {_MOST_SIBLINGS}, got {siblings}.")
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        temperature=fields.number(body, "temperature", 1.0, 0.0),
        top_p=top_p,
        top_k=top_k,
        min_p=fields.number(body, "min_p", 0.0, 0.0, 1.0),
        sampling_seed=None if seed is None else fields.integer(body, "sampling_seed", 0),
        stop=fields.texts(body, "stop"),
        stop_token_ids=frozenset(fields.ids(body.get("stop_token_ids") or [], "stop_token_ids", vocabulary_size)),
        ignore_eos=fields.flag(body, "ignore_eos"),
        no_stop_trim=fields.flag(body, "no_stop_trim"),
        skip_special_tokens=fields.flag(body, "skip_special_tokens", True),
        n=siblings,
    )


def refuse_unknown(body: Mapping[str, Any]) -> None:
    """Raise an InvalidFieldError for a name that SGLang does not know: it refuses misspellings too."""
    known = {field.name for field in dataclass_fields(SamplingParams)} | _UNSUPPORTED.keys() | _WITHOUT_EFFECT
    for name in body:
        if name not in known:
            raise InvalidFieldError(name, f"unknown field `{name}`, expected one of {', '.join(sorted(known))}")


_WITHOUT_EFFECT = {"spaces_between_special_tokens", "stream_interval"}
"""Sampling parameters that change nothing here."""

_UNSUPPORTED: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "stop_regex": None,
    "logit_bias": None,
    "custom_params": None,
}
"""Sampling parameters that real engines have and this one has not, with the value that asks for nothing."""


def log_softmax(logits: FloatArray) -> npt.NDArray[np.float64]:
    """Return the logprobs of ``logits`` in nats, over the last axis."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    shifted: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return shifted


def choose(logprobs: npt.NDArray[np.float64], params: SamplingParams, seed: int, position: int) -> int:
    """Return the id at ``position``, drawn from float64[vocab_size] logprobs after temperature."""
    if params.is_greedy:
        return int(logprobs.argmax())
    shares = np.exp(logprobs)
    if params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0:
        shares = _cut(shares, params)
    sums = np.cumsum(shares)
    chosen = int(np.searchsorted(sums, uniform(seed, position) * sums[-1], side="right"))
    # Rounding may put the draw on the very end of the sums.
    return min(chosen, int(np.flatnonzero(shares)[-1]))


def _cut(shares: npt.NDArray[np.float64], params: SamplingParams) -> npt.NDArray[np.float64]:
    """Set to zero what top_k, top_p and min_p leave out; top_p counts after top_k."""
    order = np.argsort(-shares, kind="stable")
    kept = shares[order]
    if params.top_k > 0:
        kept[params.top_k :] = 0.0
    if params.top_p < 1.0:
        before = np.cumsum(kept) - kept
        kept[before > params.top_p * kept.sum()] = 0.0
    kept[kept < params.min_p * kept[0]] = 0.0
    cut = np.zeros_like(shares)
    cut[order] = kept
    return cut


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that is fixed for ``seed`` and ``position`` (two rounds of splitmix64)."""
    return (_splitmix64(_splitmix64(seed & _MASK64) ^ (position & _MASK64)) >> 11) / 2.0**53


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)

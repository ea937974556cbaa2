"""One request while it is generated: what was asked, and what came of it so far."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from router_core.reference_engine.kv_cache import IntArray, KvCache
from router_core.reference_engine.options import Dialect
from router_core.reference_engine.sampling import SamplingParams
from router_core.reference_engine.tokenizer import TextStream, Tokenizer

_NO_CHARACTER = "\ufffd"

FinishReason = dict[str, Any]
"""As SGLang writes it: ``type`` is stop, length or abort."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely one id was; ``logprob`` in nats, ``rank`` 1 for the likeliest."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token with its logprob, and the likeliest ids at its place, as many as were asked for."""

    token: TokenLogprob
    top: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What the wires ask of the engine."""

    rid: str
    prompt_ids: list[int]
    sampling: SamplingParams
    group: str = ""
    """What the call is known by, if it makes several requests."""
    input_logprobs_from: int | None = None
    """The prompt position from which logprobs of the prompt are wanted; its own entry has none."""
    top_logprobs: int = 0
    dialect: Dialect = "sglang"
    """vllm: logprobs are those before temperature, ignore_eos leaves stop ids alone, and the text ends before bytes
    that are no character."""
    script: list[int] | None = None
    """These ids are the answer, as far as they go; their logprobs and experts are the model's."""


@dataclass(slots=True)
class WeightSpan:
    """Output tokens ``start`` to ``end`` (exclusive) were sampled by the weights of ``version``."""

    version: str
    start: int
    end: int


@dataclass(slots=True)
class Timings:
    """Unix times in seconds; None until it happened."""

    received: float = field(default_factory=time.time)
    started: float | None = None
    first_token: float | None = None
    finished: float | None = None


class Generation:
    """Owned by the engine, read by one wire. ``token_ids`` is the prompt and the output so far.

    ``sampled`` is as long as ``output_ids``; ``prompt_logprobs`` is as long as the prompt past
    ``input_logprobs_from``, its first entry None.
    """

    def __init__(
        self, request: GenerationRequest, seed: int, max_new_tokens: int, cache: KvCache, tokenizer: Tokenizer
    ) -> None:
        self.request = request
        self.seed = seed
        self.cache = cache
        self.token_ids = list(request.prompt_ids)
        self.max_new_tokens = max_new_tokens
        self.output_ids: list[int] = []
        self.sampled: list[Sampled] = []
        self.prompt_logprobs: list[Sampled | None] = []
        self.text = ""
        self.shown_tokens = 0
        self.shown_characters = 0
        """How much readers may see: what may be on its way into a stop text is not shown yet."""
        self.finish_reason: FinishReason | None = None
        self.weight_spans: list[WeightSpan] = []
        self.cached_tokens = 0
        self.retractions = 0
        self.timings = Timings()
        self.due_at = 0.0
        """Loop time before which it is not stepped."""
        self._former_experts: IntArray | None = None
        self._tokenizer = tokenizer
        self._text_stream = TextStream(tokenizer, request.sampling.skip_special_tokens)
        self._has_news = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """No token will be added."""
        return self.finish_reason is not None

    def retract(self, empty: KvCache) -> None:
        """Drop the keys and values; the tokens stay. Expert choices are kept until they are computed again."""
        self._former_experts = self.experts()
        self.cache = empty
        self.retractions += 1

    def experts(self) -> IntArray:
        """Return int32[rows, num_layers, top_k]: one row for each token but the last, as far as they are computed."""
        rows = self.cache.experts[: min(self.cache.length, len(self.token_ids) - 1)]
        if self._former_experts is None or len(self._former_experts) <= len(rows):
            return rows
        return np.concatenate([rows, self._former_experts[len(rows) :]])

    def add_token(self, sampled: Sampled, version: str) -> None:
        """Append a token; its text is there once all bytes of its last character are."""
        token_id = sampled.token.token_id
        self.timings.first_token = self.timings.first_token or time.time()
        self.token_ids.append(token_id)
        self.output_ids.append(token_id)
        self.sampled.append(sampled)
        self.text += self._text_stream.add([token_id])
        if not self.weight_spans or self.weight_spans[-1].version != version:
            self.weight_spans.append(WeightSpan(version, len(self.output_ids) - 1, len(self.output_ids) - 1))
        self.weight_spans[-1].end += 1
        if not self._may_be_stopping():
            self._show()

    def finish(self, reason: FinishReason) -> None:
        """End it; the first reason stands."""
        if self.finish_reason is None:
            self.finish_reason = reason
            self.text += self._text_stream.add([], is_last=True)
            self.text = self._without_stop(reason.get("matched"))
            self.timings.finished = time.time()
        self._show()

    def _without_stop(self, matched: str | int | None) -> str:
        """Return the text without what ended it, and without what came after that."""
        sampling = self.request.sampling
        if isinstance(matched, str):
            return self.text[: self.text.find(matched) + (len(matched) if sampling.no_stop_trim else 0)]
        if matched is not None and not sampling.no_stop_trim:
            return self._tokenizer.decode(self.output_ids[:-1], sampling.skip_special_tokens)
        return self.text

    def _show(self) -> None:
        """Let readers see all but bytes at the end that may still become a character."""
        is_whole = self.is_finished and self.request.dialect == "sglang"
        shown = self.text if is_whole else self.text.rstrip(_NO_CHARACTER)
        if self.is_finished:
            self.text = shown
        self.shown_tokens, self.shown_characters = len(self.output_ids), len(shown)
        self._has_news.set()

    def _may_be_stopping(self) -> bool:
        stops = self.request.sampling.stop
        return any(self.text.endswith(stop[:length]) for stop in stops for length in range(1, len(stop)))

    async def progress(self) -> AsyncIterator[None]:
        """Wait for news until it is finished; the last item comes with the end. One reader at a time."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            is_last = self.is_finished
            yield
            if is_last:
                return

    async def wait_finished(self) -> None:
        """Return once it is finished."""
        async for _ in self.progress():
            pass

"""One step of a batch: feeds each sequence its next tokens and samples where one has all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from router_core.reference_engine.generation import FinishReason, Generation, Sampled, TokenLogprob
from router_core.reference_engine.kv_cache import FloatArray
from router_core.reference_engine.model import Model, Row
from router_core.reference_engine.sampling import choose, log_softmax
from router_core.reference_engine.tokenizer import Tokenizer

Logprobs = npt.NDArray[np.float64]

_MAX_ROWS = 32
_MAX_READS = 32768
"""How many rows, and earlier positions that they attend to, are computed in a turn: about 4 ms of the default model."""


@dataclass(slots=True)
class _Share:
    """The rows of one sequence in a batch: ``first_row`` to ``first_row + count``, from ``position`` on."""

    generation: Generation
    first_row: int
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """Which sequences of a batch got rows, and which of these got a token (or ended)."""

    served: list[Generation]
    sampled: list[Generation]


class Decoder:
    """Knows how a row of logits becomes a token and when a sequence ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._eos_id = tokenizer.eos_id

    def step(self, model: Model, batch: Sequence[Generation], version: str) -> Step:
        """Advance the sequences of ``batch`` in order, until a turn of the loop is full.

        A sequence whose prompt is not computed yet takes what is left, any other takes one row.
        """
        rows: list[Row] = []
        shares: list[_Share] = []
        reads = 0
        for generation in batch:
            position = generation.cache.length
            room = max(0 if rows else 1, min(_MAX_ROWS - len(rows), (_MAX_READS - reads) // (position + 1)))
            pending = generation.token_ids[position : position + room]
            if not pending:
                break
            shares.append(_Share(generation, len(rows), position, len(pending)))
            rows.extend(Row(token_id, generation.cache) for token_id in pending)
            reads += len(pending) * (position + len(pending))
        hidden = model.forward(rows)
        for share in shares:
            self._read_prompt(model, hidden, share)
        ready = [share for share in shares if share.position + share.count == len(share.generation.token_ids)]
        if ready:
            logits = model.logits(hidden[[share.first_row + share.count - 1 for share in ready]])
            for share, row in zip(ready, logits, strict=True):
                self._sample(share.generation, row, version)
        return Step([share.generation for share in shares], [share.generation for share in ready])

    def _read_prompt(self, model: Model, hidden: FloatArray, share: _Share) -> None:
        """Note the logprobs of the prompt, if they were asked for: a row tells that of the next token."""
        generation = share.generation
        start = generation.request.input_logprobs_from
        prompt_ids = generation.request.prompt_ids
        if start is None:
            return
        if not generation.prompt_logprobs:
            generation.prompt_logprobs.append(None)
        known = start + len(generation.prompt_logprobs) - 1
        first = max(known, share.position)
        end = min(share.position + share.count, len(prompt_ids) - 1)
        if first >= end:
            return
        offset = share.first_row - share.position
        logprobs = log_softmax(model.logits(hidden[first + offset : end + offset]))
        for position, row in zip(range(first, end), logprobs, strict=True):
            told = _told(row, prompt_ids[position + 1], generation.request.top_logprobs)
            generation.prompt_logprobs.append(told)

    def _sample(self, generation: Generation, logits: FloatArray, version: str) -> None:
        """Add the next token and end the sequence if it was the last."""
        sampling = generation.request.sampling
        if generation.max_new_tokens == 0:
            generation.finish({"type": "length", "length": 0})
            return
        number = len(generation.output_ids)
        raw = log_softmax(logits)
        logprobs = raw
        if number < sampling.min_new_tokens:
            logits = logits.copy()
            logits[[*sampling.stop_token_ids, self._eos_id]] = -np.inf
            logprobs = log_softmax(logits)
        if not sampling.is_greedy and sampling.temperature != 1.0:
            logprobs = log_softmax(logits / np.float32(sampling.temperature))
        script = generation.request.script
        if script is not None and number < len(script):
            token_id = script[number]
        else:
            token_id = choose(logprobs, sampling, generation.seed, len(generation.token_ids))
        reported = raw if generation.request.dialect == "vllm" else logprobs
        generation.add_token(_told(reported, token_id, generation.request.top_logprobs), version)
        reason = self._end(generation)
        if reason is not None:
            generation.finish(reason)

    def _end(self, generation: Generation) -> FinishReason | None:
        """Return why the last token is the last, or None: texts come before ids before the length, as in SGLang."""
        sampling = generation.request.sampling
        count, last = len(generation.output_ids), generation.output_ids[-1]
        for stop in sampling.stop:
            if stop in generation.text:
                return {"type": "stop", "matched": stop}
        if not sampling.ignore_eos and last == self._eos_id:
            return {"type": "stop", "matched": last}
        is_ignored = sampling.ignore_eos and generation.request.dialect == "sglang"
        if not is_ignored and last in sampling.stop_token_ids:
            return {"type": "stop", "matched": last}
        if count >= generation.max_new_tokens:
            return {"type": "length", "length": count}
        return None


def _told(logprobs: Logprobs, token_id: int, count: int) -> Sampled:
    """Return what is told of ``token_id`` at a place, with the ``count`` likeliest ids there."""
    best = np.argsort(-logprobs, kind="stable")[:count] if count else ()
    return Sampled(_entry(logprobs, token_id), [_entry(logprobs, int(top_id)) for top_id in best])


def _entry(logprobs: Logprobs, token_id: int) -> TokenLogprob:
    logprob = logprobs[token_id]
    return TokenLogprob(token_id, float(np.float32(logprob)), int(np.count_nonzero(logprobs > logprob)) + 1)

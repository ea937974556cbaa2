"""Whether what the router kept is what the engine saw and said."""

from __future__ import annotations

import base64
from typing import Any

import aiohttp
import numpy as np
from witness import Call

Json = dict[str, Any]


class Comparison:
    """``calls`` are the witness's, ``samples`` is the answer of ``POST /sessions/{id}/samples`` with every branch."""

    def __init__(self, calls: list[Call], samples: Json) -> None:
        self.calls = calls
        self.rows: list[Json] = samples["samples"]
        self.faults: list[str] = []
        self._lines: list[str] = []
        self._furthest, self._scored, self._experts = 0.0, 0, ""
        if not samples["complete"]:
            self.faults.append(f"incomplete: {samples['reasons']}")

    def compare(self) -> None:
        """Every answer of the engine is in one row, to the bit, and is trained once; nothing else is in there."""
        kept = self._kept_turns()
        told: dict[tuple[tuple[int, ...], tuple[int, ...]], Call] = {}
        for number, call in enumerate(self.calls, 1):
            call.read()
            name = f"call {number}"
            if not call.is_sample:
                why = f"status {call.status}, {call.finish_reason}" if call.is_whole else "its connection broke"
                self._lines.append(f"{number:>4} {call.path:<22} {why}: no sample")
                continue
            fault = self._fault_of(call, kept)
            if fault:
                self.faults.append(f"{name}: {fault}")
            told[tuple(call.prompt_ids or ()), tuple(call.output_ids)] = call
            how = "streamed" if call.asked.get("stream") else "whole"
            counts = f"{len(call.prompt_ids or ()):>6} {len(call.output_ids):>7}"
            self._lines.append(
                f"{number:>4} {call.path:<22} {how:<9}{counts}  {call.finish_reason:<11} {fault or 'equal'}"
            )
        self.faults += [f"a kept turn was never seen: {key}" for key in kept if key not in told]
        trained = sum(sum(row["loss_mask"]) for row in self.rows)
        sampled = sum(len(output) for _, output in told)
        if trained != sampled:
            self.faults.append(f"{trained} tokens are trained, the engine sampled {sampled}")
        self._sums = f"{sampled} tokens sampled, {trained} trained, {len(self.rows)} sequences"

    def _kept_turns(self) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]]:
        """(prompt, answer) -> logprobs, of every turn that a row trains. Also checks the masks."""
        kept = {}
        for row in self.rows:
            tokens, mask = row["tokens"], [0] * len(row["tokens"])
            for turn in row["turns"]:
                if not turn["is_trained"]:
                    continue
                start, end = turn["start"], turn["end"]
                mask[start:end] = [1] * (end - start)
                kept[tuple(tokens[:start]), tuple(tokens[start:end])] = row["logprobs"][start:end]
            if mask != list(row["loss_mask"]):
                self.faults.append(f"branch {row['branch_id']}: the mask is not that of its sampled tokens")
        return kept

    @staticmethod
    def _fault_of(call: Call, kept: dict[Any, list[float]]) -> str | None:
        if call.given_ids is not None and call.given_ids != call.prompt_ids:
            return "the engine's prompt is not the one that it was given"
        if call.prompt_tokens is not None and call.prompt_tokens != len(call.prompt_ids or ()):
            return f"the engine counted {call.prompt_tokens} prompt tokens"
        if len(call.logprobs) != len(call.output_ids):
            return f"{len(call.logprobs)} logprobs for {len(call.output_ids)} ids"
        logprobs = kept.get((tuple(call.prompt_ids or ()), tuple(call.output_ids)))
        if logprobs is None:
            return "these ids were not kept"
        return None if logprobs == call.logprobs else "the logprobs that were kept are others"

    async def rescore(
        self, http: aiohttp.ClientSession, engine: str, kind: str, model: str, row: Json, tolerance: float
    ) -> None:
        """Give the engine the whole row as bare ids: each sampled token must have the logprob that was kept.

        An infinite ``tolerance`` is for logprobs of altered logits, which cannot be computed again: ids alone count.
        """
        tokens: list[int] = row["tokens"]
        first = max(row["loss_mask"].index(1) - 1, 0)  # logprobs of a long prompt would be much memory for nothing
        if kind == "sglang":
            body: Json = {"input_ids": tokens, "return_logprob": True, "logprob_start_len": first}
            body["sampling_params"] = {"max_new_tokens": 1, "temperature": 0}
            body["return_routed_experts"] = row["routed_experts"] is not None
            async with http.post(f"{engine}/generate", json=body) as answer:
                info = (await answer.json())["meta_info"]
            if body["return_routed_experts"]:
                self._compare_experts(row, info["routed_experts"])
            count, entries = info["prompt_tokens"], [(entry[1], entry[0]) for entry in info["input_token_logprobs"]]
        else:
            body = {"model": model, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0}
            async with http.post(f"{engine}/v1/completions", json=body) as answer:
                told = await answer.json()
            count = told["usage"]["prompt_tokens"]
            listed = told["choices"][0]["prompt_logprobs"]
            entries = [
                (token, (entry or {}).get(str(token), {}).get("logprob"))
                for token, entry in zip(tokens[first:], listed[first:], strict=True)
            ]
        where = f"branch {row['branch_id']}, given to the engine again"
        if count != len(tokens) or [token for token, _ in entries] != tokens[first:]:
            self.faults.append(f"{where}: {count} tokens instead of {len(tokens)}, or other ones")
            return
        for at, is_trained in enumerate(row["loss_mask"]):
            if is_trained and tolerance < float("inf"):
                self._scored += 1
                apart = abs(entries[at - first][1] - row["logprobs"][at])
                self._furthest = max(self._furthest, apart)
                if apart > tolerance:
                    self.faults.append(f"{where}: the logprob of token {at} is {apart} apart")
                    return

    def _compare_experts(self, row: Json, told: str) -> None:
        """The engine's experts for the row are int32 in base64, one row fewer than tokens; then the sampled one's."""
        kept = np.asarray(row["routed_experts"])
        again = np.frombuffer(base64.b64decode(told), np.int32)[: kept.size].reshape(kept.shape)
        other = np.flatnonzero((kept != again).any(axis=(1, 2)))
        self._experts = f"; experts {'x'.join(map(str, kept.shape))}, other ones in {len(other)} rows"
        if other.size:
            self.faults.append(f"branch {row['branch_id']}: other experts from row {other[0]} on")

    def report(self) -> None:
        """A line for each call, the sums, and what is wrong."""
        print(f"{'call':>4} {'path':<22} {'how':<9}{'prompt':>6} {'sampled':>7}  {'finish':<11} kept")
        print("\n".join(self._lines))
        print(f"{self._sums}; {self._scored} scored again, logprobs at most {self._furthest:.6f} apart{self._experts}")
        for fault in self.faults:
            print("FAULT", fault[:300])

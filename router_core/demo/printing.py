"""How the demo's lines look."""

from __future__ import annotations

import time

from router_core.demo.rollout import Turn

PROMISE = """\
        Promised: what the router passes on is what the workers answer themselves. A worker is killed on the way:
        turns fail only until its quarantine, and are asked again. Started anew, it serves again by itself."""
LEGEND = """\
        turn: rollout and number. prompt, sampled: tokens. logprob: mean of the sampled tokens', in nats. experts:
        routed experts, rows x layers x experts of each. events: parts of a streamed answer, - where it came whole."""
HEAD = "  time  turn         worker    prompt  sampled  logprob  experts     events  first ids       text"


MARK = "==="


class Stopwatch:
    """Prints lines with the seconds since it was made."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._since

    def say(self, text: str) -> None:
        print(f"{self.seconds():5.2f}s  {text}", flush=True)

    def mark(self, text: str) -> None:
        """A line that stands out: what is made to happen, and what comes of it."""
        self.say(f"{MARK} {text} ".ljust(100, MARK[0]))


def turn_line(what: str, worker: str, turn: Turn) -> str:
    """One turn: who served it, tokens, mean logprob in nats, shape of the routed experts, and how it begins."""
    shape = "x".join(str(length) for length in turn.experts.shape)
    mean = sum(turn.logprobs) / len(turn.logprobs)
    ids = ", ".join(str(token_id) for token_id in turn.output_ids[:3])
    text = turn.text[:20].encode("ascii", "replace").decode()
    return (
        f"{what:<11}  {worker}  {turn.prompt_tokens:>5}  {len(turn.output_ids):>7}  {mean:>7.3f}"
        f"  {shape:<10}  {turn.events or '-':>6}  {ids:<14}  {text!r}"
    )


def example(router_url: str, worker_urls: list[str]) -> str:
    """What to try while everything is left serving."""
    body = '{"text": "Hello", "sampling_params": {"max_new_tokens": 8}, "return_logprob": true}'
    return (
        f"\nStill serving, until Ctrl-C: router {router_url}, workers {' '.join(worker_urls)}\n"
        f"  curl {router_url}/generate -H 'content-type: application/json' -d '{body}'\n"
        f"  curl {router_url}/workers\n"
    )

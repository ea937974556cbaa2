"""What capture asks of a worker and what it learns from the answer, whatever the worker speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from router_core import ControlClient, Request, Worker
from router_tito.packed import ids_json
from router_tito.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Ask:
    """One turn as it is put to a worker; the same for every attempt of it."""

    body: Mapping[str, Any]
    """The client's JSON with the session's overrides. What the client itself asked for is seen here; never changed."""
    prompt_ids: Sequence[int] | None
    """The exact ids to generate from. None: nothing is injected, the worker renders (observe)."""
    is_continued: bool = False
    """Whether the ids begin with some of the session's trace; else they are the messages by the template alone."""
    wants_experts: bool = False
    """Whether routed experts are to be asked for."""
    _json: list[bytes] = field(default_factory=list, repr=False, compare=False)
    """The ids' JSON once it was made; every attempt shares it."""

    @property
    def prompt_json(self) -> bytes:
        """The ids as a JSON list, made once; ``orjson.Fragment`` puts it into a body."""
        if not self._json:
            self._json.append(ids_json(self.prompt_ids or ()))
        return self._json[0]

    @property
    def is_streamed(self) -> bool:
        """Whether the client wants events."""
        return bool(self.body.get("stream"))

    def asks(self, name: str) -> bool:
        """Whether the client itself set this flag: then what it brings stays in the client's reply."""
        return bool(self.body.get(name))


@dataclass(slots=True)
class Reading:
    """What one answer told. A field stays empty where the worker did not say, and nothing is made up for it."""

    prompt_ids: Sequence[int] | None = None
    """The ids the worker says it generated from."""
    completion_ids: Sequence[int] | None = None
    logprobs: Sequence[float | None] | None = None
    """Nats, one per completion id."""
    message: dict[str, Any] = field(default_factory=dict)
    """The assistant's message as the client got it, put together from its deltas when streamed."""
    finish_reason: str = ""
    """As the worker said it; empty when it never did, which is how a cut stream looks."""
    model: str = ""
    weight_version: str | None = None
    weight_versions: tuple[tuple[str | None, int, int], ...] = ()
    """(version, start, end) over the completion; empty where nobody tells, a version is None where nobody knows it."""
    cached_tokens: int | None = None
    experts: str | None = None
    """Routed experts as they came: base64 of a ``.npy``, or of raw little-endian int32."""
    fault: str = ""
    """A short stable label where the answer cannot be captured whatever else it holds (``many_choices``)."""


@dataclass(frozen=True, slots=True)
class EngineServices:
    """What an engine may use beside the request in its hands."""

    control: ControlClient
    """For further calls to the same worker, on connections of their own."""
    find_tokenizer: Callable[[], Tokenizer | None]
    """The tokenizer capture renders with, None while there is none."""
    timeout_s: float = 30.0
    """For each such call."""
    tool_form: str = "auto"
    """Form of the model's tool calls (``parsers.FORMS``), where they are parsed here."""
    default_max_tokens: int | None = None
    """Most tokens of an answer, where nobody said."""


@dataclass(frozen=True, slots=True)
class AbortedPart:
    """An aborted chat answer: what it told of tokens, and their text with control tokens in it."""

    reading: Reading
    head: Mapping[str, Any]
    """Its ``id``, ``created`` and ``model``."""
    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    """One per id."""
    text: str


class AnswerReader(Protocol):
    """Reads one answer of status 200: worker's bytes in, client's bytes out, and `reading` fills up.

    Made for each answer. Either `whole` is called, once, or `feed` for every chunk as it came and `end` once. What the
    client did not ask for is not in what goes out. Raises nothing for an answer that cannot be read: the client gets
    what can be given, and ``reading.fault`` says why.
    """

    reading: Reading

    async def whole(self, body: bytes) -> bytes:
        """The client's body for the worker's."""
        ...

    async def feed(self, chunk: bytes) -> bytes:
        """What may go to the client now. From the event that ends the turn on everything is held back for `end`."""
        ...

    async def end(self) -> bytes:
        """The rest, which leaves once the turn is committed; called when the worker's answer ended cleanly."""
        ...


class Engine(Protocol):
    """One way to have one kind of worker answer a turn. One instance serves all turns; it keeps nothing of them."""

    async def write(self, ask: Ask, request: Request, worker: Worker) -> None:
        """Change ``request``, which is this attempt's own, so that the worker gets the ids and answers with ids.

        ``request.set_key`` changes one key and leaves the client's other bytes alone. A mode that speaks another call
        sets ``request.path`` and ``set_body``. Raises Reject (400) naming a field that cannot be said in that call.
        """
        ...

    def reader(self, ask: Ask, worker: Worker) -> AnswerReader:
        """A reader for the answer to what `write` wrote."""
        ...


EngineFactory = Callable[[EngineServices], Engine]

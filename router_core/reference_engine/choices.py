"""What both OpenAI wires tell of a generation: its parsed answer, whole or piece by piece."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from router_core.reference_engine.answer_parser import AnswerParser, Parsed
from router_core.reference_engine.generation import Generation, Sampled
from router_core.reference_engine.openai_call import OpenAiCall
from router_core.reference_engine.tokenizer import Tokenizer


@dataclass(slots=True)
class Piece:
    """What was added since the last piece; ``text`` is also in ``parsed``, split."""

    sampled: list[Sampled] = field(default_factory=list)
    text: str = ""
    parsed: Parsed = field(default_factory=Parsed)
    first_tool_call: int = 0
    """The number of its first tool call among all of the answer."""
    is_first: bool = False
    is_last: bool = False

    @property
    def token_ids(self) -> list[int]:
        """The ids that were added."""
        return [told.token.token_id for told in self.sampled]


class Choice:
    """Reads one generation."""

    def __init__(self, call: OpenAiCall, generation: Generation) -> None:
        self.generation = generation
        self._tool_calls = 0
        self._parser = AnswerParser(call.is_thinking, call.parses_tools)
        self._seen_tokens = 0
        self._seen_characters = 0

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield pieces as they come; the last one comes with the end."""
        is_first = True
        async for _ in self.generation.progress():
            piece = self.take()
            if piece.sampled or piece.is_last:
                piece.is_first, is_first = is_first, False
                yield piece

    def take(self) -> Piece:
        """Return what was added since the last time."""
        generation = self.generation
        is_last = generation.is_finished
        sampled = generation.sampled[self._seen_tokens : generation.shown_tokens]
        text = generation.text[self._seen_characters : generation.shown_characters]
        self._seen_tokens, self._seen_characters = generation.shown_tokens, generation.shown_characters
        parsed = self._parser.add(text, is_last)
        first_tool_call, self._tool_calls = self._tool_calls, self._tool_calls + len(parsed.tool_calls)
        return Piece(sampled, text, parsed, first_tool_call, is_last=is_last)

    @property
    def has_tool_calls(self) -> bool:
        """Any tool call has been taken."""
        return self._tool_calls > 0

    def finish_reason(self) -> str | None:
        """Return OpenAI's word for why it ended; a turn that ends with tool calls says so."""
        reason = self.generation.finish_reason
        if reason is None:
            return None
        kind = str(reason["type"])
        return "tool_calls" if kind == "stop" and self.has_tool_calls else kind


def reasoning_tokens(call: OpenAiCall, generation: Generation, tokenizer: Tokenizer) -> int:
    """Return how many output tokens are thinking: those before ``</think>``, without ``<think>`` itself.

    The end of the turn counts in an unfinished thought of SGLang's, not of vLLM's.
    """
    if not call.is_thinking:
        return 0
    start, end = tokenizer.id_of("<think>"), tokenizer.id_of("</think>")
    ids = generation.output_ids
    thought = ids[: ids.index(end)] if end is not None and end in ids else ids
    hidden = {start} if generation.request.dialect == "sglang" else {start, tokenizer.eos_id}
    return sum(token_id not in hidden for token_id in thought)

"""What the tree knows of one text."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from router_radix_cache.segments import Segment, is_character_start
from router_radix_cache.tokens import PackedTokens, Span, decode_text, spans_within
from router_radix_cache.trajectory import Trajectory


class Match:
    """The longest stored prefix of a text: the first ``token_count`` tokens of one trajectory, never a mix of several.

    It ends at a token boundary that is also a character boundary; ``matched_bytes`` of the UTF-8 text are covered.
    Lists are made when they are asked for, and stay right whatever becomes of the tree. ``is_ambiguous`` is set when
    other trajectories fit as well and have other ids (or, ending at the same place, other logprobs or weight
    versions): the newest was taken. ``is_whole`` is set when the trajectory ends where the match ends.
    """

    def __init__(
        self,
        text: bytes,
        trajectory: Trajectory | None = None,
        segment: Segment | None = None,
        token_count: int = 0,
        matched_bytes: int = 0,
        *,
        is_whole: bool = False,
        is_ambiguous: bool = False,
    ) -> None:
        self.trajectory = trajectory
        self.token_count = token_count
        self.matched_bytes = matched_bytes
        self.is_whole = is_whole
        self.is_ambiguous = is_ambiguous
        self.text = text
        self._segment = segment

    @property
    def is_complete(self) -> bool:
        """Whether the tokens cover the whole text."""
        return self.trajectory is not None and self.matched_bytes == len(self.text)

    @property
    def matched_characters(self) -> int:
        return len(decode_text(self.text[: self.matched_bytes]))

    @property
    def token_ids(self) -> list[int]:
        return self._joined("i", self._path_ids()).tolist()

    @property
    def ends(self) -> list[int]:
        """Where each token ends in the text, in bytes."""
        return self._packed_ends().tolist()

    @property
    def spans(self) -> list[Span]:
        """The sampled spans, joined where they touch."""
        if self.trajectory is None:
            return []
        spans = self.trajectory.runs.all_spans()
        return spans_within(spans, 0, self.token_count) if spans and spans[0].start < self.token_count else []

    @property
    def loss_mask(self) -> list[int]:
        """1 for a sampled token, else 0; as long as ``token_ids``."""
        return self.packed().loss_mask

    @property
    def logprobs(self) -> list[float]:
        """In nats, 0.0 where the mask is 0; as long as ``token_ids``."""
        return self.packed().all_logprobs

    @property
    def weight_versions(self) -> list[str | None]:
        """The weight version of each sampled token, None elsewhere; as long as ``token_ids``."""
        return self.packed().weight_versions

    def packed(self) -> PackedTokens:
        """The matched tokens as the start of a longer sequence: append to it, then insert it under its text."""
        tokens = PackedTokens()
        tokens.ids = self._joined("i", self._path_ids())
        tokens.ends = self._packed_ends()
        tokens.spans, tokens.logprobs = self.sampled()
        return tokens

    def sampled(self) -> tuple[list[Span], array[float]]:
        """The sampled spans, and the logprobs of their tokens."""
        spans = self.spans
        if self.trajectory is None or not spans:
            return spans, array("d")
        return spans, self.trajectory.runs.all_logprobs()[: sum(span.stop - span.start for span in spans)]

    def reusable(self) -> Match:
        """The part whose ids a new prompt has to keep: up to the last sampled token.

        Context behind it, and a text of which nothing was sampled, are encoded afresh: what follows may join with it to
        other tokens ("sat" + "isfied"). The whole match is kept when it is exactly a known prompt or trajectory.
        """
        if self.trajectory is None or self._is_known_prompt():
            return self
        spans = self.spans
        count = spans[-1].stop if spans else 0
        if count == self.token_count:
            return self
        ends = self._packed_ends()
        while count and not is_character_start(self.text, ends[count - 1]):
            count -= 1
        if count == 0 or ends[count - 1] == 0:
            return Match(self.text)
        return Match(self.text, self.trajectory, self._segment, count, ends[count - 1], is_ambiguous=self.is_ambiguous)

    def _is_known_prompt(self) -> bool:
        if self.trajectory is None or not self.is_complete:
            return False
        if self.token_count == self.trajectory.token_count:
            return True
        spans = self.trajectory.runs.all_spans()
        place = bisect_left(spans, self.token_count, key=lambda span: span.start)
        return place < len(spans) and spans[place].start == self.token_count

    def _path(self) -> list[Segment]:
        """Segments from the root down; cutting or joining them later changes none of the tokens they add up to."""
        path = []
        segment = self._segment
        while segment is not None:
            path.append(segment)
            segment = segment.parent
        return path[::-1]

    def _path_ids(self) -> bytes:
        return b"".join(segment.ids for segment in self._path())[: 4 * self.token_count]

    def _packed_ends(self) -> array[int]:
        return self._joined("I", b"".join(segment.ends for segment in self._path())[: 4 * self.token_count])

    @staticmethod
    def _joined(typecode: str, packed: bytes) -> array[int]:
        joined: array[int] = array(typecode)
        joined.frombytes(packed)
        return joined

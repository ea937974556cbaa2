"""What of a new text is known already: tokens to be kept, and text to be encoded behind them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

from router_radix_cache.match import Match
from router_radix_cache.segments import is_character_start
from router_radix_cache.tokens import PackedTokens, decode_text

BytesOf = Callable[[Sequence[int]], Sequence[bytes | None]]


def known_start(match: Match, text: bytes, bytes_of: BytesOf) -> tuple[PackedTokens, str]:
    """The known tokens that ``text`` begins with, and the text behind them. Together they spell ``text`` exactly.

    An answer may end with more than its text shows: a stop that was cut off, an end-of-turn token. Where the text goes
    on with just that, it is kept, since it was sampled. Where it does not, it is left out: the worker would see what
    the client's text does not say. A text of which nothing was sampled is encoded, whoever sent ids for it before.
    """
    tokens = match.reusable().packed()
    if not tokens.spans:
        return PackedTokens(), decode_text(text)
    last = bisect_left(tokens.ends, tokens.byte_length)  # the token that reaches the end; those behind it show nothing
    start = tokens.ends[last - 1] if last else 0
    pieces = [piece for piece in bytes_of(tokens.ids[last:]) if piece is not None]
    shown, spelled = text[start : tokens.byte_length], b"".join(pieces)
    if len(pieces) == len(tokens) - last and spelled != shown and spelled.startswith(shown):
        ends = array("I", accumulate(map(len, pieces), initial=start))[1:]
        count = sum(1 for end in ends if text.startswith(spelled[: end - start], start))
        if not count or ends[count - 1] < tokens.byte_length:  # a token that is cut off where the text went on
            return _up_to_character(tokens, last, text)
        tokens.ends[last:] = ends
        tokens = tokens.first(last + count)
    return tokens, decode_text(text[tokens.byte_length :])


def _up_to_character(tokens: PackedTokens, count: int, text: bytes) -> tuple[PackedTokens, str]:
    """At most ``count`` tokens, that end with a whole character, and the text behind them."""
    while count and not is_character_start(text, tokens.ends[count - 1]):
        count -= 1
    tokens = tokens.first(count)
    return tokens, decode_text(text[tokens.byte_length :])

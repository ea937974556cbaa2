"""Where sampled tokens end in the text that a worker made of them.

The text need not be what the ids spell: special tokens may be left out of it, a stop may be cut off its end, bytes that
are no character are written as U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from itertools import accumulate

from router_radix_cache.tokens import encode_text


def sampled_ends(
    text: str, token_ids: Sequence[int], pieces: Sequence[bytes | None], special_ids: Collection[int]
) -> list[int]:
    """The end of each token in ``text``, in bytes; ``pieces`` are the bytes each id stands for.

    A token that the text leaves out, or whose end it cuts off, ends where the text before it does. Where text and ids
    do not agree at all the first token takes the whole text: it is then found whole or not at all, never cut wrongly.
    """
    encoded = encode_text(text)
    shown = [piece or b"" for piece in pieces]
    spellings = [shown]
    if b"".join(shown) != encoded:  # else nothing is left out, and nothing need be looked for
        hidden = [b"" if token_id in special_ids else piece for token_id, piece in zip(token_ids, shown, strict=True)]
        spellings = [shown, hidden]
    for visible in spellings:
        if b"".join(visible).startswith(encoded):
            return _cut(list(accumulate(map(len, visible))), len(encoded))
    for visible in spellings:
        decoded, ends = decoded_ends(visible)
        if decoded.startswith(text):
            return _cut(ends, len(encoded))
    return [len(encoded)] * len(token_ids)


def _cut(ends: list[int], size: int) -> list[int]:
    return ends if not ends or ends[-1] == size else [min(end, size) for end in ends]


def decoded_ends(pieces: Sequence[bytes]) -> tuple[str, list[int]]:
    """The text of all pieces, with U+FFFD for bytes that are no character, and where in its UTF-8 each piece ends.

    A piece that ends within a character ends behind it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    texts: list[str] = []
    ends: list[int] = []
    unfinished: list[int] = []
    size = 0
    for number, piece in enumerate([*pieces, b""]):
        text = decoder.decode(piece, final=number == len(pieces))
        if text:
            for earlier in unfinished:
                ends[earlier] = size + len(text[0].encode())
            unfinished.clear()
        texts.append(text)
        size += len(text.encode())
        ends.append(size)
        if decoder.getstate()[0]:
            unfinished.append(number)
    return "".join(texts), ends[:-1]

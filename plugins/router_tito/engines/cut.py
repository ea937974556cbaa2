"""Takes logprobs and the prompt's ids out of an answer before it is decoded: they are most of its bytes.

Decoding 20,000 entries of text, bytes and logprob takes 30 ms; taking the numbers out by a search takes 4. The search
is exact: a quote inside a JSON string is written ``\\"``, so an unescaped ``"logprob":`` is a key. What does not look
as engines write it is left to the decoder.
"""

from __future__ import annotations

import orjson

BEGIN = b'"logprobs":{"content":['
END = b']},"finish_reason":'
TOPS = b'"top_logprobs":[{'
KEY = b'"logprob":'
NULL = b'"logprobs":null'


def cut_logprobs(body: bytes) -> tuple[bytes, list[float | None]] | None:
    """The body with null for its one choice's logprobs, and them; None where that cannot be done by search."""
    start = body.find(BEGIN)
    if start < 0 or body[start - 1 : start] not in (b",", b"{"):
        return None
    end = body.find(END, start)
    if end < 0 or body.find(BEGIN, end) >= 0 or body.find(TOPS, start, end) >= 0:
        return None
    entries = body[start + len(BEGIN) : end].split(KEY)
    del entries[0]
    try:
        logprobs = orjson.loads(b"[" + b",".join([entry.partition(b",")[0] for entry in entries]) + b"]")
    except orjson.JSONDecodeError:
        return None
    if len(logprobs) != len(entries):
        return None
    return body[:start] + NULL + body[end + 2 :], logprobs


def cut_ids(text: bytes, key: bytes, ids: bytes) -> bytes | None:
    """An answer or event with null for the ``ids`` under ``key``; None where they are not there, these and only once.

    ``ids`` is their JSON: equal bytes are equal ids.
    """
    mark = b'"' + key + b'":'
    start = text.find(mark) + len(mark)
    end = start + len(ids)
    if start < len(mark) or not text.startswith(ids, start) or text.find(mark, end) >= 0:
        return None
    return text[:start] + b"null" + text[end:]

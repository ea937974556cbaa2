"""Routed experts of a scripted model: which experts each token of a sequence went to, the same on every worker."""

import base64
from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """The shape of a scripted mixture of experts. Its routing table is ``[seq_len - 1, layers, top_k]``, row-major."""

    layers: int = 4
    top_k: int = 2
    count: int = 8

    def row(self, token_id: int) -> list[int]:
        """The experts of one token, ``top_k`` different ones for each layer, by its id alone."""
        return [
            (token_id + 3 * layer + rank) % self.count for layer in range(self.layers) for rank in range(self.top_k)
        ]

    def rows(self, ids: Sequence[int], start: int = 0) -> list[list[int]]:
        """One row for each token but the last, from ``start`` on: prompt + completion - 1 in all."""
        known = {rest: self.row(rest) for rest in range(self.count)}
        return [known[token_id % self.count] for token_id in ids[start:-1]]

    def to_sglang(self, ids: Sequence[int], start: int = 0) -> str:
        """Base64 of raw little-endian int32, without a header."""
        known = {rest: _int32(self.row(rest)) for rest in range(self.count)}
        return base64.b64encode(b"".join(known[token_id % self.count] for token_id in ids[start:-1])).decode()

    def to_vllm(self, ids: Sequence[int], start: int = 0) -> str:
        """Base64 of a ``.npy`` file (format 1.0), uint8 where the experts fit, else uint16."""
        kind, code = ("|u1", "B") if self.count <= 256 else ("<u2", "H")
        known = {rest: array(code, self.row(rest)).tobytes() for rest in range(self.count)}
        rows = [known[token_id % self.count] for token_id in ids[start:-1]]
        shape = f"({len(rows)}, {self.layers}, {self.top_k})"
        head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
        head = head.ljust(128 - 10 - 1) + "\n"
        return base64.b64encode(
            b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + b"".join(rows)
        ).decode()


def _int32(row: list[int]) -> bytes:
    return b"".join(expert.to_bytes(4, "little") for expert in row)

"""Answers as SGLang and vLLM word them, for the tests of this folder."""

from __future__ import annotations

import base64
import io
import json

import numpy as np

LAYERS, TOP_K = 4, 2


def experts_of(rows: int, *, experts: int = 8, seed: int = 0, layers: int = LAYERS, top_k: int = TOP_K) -> np.ndarray:
    """Ids as a router gives them: within a row and layer all different."""
    source = np.random.default_rng(seed)
    return np.argsort(source.random((rows, layers, experts)), axis=2)[:, :, :top_k].astype(np.int32)


def raw_text(experts: np.ndarray, dtype: str = "<i4") -> str:
    return base64.b64encode(experts.astype(dtype).tobytes()).decode()


def npy_text(experts: np.ndarray, dtype: str = "u1") -> str:
    stream = io.BytesIO()
    np.save(stream, experts.astype(dtype))
    return base64.b64encode(stream.getvalue()).decode()


def dumped(answer: object) -> bytes:
    """Compact, as the workers' JSON is."""
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def generate_answer(value: object, text: str = "hi", **meta: object) -> dict[str, object]:
    meta_info = {"id": "r1", "finish_reason": {"type": "stop"}, "routed_experts": value, "prompt_tokens": 11, **meta}
    return {"text": text, "output_ids": [1, 2], "meta_info": meta_info}


def events(*answers: object) -> bytes:
    return b"".join(b"data: " + dumped(answer) + b"\n\n" for answer in answers) + b"data: [DONE]\n\n"

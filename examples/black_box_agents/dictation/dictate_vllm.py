"""For vLLM (``--logits-processors dictate_vllm:Dictation``, this directory on its ``PYTHONPATH``): dictated ids."""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Dictation(AdapterLogitsProcessor):
    """Leaves one token possible wherever ``vllm_xargs.dictated`` has one."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        dictated = (params.extra_args or {}).get("dictated")
        if not dictated:
            return None

        def dictate(output_ids: list[int], logits: Any) -> Any:
            if len(output_ids) < len(dictated):
                logits.fill_(float("-inf"))
                logits[int(dictated[len(output_ids)])] = 0.0
            return logits

        return dictate

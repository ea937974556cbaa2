"""For SGLang (``--enable-custom-logit-processor``, this directory on its ``PYTHONPATH``): ids that are dictated."""

from __future__ import annotations

from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class Dictation(CustomLogitProcessor):
    """Leaves one token possible wherever ``custom_params.dictated`` has one."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
        for row, params in enumerate(custom_param_list or ()):
            dictated, said = params["dictated"], len(params["__req__"].output_ids)
            if said < len(dictated):
                logits[row].fill_(float("-inf"))
                logits[row][dictated[said]] = 0.0
        return logits

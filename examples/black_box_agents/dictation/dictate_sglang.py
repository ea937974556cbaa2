"""For SGLang (``--enable-custom-logit-processor``, this directory on its ``PYTHONPATH``): ids that are dictated."""

from __future__ import annotations

from typing import Any

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor


class Dictation(CustomLogitProcessor):
    """Makes the token that ``custom_params.dictated`` has for this place the likeliest; at temperature 0 it is taken.

    SGLang computes logprobs behind this, so those of dictated tokens are its own, but of these altered logits.
    """

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]] | None = None) -> Any:
        for row, params in enumerate(custom_param_list or ()):
            dictated, said = params["dictated"], len(params["__req__"].output_ids)
            if said < len(dictated):
                logits[row][dictated[said]] = logits[row].max() + 0.01
        return logits

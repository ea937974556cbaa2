"""Trains the small byte-level BPE that is shipped in ``assets/`` from ``assets/corpus.txt``.

Run ``python -m router_core.reference_engine.train_tokenizer [DIRECTORY]``. The same corpus gives the same
``tokenizer.json``. Ids: the 256 bytes, then the merges, then the added tokens, in Qwen3's order of meaning.
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from router_core.reference_engine.tokenizer import ASSETS

VOCABULARY_SIZE = 1024
"""Tokens in all, the added ones included."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Never shown in decoded text."""

PLAIN_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""One id each, but shown in decoded text, as Qwen3 has them."""

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(corpus: str) -> Tokenizer:
    """Return a BPE trained on ``corpus``; it has no normaliser, so decoding gives back what was encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(PLAIN_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([corpus], trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in PLAIN_TOKENS])
    return tokenizer


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    """Return what transformers reads beside ``tokenizer.json``; the chat template has a file of its own."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "rstrip": False,
                "single_word": False,
                "normalized": False,
                "special": token in SPECIAL_TOKENS,
            }
            for token in SPECIAL_TOKENS + PLAIN_TOKENS
        },
    }


def main(directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``directory``."""
    tokenizer = train((ASSETS / "corpus.txt").read_text(encoding="utf-8"))
    tokenizer.save(str(directory / "tokenizer.json"))
    config = json.dumps(tokenizer_config(tokenizer), indent=2)
    (directory / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS)

import filecmp
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from router_core.reference_engine.tokenizer import ASSETS, TextStream, Tokenizer
from router_core.reference_engine.train_tokenizer import main

TOKENIZER = Tokenizer()
ids = st.lists(st.integers(0, TOKENIZER.vocabulary_size - 1), max_size=40)


@given(st.text())
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text), skip_special_tokens=False) == text


@given(ids, st.booleans())
def test_decoding_is_that_of_the_tokenizers_library(token_ids: list[int], skip: bool) -> None:
    theirs = TOKENIZER._tokenizer.decode(token_ids, skip_special_tokens=skip)
    assert TOKENIZER.decode(token_ids, skip) == theirs


@given(ids)
def test_streamed_text_adds_up_and_never_splits_a_character(token_ids: list[int]) -> None:
    stream = TextStream(TOKENIZER)
    pieces = [stream.add([token_id]) for token_id in token_ids]
    pieces.append(stream.add([], is_last=True))
    assert "".join(pieces) == TOKENIZER.decode(token_ids)


def test_a_character_is_held_back_until_its_bytes_are_there() -> None:
    token_ids = TOKENIZER.encode("🚀")
    stream = TextStream(TOKENIZER)
    assert len(token_ids) > 1
    assert [stream.add([token_id]) for token_id in token_ids] == [""] * (len(token_ids) - 1) + ["🚀"]


def test_turns_are_marked_by_single_ids() -> None:
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>"):
        assert TOKENIZER.encode(token) == [TOKENIZER.id_of(token)]
    assert TOKENIZER.eos_token == "<|im_end|>"
    assert TOKENIZER.decode(TOKENIZER.encode("<|im_start|>a<think>b</think><|im_end|>")) == "a<think>b</think>"


def test_training_again_gives_the_shipped_files(tmp_path: Path) -> None:
    main(tmp_path)
    names = ["tokenizer.json", "tokenizer_config.json"]
    assert filecmp.cmpfiles(tmp_path, ASSETS, names, shallow=False) == (names, [], [])


def test_what_is_shipped_is_small() -> None:
    assert sum(path.stat().st_size for path in ASSETS.iterdir()) < 2_000_000

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_hf_tokenizer.tokenizer import HfTokenizer, byte_ends, character_ends, load

from router_core import Reject
from router_core.reference_engine.tokenizer import ASSETS
from router_core.reference_engine.tokenizer import Tokenizer as Reference


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return load(str(ASSETS), chat_template=None, max_characters=10_000)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


def made(directory: Path, *, model, decoder, pre=None, normalizer=None, post=None, special=()) -> HfTokenizer:
    """A tokenizer built of the library's parts, saved and loaded as a user's would be."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(model)
    backend.decoder = decoder
    backend.add_special_tokens(list(special))
    if pre is not None:
        backend.pre_tokenizer = pre
    if normalizer is not None:
        backend.normalizer = normalizer
    if post is not None:
        backend.post_processor = post
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(directory)
    return load(str(directory), chat_template=None, max_characters=10_000)


TEXTS = st.lists(
    st.sampled_from(
        ["hello", " world", "\n", "<|im_start|>", "<|im_end|>", "你好", "🦀", "é", "e\u0301", "  ", "'s", "12"]
    )
).map("".join) | st.text(max_size=20)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_ids_are_those_of_the_engine_and_each_ends_where_its_bytes_do(tokenizer, reference, texts) -> None:
    assert tokenizer.encode_batch(texts) == [reference.encode(text) for text in texts]
    for text, (ids, ends) in zip(texts, tokenizer.encode_with_ends(texts), strict=True):
        assert ids == reference.encode(text)
        pieces = [reference.token_bytes([token_id], skip_special_tokens=False) for token_id in ids]
        assert ends == [sum(map(len, pieces[: count + 1])) for count in range(len(pieces))]
        assert tokenizer.token_bytes(ids) == pieces
        assert tokenizer.decode(ids) == text


def test_an_id_without_a_token_has_no_bytes(tokenizer) -> None:
    assert tokenizer.token_bytes([-1, 1024, 1 << 40]) == [None, None, None]


def test_control_tokens_are_told(tokenizer, reference) -> None:
    assert {reference.eos_id, reference.id_of("<|im_start|>")} <= tokenizer.special_ids
    assert reference.id_of("h") not in tokenizer.special_ids


def test_a_chat_is_rendered_by_the_own_template_or_by_another(tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    options = {"tools": None, "add_generation_prompt": True, "template_kwargs": {}}
    assert (
        tokenizer.apply_chat_template(messages, **options) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    other = load(str(ASSETS), chat_template="{{ messages[0].content }}{{ suffix }}", max_characters=100)
    assert other.apply_chat_template(messages, **options | {"template_kwargs": {"suffix": "!"}}) == "hi!"


def test_a_text_that_is_too_long_is_refused_before_it_is_encoded(tokenizer) -> None:
    with pytest.raises(Reject, match="10001 characters are to be encoded, at most 10000 may be") as refused:
        tokenizer.encode_batch(["x" * 5000, "y" * 5001])
    assert refused.value.status == 413


def test_half_a_surrogate_pair_is_told_apart_from_text(tokenizer) -> None:
    with pytest.raises(ValueError, match="no Unicode text"):
        tokenizer.encode_with_ends(["\ud800"])


def test_many_threads_share_one_tokenizer(tokenizer, reference) -> None:
    texts = [f"text number {number} " * 20 for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda text: tokenizer.encode_with_ends([text])[0][0], texts))
    assert together == [reference.encode(text) for text in texts]


def test_tokens_that_a_model_wants_around_a_text_have_no_text(tmp_path) -> None:
    from tokenizers import decoders, models, pre_tokenizers, processors

    letters = {character: number for number, character in enumerate("abc")}
    tokenizer = made(
        tmp_path,
        model=models.BPE(vocab=letters, merges=[]),
        pre=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        post=processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 3), ("</s>", 4)]),
        special=["<s>", "</s>"],
    )
    assert tokenizer.encode_with_ends(["ab<s>"]) == [([0, 1, 3], [1, 2, 5])]
    assert tokenizer.encode_with_ends(["ab<s>"], add_special_tokens=True) == [([3, 0, 1, 3, 4], [0, 1, 2, 5, 5])]
    assert tokenizer.encode_batch(["ab"]) == [[0, 1]]


def test_where_the_text_is_normalised_a_token_ends_behind_the_characters_it_is_made_of(tmp_path) -> None:
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    tokenizer = made(
        tmp_path,
        model=models.BPE(vocab={"a": 0, "Ã": 1, "©": 2}, merges=[]),
        pre=pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoder=decoders.ByteLevel(),
        normalizer=normalizers.NFC(),
    )
    assert tokenizer.encode_with_ends(["é"]) == [([1, 2], [1, 2])]
    assert tokenizer.encode_with_ends(["ae\u0301a"]) == [([0, 1, 2, 0], [1, 4, 4, 5])]


def test_a_vocabulary_in_the_way_of_sentencepiece_has_its_bytes_too(tmp_path) -> None:
    from tokenizers import decoders, models

    vocab = {"<unk>": 0, "▁hi": 1, "<0xE4>": 2, "<0xBD>": 3, "<0xA0>": 4}
    tokenizer = made(
        tmp_path,
        model=models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True),
        decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    )
    assert tokenizer.token_bytes([1, 2, 3, 4]) == [b" hi", b"\xe4", b"\xbd", b"\xa0"]
    assert tokenizer.encode_with_ends(["你"]) == [([2, 3, 4], [1, 2, 3])]


def test_what_no_token_tells_goes_with_the_one_before_it_but_for_spaces() -> None:
    assert character_ends("ae\u0301 b", [(0, 1), (1, 2), (1, 2), (4, 5)]) == [1, 3, 3, 5]
    assert character_ends(" 🦀\u0301", [(0, 2), (1, 2), (1, 2)]) == [2, 3, 3]
    assert character_ends("a b", [(0, 1), (2, 3)]) == [1, 3]


def test_ends_in_bytes_follow_the_characters_and_reach_the_end_of_the_text() -> None:
    assert byte_ends("a你🦀 ", [1, 2, 2, 3]) == [1, 4, 4, 9]
    assert byte_ends("", []) == []


def test_a_tokenizer_that_cannot_be_read_says_where_and_what_to_do(tmp_path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"cannot be read \(see its files\)"):
        load(str(tmp_path), chat_template=None, max_characters=1)


@given(st.lists(st.integers(0, 1100), max_size=20))
def test_where_the_bytes_of_ids_are_a_text_it_is_the_one_they_decode_to(tokenizer, ids) -> None:
    assert tokenizer.decodes_by_token
    pieces = tokenizer.token_bytes(ids)
    if None not in pieces:
        try:
            text = b"".join(pieces).decode()
        except UnicodeDecodeError:
            return
        assert tokenizer.decode(ids) == text


def test_an_added_token_that_a_byte_level_decoder_reads_as_bytes_takes_that_away(tmp_path) -> None:
    from tokenizers import decoders, models, pre_tokenizers

    def of(added: str, name: str) -> HfTokenizer:
        return made(
            tmp_path / name,
            model=models.BPE(vocab={"a": 0}, merges=[]),
            pre=pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoder=decoders.ByteLevel(),
            special=[added],
        )

    assert of("<end>", "plain").decodes_by_token
    assert not of("Ġ", "space").decodes_by_token

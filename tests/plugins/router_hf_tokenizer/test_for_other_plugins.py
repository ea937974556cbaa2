"""The tokenizer as the plugins that need one use it."""

from __future__ import annotations

import pytest
from router_hf_tokenizer.tokenizer import HfTokenizer, load
from router_radix_cache.cache import encode
from router_tito.node import RenderContext
from router_tito.render import NO_CONTEXT, Renderer
from router_tito.selftest import self_test

from router_core.reference_engine.tokenizer import ASSETS, Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return load(str(ASSETS), chat_template=None, max_characters=100_000)


def test_a_template_is_rendered_and_bridged_with_it(tokenizer: HfTokenizer) -> None:
    report = self_test(Renderer(tokenizer))
    assert report.is_bridgeable
    assert report.generation_prompt == "<|im_start|>assistant\n"
    assert report.renders_tool_calls


def test_a_chat_is_encoded_as_an_engine_encodes_it(tokenizer: HfTokenizer) -> None:
    from router_tito.template import ChatTemplate

    messages = [{"role": "system", "content": "S."}, {"role": "user", "content": "你好 🦀"}]
    text = ChatTemplate(tokenizer).render(messages, NO_CONTEXT, generation_prompt=True)
    assert tokenizer.encode_batch([text]) == [Tokenizer().encode(text)]
    tools = RenderContext(({"type": "function", "function": {"name": "f", "parameters": {}}},), {})
    assert '"name": "f"' in ChatTemplate(tokenizer).render(messages, tools, generation_prompt=True)


def test_a_text_is_encoded_for_the_cache(tokenizer: HfTokenizer) -> None:
    encoded = encode(tokenizer, "你好 hello", False)
    assert encoded.ids.tolist() == Tokenizer().encode("你好 hello")
    assert encoded.ends[-1] == len("你好 hello".encode())

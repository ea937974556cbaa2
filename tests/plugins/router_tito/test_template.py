from __future__ import annotations

from typing import Any

import pytest
from router_tito.errors import TemplateRefusedError, UnrenderableError
from router_tito.node import RenderContext
from router_tito.template import LEFT_OUT, REFUSED, ChatTemplate, TemplateShape
from tito_kit import DEEPSEEK_LIKE, GLM_LIKE, LLAMA_LIKE, QWEN3_LIKE, Trained, assistant, call, tool, user

QUOTING = """
{%- for message in messages %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- {"name": call.function.name, "parameters": call.function.arguments} | tojson }}
    {%- endfor %}
{%- endfor %}
"""
NOTHING = RenderContext((), {})
IMAGE = {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]}


@pytest.mark.parametrize(
    ("template", "shape"),
    [
        (QWEN3_LIKE, TemplateShape("text", "")),
        (GLM_LIKE, TemplateShape("object", "")),
        (DEEPSEEK_LIKE, TemplateShape("text", None)),
        (LLAMA_LIKE, TemplateShape(renders_tool_calls=False)),
        (QUOTING, TemplateShape("object", "")),
        ("{{ raise_exception('never') }}", TemplateShape(renders_tool_calls=False)),
    ],
    ids=["qwen3", "glm", "deepseek", "llama", "quoting", "raising"],
)
def test_the_shape_a_template_understands_is_found_by_trying(template: str, shape: TemplateShape) -> None:
    found = ChatTemplate(Trained(template)).shape
    assert found == shape


def test_a_tool_call_is_not_lost_by_a_template_that_wants_null_beside_it() -> None:
    message = assistant("", tool_calls=[call("f", '{"x":1}')])
    text = ChatTemplate(Trained(DEEPSEEK_LIKE)).render([user("q"), message], NOTHING, generation_prompt=True)
    assert text == '<bos><|user|>q<|assistant|><call>f\n{"x":1}</call><eos><|assistant|>'


@pytest.mark.parametrize(
    ("message", "shaped"),
    [
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "assistant", "tool_calls": []}, {"role": "assistant", "content": ""}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, {"role": "user", "content": "ab"}),
        ({"role": "tool", "content": "r", "name": "f"}, {"role": "tool", "content": "r", "name": "f"}),
        (
            {"role": "assistant", "content": "x", "reasoning": "t"},
            {"role": "assistant", "content": "x", "reasoning_content": "t"},
        ),
        ({"role": "assistant", "content": "x", "reasoning_content": None}, {"role": "assistant", "content": "x"}),
    ],
)
def test_a_message_is_given_to_the_template_in_one_form(message: dict[str, Any], shaped: dict[str, Any]) -> None:
    assert ChatTemplate(Trained()).shape_message(message) == shaped


def test_arguments_become_an_object_only_where_the_template_wants_one() -> None:
    message = assistant(tool_calls=[call("f", '{"x":1}'), call("g", "{"), {"type": "custom"}])
    as_text = ChatTemplate(Trained(QWEN3_LIKE)).shape_message(message)["tool_calls"]
    as_object = ChatTemplate(Trained(GLM_LIKE)).shape_message(message)["tool_calls"]
    assert [made.get("function", {}).get("arguments") for made in as_text] == ['{"x":1}', "{", None]
    assert [made.get("function", {}).get("arguments") for made in as_object] == [{"x": 1}, "{", None]


def test_a_template_that_raises_is_an_error_with_its_words_and_the_roles() -> None:
    template = ChatTemplate(Trained("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(TemplateRefusedError, match="critic: roles must alternate"):
        template.render([{"role": "critic", "content": "x"}], NOTHING, generation_prompt=True)


def test_content_that_is_not_text_is_refused() -> None:
    with pytest.raises(UnrenderableError, match="user message"):
        ChatTemplate(Trained()).render([IMAGE], NOTHING, generation_prompt=True)


def test_a_role_the_template_leaves_out_is_refused_by_name() -> None:
    template = ChatTemplate(Trained(QWEN3_LIKE))
    messages = [user("q"), {"role": "critic", "content": " harsh "}]
    template.check_nothing_lost(messages, "q ... harsh", NOTHING)
    with pytest.raises(TemplateRefusedError, match="'critic'"):
        template.check_nothing_lost(messages, "q", NOTHING)


def test_a_known_role_the_template_has_no_case_for_is_refused_too() -> None:
    deaf = "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content }}{% endfor %}"
    template = ChatTemplate(Trained(deaf))
    messages = [user("q"), assistant("a"), tool("r")]
    assert [template.role_fault(role, NOTHING) for role in ("system", "user", "assistant", "tool")] == [
        "",
        "",
        "",
        LEFT_OUT,
    ]
    with pytest.raises(TemplateRefusedError, match="'tool'"):
        template.check_nothing_lost(messages, "q a", NOTHING)
    template.check_nothing_lost(messages[:2], "q a", NOTHING)
    assert ChatTemplate(Trained("{{ raise_exception('no') }}")).role_fault("user", NOTHING) == REFUSED

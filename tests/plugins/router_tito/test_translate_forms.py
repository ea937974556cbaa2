"""The form of tool calls is told from the chat template, and a session in each form is one sequence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from typing import Any

import orjson
import pytest
from capture_kit import captured_worker
from test_capture_engine import START, TOOLS, ask, sdk
from tito_kit import DEEPSEEK_LIKE, GLM_LIKE, QWEN3_LIKE, Trained, tool

from router_core.testing import ScriptedRequest
from router_core.testing.connection import Connection

GLM = GLM_LIKE.replace(
    "'\\n' + key + '=' + value|string",
    "'\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' + value|string + '</arg_value>'",
)
DEEPSEEK = DEEPSEEK_LIKE.replace(
    "'<call>' + call.function.name + '\\n' + call.function.arguments + '</call>'",
    "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n'"
    " + call.function.arguments + '\\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'",
)
LLAMA = """
{{- '<bos>' }}
{%- for tool in tools or [] %}{{- tool | tojson }}{%- endfor %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- for call in message.tool_calls or [] %}
        {{- '{"name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + '}' }}
    {%- else %}{{- message.content | trim }}{%- endfor %}
    {{- '<eos>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
FORMS = {
    "qwen": (QWEN3_LIKE, '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp"}}\n</tool_call>', "<|im_end|>"),
    "llama3": (LLAMA, '{"name": "ls", "parameters": {"path": "/tmp"}}', "<eos>"),
    "deepseek_v3": (
        DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ls\n```json\n"
        '{"path": "/tmp"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<eos>",
    ),
    "glm4": (
        GLM,
        "<tool_call>ls\n<arg_key>path</arg_key>\n<arg_value>/tmp</arg_value>\n</tool_call>",
        "<|observation|>",
    ),
}
"""Form -> template that writes it, a call, and what ends a turn. The kit's templates write calls in simpler forms."""


def generating(tokenizer: Trained, words: Iterator[str]) -> Callable[[ScriptedRequest, Connection], Awaitable[bool]]:
    """A handler for SGLang's ``/generate`` that says these words; the last id of each ends the turn."""

    async def handler(request: ScriptedRequest, connection: Connection) -> bool:
        if request.path != "/generate":
            return await connection.answer(b'{"data":[{"owned_by":"sglang","max_model_len":4096}]}', 200, ())
        body = request.json()
        ids = tokenizer.encode(next(words))

        def told(count: int) -> bytes:
            is_last = count == len(ids)
            meta = {
                "id": "r",
                "prompt_tokens": len(body["input_ids"]),
                "completion_tokens": count,
                "finish_reason": {"type": "stop", "matched": ids[-1]} if is_last else None,
                "output_token_logprobs": [[-0.5, token_id, None] for token_id in ids[:count]],
            }
            text = tokenizer.decode(ids[: count - is_last])
            return orjson.dumps({"text": text, "output_ids": ids[:count], "meta_info": meta})

        if not body.get("stream"):
            return await connection.answer(told(len(ids)), 200, ())
        await connection.begin(200, (), content_type="text/event-stream")
        for count in range(1, len(ids) + 1):
            await connection.write(b"data: " + told(count) + b"\n\n")
        await connection.write(b"data: [DONE]\n\n")
        return await connection.end()

    return handler


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", sorted(FORMS))
async def test_a_session_with_tools_is_one_sequence_in_each_form(form: str, stream: bool) -> None:
    template, call, close = FORMS[form]
    tokenizer = Trained(template)
    words = [call + close, f"There is a file é.{close}"]
    async with captured_worker(tokenizer=tokenizer, mode="translate") as (worker, made), sdk(made) as client:
        worker.handler = generating(tokenizer, iter(words))
        called = await ask(client, list(START), stream=stream, tools=TOOLS)
        assert called["tool_calls"][0]["function"] == {"name": "ls", "arguments": '{"path": "/tmp"}'}
        assert not called.get("content")
        messages = [*START, called, tool("a.txt", called["tool_calls"][0]["id"])]
        answered = await ask(client, messages, stream=stream, tools=TOOLS)
        assert answered["content"] == "There is a file é."
        (branch,) = made.branches()
        assert [list(view.completion_ids) for view in branch.transitions] == [tokenizer.encode(text) for text in words]
        assert all(later.is_exact_extension_of(earlier) for earlier, later in pairwise(branch.transitions))
        assert [view.finish_reason for view in branch.transitions] == ["tool_calls", "stop"]
        assert branch.is_complete and made.trace().drift == {}


async def test_the_form_can_be_set_and_switched_off() -> None:
    _, call, close = FORMS["glm4"]
    tokenizer = Trained(QWEN3_LIKE)
    for form, is_parsed in (("glm4", True), ("none", False), ("auto", False)):
        settings: dict[str, Any] = {"tokenizer": tokenizer, "mode": "translate", "tool_form": form}
        async with captured_worker(**settings) as (worker, made):
            worker.handler = generating(tokenizer, iter([call + close.replace("observation", "im_end")]))
            choice = (await made.chat(START, tools=TOOLS)).json()["choices"][0]
            assert (choice["finish_reason"] == "tool_calls") is is_parsed
            assert (choice["message"]["content"] is None) is is_parsed

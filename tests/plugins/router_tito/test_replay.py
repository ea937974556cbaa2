"""Sessions of the shapes that agents have, replayed over chat templates: one sequence each, or why not."""

from __future__ import annotations

from typing import Any

import pytest
from agent_sessions import SESSIONS, TOOLS, has_tools
from real_tokenizers import OTHERS, QWEN3, HuggingFace, needs_qwen3
from replay import replay, summary
from tito_kit import DEEPSEEK_LIKE, QWEN3_LIKE, Agent, Trained

# Llama 3.1: tools in the first question, one call an answer, results quoted as JSON for the role ipython.
LLAMA31_LIKE = """
{{- '<bos>' }}
{%- if messages[0].role == 'system' %}
    {{- '<|start|>system<|end|>\\n\\n' + messages[0].content | trim + '<|eot|>' }}{% set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|start|>ipython<|end|>\\n\\n' + message.content | tojson + '<|eot|>' }}
    {%- elif message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set function = message.tool_calls[0].function %}
        {{- '<|start|>assistant<|end|>\\n\\n{"name": "' + function.name + '", "parameters": ' }}
        {{- function.arguments | tojson + '}<|eot|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|end|>\\n\\n' }}
        {%- if loop.first and tools %}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{%- endif %}
        {{- message.content | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant<|end|>\\n\\n' }}{%- endif %}
"""

ONE: tuple[int, dict[str, int]] = (1, {})
SUMMARISED = (2, {"no_anchor": 1})
"""The summary begins a conversation that holds nothing sampled."""

# DeepSeek's template keeps in mind whether the conversation had tool results before, so that a tail of results alone
# does not say how it is written. Rendered whole, it leaves the call of an answer with a text out, and the end of the
# results once an answer follows: what the model saw is not what the template writes of it later.
EXPECTED = {
    (QWEN3_LIKE, "compacted"): SUMMARISED,
    (LLAMA31_LIKE, "compacted"): SUMMARISED,
    (DEEPSEEK_LIKE, "calls"): (3, {"template_differs": 3}),
    (DEEPSEEK_LIKE, "parallel"): (2, {"template_differs": 2}),
    (DEEPSEEK_LIKE, "reasoning"): (1, {"template_differs": 1}),
    (DEEPSEEK_LIKE, "errors"): (2, {"template_differs": 3}),
    (DEEPSEEK_LIKE, "compacted"): (3, {"template_differs": 3, "no_anchor": 1}),
}
STYLES = {"qwen": QWEN3_LIKE, "llama": LLAMA31_LIKE, "deepseek": DEEPSEEK_LIKE}


def replayed(tokenizer: Any, name: str) -> Agent:
    conversations = SESSIONS[name]
    agent = replay(tokenizer, conversations, TOOLS if any(map(has_tools, conversations)) else None)
    check_rows(agent)
    return agent


def check_rows(agent: Agent) -> None:
    """Every answer is trained once, behind exactly the prompt it was sampled on."""
    trace = agent.trace
    answers = {node.node_id for node in trace.nodes if node.is_sampled}
    branches = trace.branches()
    assert sorted(node_id for branch in branches for node_id in branch.trained) == sorted(answers)
    prompts = dict(zip(sorted(answers), (list(prompt.ids) for prompt in agent.prompts), strict=True))
    for branch in branches:
        for turn in branch.transitions:
            assert list(turn.prompt_ids) == prompts[turn.node.node_id]
            assert list(branch.token_ids[: turn.node.end]) == [*turn.prompt_ids, *turn.completion_ids]


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("style", STYLES)
def test_a_session_is_one_sequence_where_its_template_permits(style: str, name: str) -> None:
    template = STYLES[style]
    assert summary(replayed(Trained(template), name)) == EXPECTED.get((template, name), ONE)


@needs_qwen3
@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_is_one_sequence_of_the_real_qwen3(name: str) -> None:
    assert summary(replayed(HuggingFace(QWEN3), name)) == (SUMMARISED if name == "compacted" else ONE)


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize(
    "folder", OTHERS or [pytest.param("", marks=pytest.mark.skip("TOKENIZER_DIRS names no folder"))]
)
def test_a_session_is_one_sequence_of_another_real_model(folder: str, name: str) -> None:
    branches, why = summary(replayed(HuggingFace(folder), name))
    assert branches == (2 if name == "compacted" else 1) or "template_differs" in why

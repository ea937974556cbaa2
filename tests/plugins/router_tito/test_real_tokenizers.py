"""The exact cases and the bridge with real tokenizers, when the environment names their folders."""

from __future__ import annotations

from typing import Any

import exact_cases
import pytest
import test_exact_cases as exact
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_tokenizers import OTHERS, QWEN3, HuggingFace, needs_qwen3
from router_tito.render import Renderer
from router_tito.selftest import self_test
from router_tito.trace import Trace
from test_properties import TAILS, TEXTS
from tito_kit import Agent, Qwen3Cut, answer, assistant, call, system, tool, user


@pytest.fixture(scope="module")
def qwen3() -> HuggingFace:
    return HuggingFace(QWEN3)


@needs_qwen3
@pytest.mark.parametrize("name", [name for name in dir(exact) if name.startswith("test_")])
def test_the_exact_cases_hold_with_the_real_tokenizer(
    name: str, qwen3: HuggingFace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_cases, "Qwen3Cut", lambda: qwen3)
    case = getattr(exact, name)
    for mark in getattr(case, "pytestmark", []):
        for value in mark.args[1]:
            case(**{mark.args[0]: value})
    if not hasattr(case, "pytestmark"):
        case()


@needs_qwen3
def test_the_cut_out_tokenizer_is_the_real_one_where_it_reaches(qwen3: HuggingFace) -> None:
    messages = [system("S."), user("q1"), assistant("done", tool_calls=[call("f", '{"x":1}')]), tool("r1"), user("q2")]
    cut, real = (Renderer(tokenizer).render(messages).ids for tokenizer in (Qwen3Cut(), qwen3))
    assert cut == real


@needs_qwen3
def test_qwen3_passes_the_self_test(qwen3: HuggingFace) -> None:
    report = self_test(Renderer(qwen3))
    assert set(report.bridges.values()) == {""}
    assert (report.lost_roles, report.arguments, report.keeps_thinking) == ([], "text", False)


@needs_qwen3
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_qwen3_bridges_are_whole_renderings(qwen3: HuggingFace, data: Any) -> None:
    _check_bridges(qwen3, data, "{}<|im_end|>")


@pytest.mark.parametrize(
    "folder", OTHERS or [pytest.param("", marks=pytest.mark.skip("TOKENIZER_DIRS names no folder"))]
)
def test_another_tokenizer_is_bridged_exactly_or_not_at_all(folder: str) -> None:
    tokenizer = HuggingFace(folder)
    renderer = Renderer(tokenizer)
    for roles, fault in self_test(renderer).bridges.items():
        trace = Trace()
        first = renderer.render([user("q")])
        whole = renderer.render([user("q"), assistant("ok"), user("u")]).ids
        completion = tokenizer.encode_batch(["ok"])[0]
        completion.append(whole[len(first.ids) + len(completion)])
        tail = [{"role": role, "content": f"text {index}"} for index, role in enumerate(roles.split("+"))]
        trace.commit(trace.prepare_turn([user("q")]), answer(completion, assistant("ok"), first))
        prompt = renderer.render_turn(trace.prepare_turn([user("q"), assistant("ok"), *tail]))
        assert (prompt.how == "bridge") == (not fault)
        assert prompt.ids == renderer.render([user("q"), assistant("ok"), *tail]).ids


def _check_bridges(tokenizer: Any, data: Any, written: str) -> None:
    agent = Agent(tokenizer)
    messages: list[dict[str, Any]] = [system("s"), user(data.draw(TEXTS))]
    for _ in range(data.draw(st.integers(1, 3))):
        content = data.draw(st.sampled_from(["ok", "the city", "x y"]))
        agent.ask(messages, written.format(content), assistant(content))
        messages = [*messages, assistant(content)]
        messages += [{"role": role, "content": data.draw(TEXTS)} for role in data.draw(TAILS)]
    prompt = agent.renderer.render_turn(agent.trace.prepare_turn(messages))
    assert prompt.how == "bridge"
    assert prompt.ids == agent.renderer.render(messages).ids

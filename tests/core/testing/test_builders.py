"""Exchanges, workers and answers that stand alone."""

import pytest

from router_core import Identity, PluginSettings, Session, WorkerState
from router_core.testing import build_answer, build_exchange, build_worker


async def test_a_built_exchange_is_read_like_a_real_one():
    exchange = build_exchange("/generate?x=1", json={"text": "hi"}, headers=[("X-Rack", "b")], session_id="s1")
    assert (exchange.target, exchange.request.query) == ("/generate", b"x=1")
    assert await exchange.request.json() == {"text": "hi"}
    assert exchange.request.headers.get("x-rack") == "b"
    assert (exchange.session_id, exchange.session) == ("s1", None)
    exchange.request.set_key("text", "ho")
    assert await exchange.request.body() == b'{"text":"ho"}'


async def test_a_built_exchange_has_session_identity_and_settings():
    settings = PluginSettings(weight=2)
    session = Session("s2", opened_at=0.0)
    exchange = build_exchange(session=session, identity=Identity(group="g"), settings=settings)
    assert (exchange.session, exchange.session_id, exchange.identity.group) == (session, "s2", "g")
    assert exchange.settings(object()) is settings


async def test_a_built_exchange_runs_no_background_work():
    async def work():
        pass

    with pytest.raises(RuntimeError, match="use a running_router"):
        build_exchange().spawn(work(), name="later")


def test_built_workers_differ():
    one, other = build_worker(labels={"rack": "b"}, inflight=3), build_worker(state=WorkerState.QUARANTINED)
    assert one.url != other.url and one.labels == {"rack": "b"} and one.inflight == 3
    assert one.is_ready and not other.is_ready


async def test_built_answers_are_whole_or_streamed():
    assert await build_answer(json={"a": 1}).body() == b'{"a":1}'
    assert build_answer(body=b"x", headers=[("X-A", "1")]).headers.get("x-a") == "1"
    assert [chunk async for chunk in build_answer(chunks=[b"a", b"b"]).chunks] == [b"a", b"b"]

"""How hooks run: their order, and what a plugin that misbehaves costs: its own exchange, and no other."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy
import pytest

from router_core import (
    Answer,
    Attempt,
    CallNext,
    Exchange,
    Identity,
    Outcome,
    OutcomeKind,
    PluginSettings,
    Reject,
    StateKey,
    Worker,
    WorkerFault,
    WorkerLost,
    WorkerUnreachable,
    hookimpl,
)
from router_core.hookspecs import ASYNC, IN_REQUEST
from router_core.testing import (
    Faults,
    RawClient,
    ScriptedWorker,
    build_request,
    build_worker,
    exchange_once,
    reply,
    reply_pieces,
)

Serve = Callable[..., Awaitable[Any]]
ASK = {"text": "hi"}
FAILING = [hook for hook in IN_REQUEST if hook not in ("response_chunk", "response_end")]
"""Hooks whose failure fails their exchange; the others are observers."""


# --------------------------------------------------------------------------------------------------------------- order
def tracing(plugin: str, seen: list[str]) -> type[Any]:
    """A plugin that notes every hook it is called in and changes nothing."""

    class Tracing:
        name = plugin

        @hookimpl
        def identify(self, exchange: Exchange) -> None:
            seen.append(f"identify {plugin}")

        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            seen.append(f"request_start {plugin}")

        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
            seen.append(f"around_upstream {plugin} in")
            answer: Answer = await call_next(exchange)
            seen.append(f"around_upstream {plugin} out")
            return answer

        @hookimpl
        def filter_workers(self, workers: Any) -> Any:
            seen.append(f"filter_workers {plugin}")
            return workers

        @hookimpl
        def score_workers(self) -> None:
            seen.append(f"score_workers {plugin}")

        @hookimpl
        def pick_worker(self) -> None:
            seen.append(f"pick_worker {plugin}")

        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            assert attempt.worker.inflight == 1
            assert attempt.request_sent is False
            seen.append(f"attempt_start {plugin}")

        @hookimpl
        async def response_start(self, answer: Answer) -> None:
            seen.append(f"response_start {plugin} {answer.status}")

        @hookimpl
        def response_chunk(self, chunk: bytes) -> None:
            seen.append(f"response_chunk {plugin} {chunk.decode()}")

        @hookimpl
        def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
            assert all(attempt.worker.inflight == 0 for attempt in exchange.attempts)
            seen.append(f"response_end {plugin} {outcome.kind}")

    return Tracing


async def test_the_order_of_all_hooks(serve: Serve) -> None:
    seen: list[str] = []
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(tracing("a", seen), tracing("b", seen)))
        worker.handler = reply(b"x")
        assert (await exchange_once(router.port)).status == 200
        await router.ends.wait()
    assert seen == [
        "identify a",
        "identify b",
        "request_start a",
        "request_start b",
        "around_upstream a in",
        "around_upstream b in",
        "filter_workers a",
        "filter_workers b",
        "score_workers a",
        "score_workers b",
        "pick_worker a",
        "pick_worker b",
        "attempt_start a",
        "attempt_start b",
        "around_upstream b out",
        "around_upstream a out",
        "response_start b 200",
        "response_start a 200",
        "response_chunk a x",
        "response_chunk b x",
        "response_end a ok",
        "response_end b ok",
    ]


async def test_async_hooks_that_have_nothing_to_await_may_be_plain(serve: Serve) -> None:
    seen: list[str] = []

    class Plain:
        @hookimpl
        def request_start(self) -> None:
            seen.append("request_start")

        @hookimpl
        def around_upstream(self, exchange: Exchange, call_next: Any) -> Any:
            seen.append("around_upstream")
            return call_next(exchange)

        @hookimpl
        def attempt_start(self, attempt: Attempt) -> None:
            seen.append("attempt_start")

        @hookimpl
        def response_start(self, answer: Answer) -> None:
            seen.append(f"response_start {answer.status}")

    hooks = ["request_start", "around_upstream", "attempt_start", "response_start 200"]
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Plain,))
        assert (await exchange_once(router.port, json=ASK)).status == 200
        assert seen == hooks
        router.application.plans.time_hooks()  # and wrapped
        assert (await exchange_once(router.port, json=ASK)).status == 200
        assert seen == hooks * 2
        times = router.application.plans.times
        assert {time.hook for time in times if time.calls} >= {hook.split()[0] for hook in hooks}


@pytest.mark.parametrize("is_timed", [False, True])
async def test_a_plain_hook_may_give_what_is_to_be_awaited(serve: Serve, is_timed: bool) -> None:
    """Not only a coroutine: a task of its own, too."""

    async def put(exchange: Exchange) -> None:
        await asyncio.sleep(0)
        exchange.request.headers.set("x-put", "1")

    async def tell(answer: Answer) -> None:
        await asyncio.sleep(0)
        answer.headers.set("x-told", "1")

    class Plain:
        @hookimpl
        def request_start(self, exchange: Exchange) -> Any:
            return asyncio.ensure_future(put(exchange))

        @hookimpl
        def response_start(self, answer: Answer) -> Any:
            return asyncio.ensure_future(tell(answer))

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Plain,))
        if is_timed:
            router.application.plans.time_hooks()
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-told")) == (200, "1")
        assert worker.requests[0].get("x-put") == "1"


@pytest.mark.parametrize("is_timed", [False, True])
@pytest.mark.parametrize("hook", ["request_start", "attempt_start", "response_start"])
async def test_a_plain_hook_that_runs_out_of_something_fails(serve: Serve, hook: str, is_timed: bool) -> None:
    """Its StopIteration is no coroutine's answer."""

    def fails(self: Any) -> None:
        next(iter(()))

    plain = type("Plain", (), {hook: hookimpl(fails)})
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(plain,))
        if is_timed:
            router.application.plans.time_hooks()
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.json()["error"]["hook"]) == (500, hook)


@pytest.mark.parametrize("is_timed", [False, True])
async def test_a_plain_request_start_may_answer_and_what_is_no_answer_is_refused(serve: Serve, is_timed: bool) -> None:
    class Plain:
        @hookimpl
        def request_start(self, exchange: Exchange) -> Any:
            return Answer(418) if "x-tea" in exchange.request.headers else "tea"

    router = await serve(classes=(Plain,))
    if is_timed:
        router.application.plans.time_hooks()
    assert (await exchange_once(router.port, headers=[("x-tea", "1")])).status == 418
    answer = await exchange_once(router.port)
    assert (answer.status, answer.json()["error"]["code"]) == (500, "plugin_error")
    assert "'tea'" in answer.json()["error"]["message"]


async def test_a_plain_layer_that_gives_nothing_to_await_has_failed(serve: Serve) -> None:
    class Plain:
        @hookimpl
        def around_upstream(self) -> Any:
            return 5

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Plain,))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.json()["error"]["code"]) == (500, "plugin_error")


async def test_a_plain_layer_may_pass_the_request_straight_on(serve: Serve) -> None:
    """Of its place in the onion nothing is lost: what is behind it is called once, and its errors are not its own."""
    seen: list[str] = []

    class Passes:
        @hookimpl
        def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
            seen.append("passes")
            return call_next(exchange)

    class Inner:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Answer:
            seen.append("inner")
            await call_next(exchange)
            raise ValueError("no")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(tracing("outer", seen), Passes, Inner))
        answer = await exchange_once(router.port, json=ASK)
    assert (answer.status, answer.json()["error"]["code"]) == (500, "plugin_error")
    assert "'inner'" in answer.json()["error"]["message"]
    assert [name for name in seen if name in ("passes", "inner")] == ["passes", "inner"]


@pytest.mark.parametrize("value", [(), (Answer(200, body=b"not its answer"),)], ids=["nothing", "an answer"])
async def test_a_plain_layer_that_raises_stop_iteration_has_not_answered(serve: Serve, value: tuple[Any, ...]) -> None:
    class Raises:
        @hookimpl
        def around_upstream(self) -> Any:
            raise StopIteration(*value)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Raises,))
        answer = await exchange_once(router.port, json=ASK)
    assert (answer.status, answer.get("x-router-error")) == (500, "plugin_error")
    assert "StopIteration" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("on_error", "status"), [("fail", 500), ("skip", 200)])
async def test_a_plain_layer_that_raises_has_failed_where_it_is_awaited(
    serve: Serve, on_error: str, status: int
) -> None:
    class Raises:
        @hookimpl
        def around_upstream(self, call_next: CallNext) -> Awaitable[Answer]:
            raise ValueError("no")

    setattr(Raises, "on_error", on_error)  # noqa: B010  # of the class, as a plugin says it
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Raises,))
        answer = await exchange_once(router.port, json=ASK)
    assert answer.status == status


async def test_a_plain_layer_that_calls_on_and_raises_has_failed_though_it_is_to_be_skipped(serve: Serve) -> None:
    begun: list[Any] = []

    class Raises:
        on_error = "skip"

        @hookimpl
        def around_upstream(self, exchange: Exchange, call_next: CallNext) -> Awaitable[Answer]:
            begun.append(call_next(exchange))
            raise ValueError("no")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Raises,))
        answer = await exchange_once(router.port, json=ASK)
        assert answer.status == 500
        assert not worker.requests
    begun[0].close()


async def test_an_answer_of_request_start_skips_the_worker_and_what_is_around_it(serve: Serve) -> None:
    seen: list[str] = []

    class Answers:
        @hookimpl
        async def request_start(self) -> Answer:
            return Answer(418, body=b"no")

    router = await serve(classes=(tracing("a", seen), Answers, tracing("b", seen)))
    answer = await exchange_once(router.port)
    assert (answer.status, answer.body) == (418, b"no")
    (outcome,) = await router.ends.wait()
    assert (outcome.kind, outcome.status) == (OutcomeKind.REJECTED, 418)
    assert seen == [
        "identify a",
        "identify b",
        "request_start a",
        "response_start b 418",
        "response_start a 418",
        "response_chunk a no",
        "response_chunk b no",
        "response_end a rejected",
        "response_end b rejected",
    ]


# ---------------------------------------------------------------------------------------------------- what goes wrong


def misbehaving(hook: str, what: Callable[[], Any], on_error: str = "fail") -> type[Any]:
    """A plugin whose ``hook`` does ``what`` for requests with the header ``x-bad``; it may return an awaitable."""

    def is_meant(arguments: dict[str, Any]) -> bool:
        return "x-bad" in arguments["exchange"].request.headers

    async def async_hook(**arguments: Any) -> Any:
        if is_meant(arguments):
            done = what()
            return await done if inspect.isawaitable(done) else done
        return await arguments["call_next"](arguments["exchange"]) if "call_next" in arguments else None

    def plain_hook(**arguments: Any) -> Any:
        return what() if is_meant(arguments) else None

    body = async_hook if hook in ASYNC else plain_hook
    names = {"around_upstream": "exchange, call_next"}.get(hook, "exchange")
    given = ", ".join(f"{name}={name}" for name in names.split(", "))
    keyword, wait = ("async def", "await ") if hook in ASYNC else ("def", "")
    scope: dict[str, Any] = {"body": body}
    exec(f"{keyword} {hook}(self, {names}):\n    return {wait}body({given})", scope)
    return type("Misbehaving", (), {hook: hookimpl(scope[hook]), "on_error": on_error})


async def hang() -> None:
    await asyncio.Event().wait()


async def cancel_itself() -> None:
    task = asyncio.create_task(hang())
    await asyncio.sleep(0)
    task.cancel()
    await task


def raising(error: BaseException) -> Callable[[], Any]:
    def what() -> Any:
        raise error

    return what


RAISES = [ValueError("x"), StopIteration(), TimeoutError(), SystemExit(3), asyncio.CancelledError(), RecursionError()]
NONSENSE = ["text", 7, {"a": 1}, [7], Answer, {None: 0.5}]


async def both(serve: Serve, plugin: type[Any], **options: Any) -> tuple[Any, Any]:
    """The answer to a bad request, and to a good one that ran beside it from before to after."""
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(plugin,), **options)
        worker.handler = reply(b"good")
        go = asyncio.Event()
        worker.fault(Faults.hold(go), when=lambda request: request.get("x-good") is not None)
        good = asyncio.create_task(exchange_once(router.port, headers=[("X-Good", "1")], json=ASK))
        await worker.wait_for_requests(1)
        bad = await exchange_once(router.port, headers=[("X-Bad", "1")], json=ASK)
        go.set()
        answer = await good
        await router.settle()
        assert (await exchange_once(router.port, json=ASK)).body == b"good"
        return bad, answer


@pytest.mark.parametrize("hook", FAILING)
@pytest.mark.parametrize("error", RAISES, ids=lambda error: type(error).__name__)
async def test_a_hook_that_raises_fails_its_exchange_and_no_other(serve: Serve, hook: str, error: Exception) -> None:
    bad, good = await both(serve, misbehaving(hook, raising(error)))
    assert (bad.status, bad.get("x-router-error"), bad.clean) == (500, "plugin_error", True)
    assert (bad.json()["error"]["plugin"], bad.json()["error"]["hook"]) == ("misbehaving", hook)
    assert (good.status, good.body) == (200, b"good")


@pytest.mark.parametrize("hook", ["response_chunk", "response_end"])
@pytest.mark.parametrize("error", RAISES, ids=lambda error: type(error).__name__)
async def test_an_observer_that_raises_costs_nothing(serve: Serve, hook: str, error: Exception) -> None:
    bad, good = await both(serve, misbehaving(hook, raising(error)))
    assert (bad.status, bad.body, bad.clean) == (200, b"good", True)
    assert (good.status, good.body) == (200, b"good")


@pytest.mark.parametrize("hook", ["request_start", "attempt_start", "response_start"])
@pytest.mark.parametrize("what", [hang, cancel_itself])
async def test_an_async_hook_that_hangs_or_cancels_itself_fails_its_exchange(
    serve: Serve, hook: str, what: Any
) -> None:
    bad, good = await both(serve, misbehaving(hook, what), router={"hook_timeout_s": 0.05})
    assert (bad.status, bad.get("x-router-error")) == (500, "plugin_error")
    assert good.status == 200
    if what is hang:
        assert "router.hook_timeout_s" in bad.json()["error"]["message"]


async def test_an_onion_layer_that_cancels_itself_fails_its_exchange(serve: Serve) -> None:
    bad, good = await both(serve, misbehaving("around_upstream", cancel_itself))
    assert (bad.status, bad.get("x-router-error")) == (500, "plugin_error")
    assert good.status == 200


@pytest.mark.parametrize("hook", [hook for hook in FAILING if hook not in ("attempt_start", "response_start")])
@pytest.mark.parametrize("answer", NONSENSE, ids=repr)
async def test_a_hook_that_answers_nonsense_fails_its_exchange(serve: Serve, hook: str, answer: Any) -> None:
    bad, good = await both(serve, misbehaving(hook, lambda: answer))
    assert (bad.status, bad.get("x-router-error")) == (500, "plugin_error")
    assert bad.json()["error"]["hook"] == hook
    assert (good.status, good.body) == (200, b"good")


async def test_an_onion_layer_that_answers_none_fails_its_exchange(serve: Serve) -> None:
    bad, good = await both(serve, misbehaving("around_upstream", lambda: None))
    assert (bad.status, bad.get("x-router-error")) == (500, "plugin_error")
    assert good.status == 200


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), float("inf"), 10**400, numpy.float64(1.1), True, "1", None])
async def test_a_score_outside_0_to_1_is_a_plugin_error(serve: Serve, score: Any) -> None:
    answer = await scored(serve, lambda workers: dict.fromkeys(workers, score))
    assert (answer.status, answer.get("x-router-error")) == (500, "plugin_error")


async def test_a_stranger_is_no_worker_though_a_filter_gave_one_twice(serve: Serve) -> None:
    class Twice:
        @hookimpl
        def filter_workers(self, workers: Any) -> Any:
            return [*workers, *workers]

        @hookimpl
        def score_workers(self, workers: Any) -> Any:
            return {workers[0]: 0.5, build_worker("http://stranger:1"): 1.0}

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Twice,))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-error")) == (500, "plugin_error")


async def scored(serve: Serve, scores: Callable[[Any], Any]) -> Any:
    """The answer to a request whose workers get these scores."""

    class Scores:
        @hookimpl
        def score_workers(self, workers: Any) -> Any:
            return scores(workers)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Scores,))
        return await exchange_once(router.port, json=ASK)


@pytest.mark.parametrize("pair", [(), (b"x-one",), (b"a", b"b", b"c")])
async def test_a_field_that_is_no_pair_sends_nothing(serve: Serve, pair: Any) -> None:
    class Spoils:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            attempt.request.headers.raw.insert(0, pair)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Spoils,))
        assert (await exchange_once(router.port, json=ASK)).status == 500
        assert worker.requests == []


class _Float(float):
    pass


@pytest.mark.parametrize("score", [1, 0, _Float(0.5), numpy.float64(0.5)], ids=repr)
async def test_a_score_may_be_any_float_and_0_or_1(serve: Serve, score: Any) -> None:
    assert (await scored(serve, lambda workers: dict.fromkeys(workers, score))).status == 200


async def test_what_only_equals_a_worker_is_none(serve: Serve) -> None:
    class Like:
        def __init__(self, worker: Worker) -> None:
            self.worker = worker

        def __eq__(self, other: object) -> bool:
            return other is self.worker

        def __hash__(self) -> int:
            return hash(self.worker)

    answer = await scored(serve, lambda workers: {Like(workers[0]): 1.0})
    assert (answer.status, answer.get("x-router-error")) == (500, "plugin_error")


async def test_a_worker_that_was_not_given_is_a_plugin_error(serve: Serve) -> None:
    alien = Worker(id="w", base_id="w", url="http://h", key="http://h", base_url="http://h", dp_rank=None, generation=1)
    for hook, answer in (("filter_workers", [alien]), ("score_workers", {alien: 1.0}), ("pick_worker", alien)):
        bad, good = await both(serve, misbehaving(hook, lambda answer=answer: answer))
        assert (bad.status, bad.json()["error"]["hook"]) == (500, hook)
        assert good.status == 200


@pytest.mark.parametrize("hook", FAILING)
async def test_a_plugin_that_says_skip_is_skipped_where_it_raises(serve: Serve, hook: str) -> None:
    bad, good = await both(serve, misbehaving(hook, raising(ValueError("x")), on_error="skip"))
    assert (bad.status, bad.body, good.body) == (200, b"good", b"good")


@pytest.mark.parametrize("hook", [hook for hook in FAILING if hook not in ("attempt_start", "response_start")])
@pytest.mark.parametrize("answer", ["text", [7]], ids=repr)
async def test_a_plugin_that_says_skip_is_skipped_where_it_answers_nonsense(
    serve: Serve, hook: str, answer: Any
) -> None:
    bad, good = await both(serve, misbehaving(hook, lambda: answer, on_error="skip"))
    assert (bad.status, bad.body, good.body) == (200, b"good", b"good")


async def test_a_skipped_onion_layer_that_had_called_on_fails_its_exchange(serve: Serve) -> None:
    class Late:
        on_error = "skip"

        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
            await call_next(exchange)
            raise ValueError("after the worker was asked")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Late,))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-error")) == (500, "plugin_error")
        assert len(worker.requests) == 1
        await worker.wait_until_idle()


async def test_failures_are_counted_by_hook(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(misbehaving("request_start", raising(ValueError())),))
        for _ in range(3):
            await exchange_once(router.port, headers=[("X-Bad", "1")], json=ASK)
        (plugin,) = [p for p in router.application.registry.plugins if p.name == "misbehaving"]
        assert dict(plugin.errors) == {"request_start": 3}


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize("hook", FAILING)
@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_a_refusal_is_told_as_it_was_raised_and_counts_as_no_failure(
    serve: Serve, hook: str, on_error: str
) -> None:
    def refuse() -> None:
        raise Reject(451, "not_here", "for reasons", "x-bad", retry_after_s=2.4)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(misbehaving(hook, refuse, on_error),))
        answer = await exchange_once(router.port, headers=[("X-Bad", "1")], json=ASK)
        error = {"message": "for reasons", "type": "invalid_request_error", "code": "not_here", "param": "x-bad"}
        assert (answer.status, answer.json()) == (451, {"error": error})
        assert (answer.get("x-router-error"), answer.get("retry-after")) == ("not_here", "2")
        (outcome,) = await router.ends.wait()
        assert (outcome.kind, outcome.status, outcome.code) == (OutcomeKind.REJECTED, 451, "not_here")
        assert not any(plugin.errors for plugin in router.application.registry.plugins)


@pytest.mark.parametrize(
    "arguments",
    [(200, "x", "m"), (700, "x", "m"), ("400", "x", "m"), (400, "a b", "m"), (400, "a\r\nb", "m"), (400, 7, "m")],
)
async def test_a_refusal_that_cannot_be_told_is_a_plugin_error(serve: Serve, arguments: Any) -> None:
    bad, good = await both(serve, misbehaving("request_start", lambda: raising(Reject(*arguments))()))
    assert (bad.status, bad.get("x-router-error")) == (500, "plugin_error")
    assert good.status == 200


async def test_a_refusal_may_say_anything(serve: Serve) -> None:
    said = "lone \ud800, null \0, long " + "x" * 10_000
    bad, _ = await both(serve, misbehaving("request_start", lambda: raising(Reject(400, "odd", said, "\udfff"))()))
    assert (bad.status, json.loads(bad.body)["error"]["code"]) == (400, "odd")


async def test_a_workers_fault_passes_through_every_layer(serve: Serve) -> None:
    seen: list[type[Any]] = []

    class Sees:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
            try:
                return await call_next(exchange)  # type: ignore[no-any-return]
            except WorkerFault as fault:
                seen.append(type(fault))
                raise

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Sees,))
        worker.fault(Faults.close_before_answer())
        assert (await exchange_once(router.port, json=ASK)).status == 502
    assert (await exchange_once(router.port, json=ASK)).status == 502
    assert seen == [WorkerLost, WorkerUnreachable]


# --------------------------------------------------------------------------------------------------------- the onion
def around(layer: Callable[[Exchange, Any], Awaitable[Any]], name: str = "around") -> type[Any]:
    class Around:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Any:
            return await layer(exchange, call_next)

    Around.name = name  # type: ignore[attr-defined]
    return Around


async def test_a_layer_may_answer_without_calling_on(serve: Serve) -> None:
    async def cached(exchange: Exchange, call_next: Any) -> Answer:
        return Answer.json(200, {"cached": True})

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(around(cached),))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.json()) == (200, {"cached": True})
        assert answer.get("x-router-worker") is None
        assert worker.requests == []


async def test_a_layer_may_call_on_again_and_each_call_selects_anew(serve: Serve) -> None:
    async def thrice(exchange: Exchange, call_next: Any) -> Answer:
        for _ in range(2):
            answer = await call_next(exchange)
            assert answer.status == 500
            exchange.excluded_workers.add(exchange.worker)
            await answer.aclose()
        return await call_next(exchange)  # type: ignore[no-any-return]

    async with ScriptedWorker() as a, ScriptedWorker() as b, ScriptedWorker() as c:
        router = await serve(a, b, c, classes=(around(thrice),))
        for worker in (a, b):
            worker.fault(Faults.status(500))
        c.handler = reply(b"at last")
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.body, answer.get("x-router-worker")) == (200, b"at last", c.url)
        assert [len(worker.requests) for worker in (a, b, c)] == [1, 1, 1]
        await router.ends.wait()
        kinds = [str(attempt.outcome.kind) for attempt in router.ends.exchanges[0].attempts]
        assert kinds == ["worker_error", "worker_error", "ok"]


async def test_nobody_left_to_try_says_who_was_tried(serve: Serve) -> None:
    async def again(exchange: Exchange, call_next: Any) -> Answer:
        await call_next(exchange)
        exchange.excluded_workers.add(exchange.worker)
        return await call_next(exchange)  # type: ignore[no-any-return]

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(around(again),))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-error")) == (503, "no_worker")
        assert answer.json()["error"]["workers"] == {worker.url: "tried by this request already"}
        await worker.wait_until_idle()


async def test_answers_that_are_dropped_are_closed_with_the_exchange(serve: Serve) -> None:
    async def drops(exchange: Exchange, call_next: Any) -> Answer:
        for _ in range(3):
            await call_next(exchange)
        return Answer(200, body=b"own")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(around(drops),))
        worker.fault(Faults.stall_amid(after_pieces=1), times=None)
        answer = await exchange_once(router.port, json={**ASK, "stream": True})
        assert (answer.status, answer.body) == (200, b"own")
        await worker.wait_until_idle()
        (outcome,) = await router.ends.wait()
        assert outcome.is_ok
        attempts = router.ends.exchanges[0].attempts
        assert [(str(a.outcome.kind), a.outcome.code) for a in attempts] == [("ok", "given_up")] * 3


async def test_calls_at_the_same_time_race_and_the_losers_are_cut(serve: Serve) -> None:
    async def hedge(exchange: Exchange, call_next: Any) -> Answer:
        racing = [asyncio.create_task(call_next(exchange)) for _ in range(3)]
        done, pending = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return done.pop().result()

    async with ScriptedWorker() as a, ScriptedWorker() as b, ScriptedWorker() as c:
        router = await serve(a, b, c, classes=(around(hedge),))
        for worker in (a, b):
            worker.fault(Faults.stall())
        c.handler = reply(b"first")
        answer = await exchange_once(router.port, json=ASK)
        assert answer.body == b"first"
        for worker in (a, b):
            await worker.wait_until_idle()
        await router.ends.wait()
        attempts = router.ends.exchanges[0].attempts
        assert sorted(str(a.outcome.code) for a in attempts) == ["None", "cancelled", "cancelled"]


async def test_calls_that_a_layer_leaves_running_end_with_the_exchange(serve: Serve) -> None:
    stray: list[asyncio.Task[Any]] = []

    async def careless(exchange: Exchange, call_next: Any) -> Answer:
        stray.append(asyncio.create_task(call_next(exchange)))
        while not exchange.attempts:  # noqa: ASYNC110  # the stray call's own task has to begin
            await asyncio.sleep(0)
        return Answer(200, body=b"own")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(around(careless),))
        worker.fault(Faults.stall())
        assert (await exchange_once(router.port, json=ASK)).body == b"own"
        await asyncio.gather(*stray, return_exceptions=True)
        assert stray[0].cancelled()
        await worker.wait_until_idle()
        await router.ends.wait()
        assert router.ends.exchanges[0].attempts[0].outcome.code == "cancelled"


async def test_a_call_after_the_end_of_the_exchange_is_an_error(serve: Serve) -> None:
    kept: list[Any] = []

    async def keeps(exchange: Exchange, call_next: Any) -> Answer:
        kept.append((call_next, exchange))
        return Answer(200, body=b"own")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(around(keeps),))
        assert (await exchange_once(router.port, json=ASK)).body == b"own"
        await router.ends.wait()
        call_next, exchange = kept[0]
        with pytest.raises(RuntimeError, match="has ended"):
            await call_next(exchange)
        assert worker.requests == []


async def test_an_answer_that_was_given_up_is_no_whole_answer(serve: Serve) -> None:
    async def gives_up(exchange: Exchange, call_next: Any) -> Answer:
        answer: Answer = await call_next(exchange)
        await answer.aclose()
        return answer

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(around(gives_up),))
        worker.handler = reply_pieces([b"a", b"b"])
        answer = await exchange_once(router.port, json=ASK)
        assert answer.clean is False


async def test_a_layer_may_read_the_answer_whole(serve: Serve) -> None:
    async def reads(exchange: Exchange, call_next: Any) -> Answer:
        exchange.request.accept_identity()
        answer: Answer = await call_next(exchange)
        answer.set_body((await answer.body()).upper())
        return answer

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(around(reads),))
        worker.handler = reply_pieces([b"a", b"bc"])
        answer = await exchange_once(router.port, headers=[("Accept-Encoding", "gzip")], json=ASK)
        assert (answer.body, answer.get("content-length"), answer.clean) == (b"ABC", "3", True)
        assert worker.requests[0].values("accept-encoding") == ["identity"]
        worker.handler = reply_pieces([b"a", b"bc"])
        worker.fault(Faults.close_amid(after_pieces=1))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-error")) == (502, "worker_lost")


# ---------------------------------------------------------------------------------------------- changes of the request
async def test_changes_in_request_start_reach_every_attempt_and_those_of_an_attempt_that_one_alone(
    serve: Serve,
) -> None:
    class Changes:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            exchange.request.set_key("all", 1)
            exchange.request.headers.set("x-all", "1")

        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
            await (await call_next(exchange)).aclose()
            return await call_next(exchange)  # type: ignore[no-any-return]

        @hookimpl
        async def attempt_start(self, exchange: Exchange, attempt: Attempt) -> None:
            number = len(exchange.attempts)
            attempt.request.set_key(f"only_{number}", number)
            attempt.request.headers.set(f"x-only-{number}", "1")
            attempt.request.path = b"/attempt/%d" % number

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Changes,))
        worker.handler = reply()
        await exchange_once(router.port, body=b'{"text" :"x", "n": 1e-05}')
        bodies = [request.body for request in worker.requests]
        assert bodies == [
            b'{"text" :"x", "n": 1e-05, "all": 1, "only_1": 1}',
            b'{"text" :"x", "n": 1e-05, "all": 1, "only_2": 2}',
        ]
        for number, request in enumerate(worker.requests, 1):
            assert request.target == b"/attempt/%d" % number
            assert request.get("content-length") == str(len(request.body))
            marks = {name for name, _ in request.headers if name.startswith(b"x-") and b"forw" not in name}
            assert marks == {b"x-all", b"x-only-%d" % number}


async def test_a_replaced_body_arrives_exactly_with_its_length(serve: Serve) -> None:
    class Replaces:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            exchange.request.set_body(b"\x00exactly\xff")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Replaces,))
        worker.handler = reply()
        chunked = [("Transfer-Encoding", "chunked"), ("Content-Encoding", "gzip")]
        async with RawClient(router.port) as client:
            await client.send(build_request(headers=chunked, framed=False), b"3\r\nabc\r\n0\r\n\r\n")
            assert (await client.read_answer()).status == 200
        request = worker.requests[0]
        assert (request.body, request.get("content-length")) == (b"\x00exactly\xff", "9")
        assert request.get("content-encoding") is None


async def test_a_json_body_that_is_none_is_the_clients_fault(serve: Serve) -> None:
    class Reads:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            await exchange.request.json()

    router = await serve(classes=(Reads,))
    for body in (b"{", b"", b"[" * 100_000, b'{"a":"\xff"}'):
        answer = await exchange_once(router.port, body=body)
        assert (answer.status, answer.get("x-router-error")) == (400, "malformed_body"), body[:10]
    await router.ends.wait(4)
    assert router.ends.kinds == ["rejected"] * 4


async def test_nan_passes_through_a_plugin_that_reads_json(serve: Serve) -> None:
    seen: list[Any] = []

    class Reads:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            seen.append(await exchange.request.json())

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Reads,))
        worker.handler = reply()
        await exchange_once(router.port, body=b'{"a": NaN, "b": -Infinity}')
        assert worker.requests[0].body == b'{"a": NaN, "b": -Infinity}'
        assert seen[0]["b"] == float("-inf")


async def test_the_time_that_a_body_takes_to_come_is_not_the_hooks(serve: Serve) -> None:
    """The deadline is for plugins; a slow client is nobody's fault."""
    reading = asyncio.Event()

    class Reads:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            reading.set()
            await exchange.request.body()

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Reads,), router={"hook_timeout_s": 0.05})
        worker.handler = reply()
        async with RawClient(router.port) as client:
            await client.send(build_request(body=b"x" * 100)[:-50])
            await reading.wait()
            await asyncio.sleep(0.2)  # four deadlines
            await client.send(b"x" * 50)
            assert (await client.read_answer()).status == 200
        assert worker.requests[0].body == b"x" * 100


async def test_a_body_that_never_ends_is_given_up_when_the_client_leaves(serve: Serve) -> None:
    reading = asyncio.Event()

    class Reads:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            reading.set()
            await exchange.request.body()

    router = await serve(classes=(Reads,), router={"hook_timeout_s": 0.05})
    async with RawClient(router.port) as client:
        await client.send(build_request(body=b"x" * 100)[:-50])
        await reading.wait()
    await router.ends.wait()
    assert router.ends.kinds == ["client_left"]


# --------------------------------------------------------------------------------------------------------- selection
def judging(**hooks: Callable[..., Any]) -> type[Any]:
    class Judging:
        class Settings(PluginSettings):
            pass

        def __init__(self, settings: Settings) -> None:
            pass

    def method(call: Callable[..., Any]) -> Any:
        def filter_workers(self: Any, exchange: Exchange, workers: Any) -> Any:
            return call(workers)

        return filter_workers

    for hook, call in hooks.items():
        function = method(call)
        function.__name__ = hook
        setattr(Judging, hook, hookimpl(function))
    return Judging


async def served_by(router: Any, count: int = 1) -> list[str | None]:
    return [(await exchange_once(router.port, json=ASK)).get("x-router-worker") for _ in range(count)]


async def test_scores_are_weighted_and_summed(serve: Serve) -> None:
    async with ScriptedWorker() as a, ScriptedWorker() as b:
        first = type("First", (judging(score_workers=lambda ws: {ws[0]: 0.6}),), {})
        second = type("Second", (judging(score_workers=lambda ws: {ws[1]: 0.5}),), {})
        router = await serve(a, b, classes=(first, second))
        assert await served_by(router, 2) == [a.url, a.url]
        router = await serve(a, b, classes=(first, second), plugins={"second": {"weight": 1.3}})
        assert await served_by(router, 2) == [b.url, b.url]
        router = await serve(a, b, classes=(first, second), plugins={"first": {"weight": 0}})
        assert await served_by(router, 2) == [b.url, b.url]


async def test_scores_in_any_order_and_below_nothing_choose_the_highest(serve: Serve) -> None:
    async with ScriptedWorker() as a, ScriptedWorker() as b:
        for is_reversed in (False, True):

            def judge(workers: Any, is_reversed: bool = is_reversed) -> Any:
                pairs = [(workers[0], 0.2), (workers[1], 0.7)]
                return dict(reversed(pairs) if is_reversed else pairs)

            judging_ = judging(score_workers=judge)
            router = await serve(a, b, classes=(judging_,))
            assert await served_by(router, 2) == [b.url, b.url]

            class Settings(PluginSettings):
                weight: float = -3.0

            router = await serve(a, b, classes=(type("Judging", (judging_,), {"Settings": Settings}),))
            assert await served_by(router, 2) == [a.url, a.url]


async def test_without_opinions_the_workers_take_turns(serve: Serve) -> None:
    async with ScriptedWorker() as a, ScriptedWorker() as b, ScriptedWorker() as c:
        router = await serve(a, b, c)
        assert await served_by(router, 6) == [a.url, b.url, c.url] * 2


async def test_a_filter_that_leaves_nobody_is_named(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(judging(filter_workers=lambda ws: []),))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-router-error"), answer.get("retry-after")) == (503, "no_worker", "1")
        assert answer.json()["error"]["workers"] == {worker.url: "left out by plugin judging"}


async def test_filters_fold_and_the_first_pick_wins(serve: Serve) -> None:
    async with ScriptedWorker() as a, ScriptedWorker() as b, ScriptedWorker() as c:
        drop_first = type("DropFirst", (judging(filter_workers=lambda ws: ws[1:]),), {})
        drop_next = type("DropNext", (judging(filter_workers=lambda ws: ws[1:]),), {})
        router = await serve(a, b, c, classes=(drop_first, drop_next))
        assert await served_by(router, 2) == [c.url, c.url]
        last = type("Last", (judging(pick_worker=lambda ws: ws[-1]),), {})
        first = type("First", (judging(pick_worker=lambda ws: ws[0]),), {})
        router = await serve(a, b, c, classes=(last, first))
        assert await served_by(router, 2) == [c.url, c.url]


async def test_a_filter_that_empties_what_it_was_given_changes_nothing(serve: Serve) -> None:
    def spoil(workers: Any) -> None:
        with_clear = getattr(workers, "clear", lambda: None)
        with_clear()

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(judging(filter_workers=spoil),))
        assert await served_by(router) == [worker.url]


# ----------------------------------------------------------------------------------------- what else an exchange offers
async def test_scores_and_workers_that_a_plugin_spoils_are_spoilt_for_nobody_else(serve: Serve) -> None:
    class Spoils:
        @hookimpl
        def filter_workers(self, workers: Any) -> Any:
            return list(workers)

        @hookimpl
        def score_workers(self, workers: Any) -> None:
            workers.clear()

        @hookimpl
        def pick_worker(self, scores: Any) -> None:
            scores.clear()

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Spoils,))
        refused = await exchange_once(router.port, json=ASK)
        assert (refused.status, refused.json()["error"]["hook"]) == (500, "score_workers")  # it was given a tuple
        del Spoils.score_workers
        router = await serve(worker, classes=(Spoils,))
        refused = await exchange_once(router.port, json=ASK)
        assert (refused.status, refused.json()["error"]["hook"]) == (500, "pick_worker")


@pytest.mark.parametrize("field", ["group", "trajectory", "version_tag"])
async def test_an_identity_that_is_no_text_is_the_failure_of_who_gave_it(serve: Serve, field: str) -> None:
    class Numbers:
        @hookimpl
        def identify(self) -> Identity:
            return Identity(**{field: 5})  # type: ignore[arg-type]

    class Reads:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            assert exchange.identity.group is None or exchange.identity.group.strip()

    async with ScriptedWorker() as worker:
        router = await serve(
            worker,
            classes=(
                Numbers,
                Reads,
            ),
        )
        told = (await exchange_once(router.port, json=ASK)).json()["error"]
        assert (told["plugin"], told["hook"]) == ("numbers", "identify")


@pytest.mark.parametrize("error", [KeyError, StopIteration, asyncio.CancelledError, SystemExit])
async def test_a_check_that_fails_before_sending_is_blamed_on_no_layer(
    serve: Serve, error: type[BaseException]
) -> None:
    """And costs no other exchange, whose request is written in the same turn of the loop."""

    class Checks:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            attempt.before_send(self._check)

        def _check(self) -> None:
            raise error("what it never kept")

    class Layer:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
            answer: Answer = await call_next(exchange)
            return answer

    async with ScriptedWorker() as worker:
        router = await serve(
            worker,
            classes=(
                Checks,
                Layer,
            ),
        )
        answer = await exchange_once(router.port, json=ASK)
        told = answer.json()["error"]
        assert (answer.status, told["code"], told["hook"]) == (500, "plugin_error", "before_send")
        assert "Checks._check" in told["plugin"]


async def test_what_breaks_in_the_core_amid_an_attempt_is_blamed_on_no_layer(serve: Serve) -> None:
    class Spoils:
        @hookimpl
        async def attempt_start(self, attempt: Attempt) -> None:
            attempt.request.method = "\ud800"  # cannot be encoded

    class Layer:
        @hookimpl
        async def around_upstream(self, exchange: Exchange, call_next: Any) -> Answer:
            answer: Answer = await call_next(exchange)
            return answer

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Spoils, Layer))
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.json()["error"]["code"]) == (500, "internal_error")


async def test_identities_of_several_plugins_are_joined(serve: Serve) -> None:
    seen: list[Identity] = []

    def identifying(name: str, identity: Identity | None) -> type[Any]:
        class Identifies:
            @hookimpl
            def identify(self) -> Identity | None:
                return identity

        return type(name, (Identifies,), {})

    class Sees:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            seen.append(exchange.identity)

    first = identifying("First", Identity(group="g"))
    second = identifying("Second", Identity(group="other", version_tag="7"))
    router = await serve(classes=(first, second, identifying("Third", None), Sees))
    await exchange_once(router.port, json=ASK)
    assert seen == [Identity(group="g", version_tag="7")]


async def test_state_is_private_to_who_holds_the_key(serve: Serve) -> None:
    mine, theirs = StateKey[int]("count"), StateKey[int]("count")
    seen: list[Any] = []

    class Keeps:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            exchange.state[mine] = 1

        @hookimpl
        def response_end(self, exchange: Exchange) -> None:
            seen.extend([exchange.state[mine], mine in exchange.state, theirs in exchange.state])
            seen.append(exchange.state.get(theirs, "nothing"))

    router = await serve(classes=(Keeps,))
    await exchange_once(router.port, json=ASK)
    await router.ends.wait()
    assert seen == [1, True, False, "nothing"]


async def test_spawned_work_outlives_the_exchange_and_is_bounded(serve: Serve) -> None:
    go, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    class Spawns:
        @hookimpl
        def response_end(self, exchange: Exchange) -> None:
            exchange.spawn(work(), name="work")

    router = await serve(classes=(Spawns,), router={"max_background_tasks": 2})
    for _ in range(4):
        await exchange_once(router.port, json=ASK)
    await router.ends.wait(4)
    (plugin,) = [p for p in router.application.registry.plugins if p.name == "spawns"]
    assert plugin.errors == {"response_end": 2}
    go.set()
    async with asyncio.timeout(5):
        await done.wait()


async def test_an_exchange_may_be_interrupted_with_a_refusal(serve: Serve) -> None:
    running: list[Exchange] = []

    class Keeps:
        @hookimpl
        async def request_start(self, exchange: Exchange) -> None:
            running.append(exchange)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Keeps,))
        worker.fault(Faults.stall())
        asking = asyncio.create_task(exchange_once(router.port, json=ASK))
        await worker.wait_for_requests(1)
        running[0].interrupt(Reject(409, "moved_on", "no longer wanted"))
        running[0].interrupt(Reject(400, "second", "the first reason stands"))
        answer = await asking
        assert (answer.status, answer.get("x-router-error")) == (409, "moved_on")
        await worker.wait_until_idle()
        (outcome,) = await router.ends.wait()
        assert outcome.code == "moved_on"
        running[0].interrupt(Reject(400, "late", "it has ended"))
        assert running[0].interruption.code == "moved_on"  # type: ignore[union-attr]


async def test_an_interruption_after_the_head_breaks_the_transfer(serve: Serve) -> None:
    running: list[Exchange] = []

    class Keeps:
        @hookimpl
        async def response_start(self, exchange: Exchange) -> None:
            running.append(exchange)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Keeps,))
        worker.fault(Faults.stall_amid(after_pieces=1))
        async with RawClient(router.port) as client:
            await client.send(build_request(json={**ASK, "stream": True}))
            answer = await client.read_head()
            assert await client.read_piece(answer)
            running[0].interrupt(Reject(409, "moved_on", "no longer wanted"))
            await client.read_body(answer)
            assert answer.clean is False
        await worker.wait_until_idle()


async def test_a_response_start_may_change_status_and_headers(serve: Serve) -> None:
    class Changes:
        @hookimpl
        async def response_start(self, answer: Answer) -> None:
            answer.status = 203
            answer.headers.set("x-added", "1")
            answer.headers.remove("x-taken")

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Changes,))
        worker.handler = reply(b"{}", headers=[("X-Taken", "1")])
        answer = await exchange_once(router.port, json=ASK)
        assert (answer.status, answer.get("x-added"), answer.get("x-taken")) == (203, "1", None)
        refused = await exchange_once(router.port, json=ASK, headers=[("X-Router-Plugins", "+nobody")])
        assert refused.status == 400


async def test_hooks_take_any_of_their_arguments_by_name(serve: Serve) -> None:
    seen: list[Any] = []

    class Few:
        @hookimpl
        def pick_worker(self, scores: Any) -> None:
            seen.append(scores)

        @hookimpl
        def score_workers(self) -> None:
            seen.append(None)

        @hookimpl
        async def around_upstream(self, call_next: Any, exchange: Exchange) -> Answer:
            seen.append(exchange)
            return await call_next(exchange)  # type: ignore[no-any-return]

        @hookimpl
        def response_end(self, outcome: Outcome) -> None:
            seen.append(outcome.kind)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Few,))
        assert (await exchange_once(router.port, json=ASK)).status == 200
        await router.ends.wait()
        assert isinstance(seen[0], Exchange)
        assert seen[1:] == [None, {router.workers[0]: 0.0}, OutcomeKind.OK]

import pytest

from router_core import hookimpl
from router_core.loaded_plugin import LoadedPlugin
from router_core.outside import OutsideHooks
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router
from router_core.timing import HookTimes


async def test_a_layer_of_the_onion_is_charged_for_itself_alone():
    now = 0.0
    times = HookTimes(lambda: now)

    def work(seconds):
        nonlocal now
        now += seconds

    async def outer(exchange, call_next):
        work(1.0)
        for _ in range(2):
            answer = await call_next(exchange)
            work(0.5)
        return answer

    async def attempt(exchange):
        work(100.0)
        return "answer"

    assert await times.timed("p", "around_upstream", outer)(None, attempt) == "answer"
    (time,) = times
    assert (time.plugin, time.hook, time.calls, time.seconds) == ("p", "around_upstream", 1, 2.0)


async def test_a_hook_that_raises_is_timed_too():
    times = HookTimes()

    def plain(exchange):
        raise ValueError

    async def later(exchange):
        raise ValueError

    with pytest.raises(ValueError):
        times.timed("p", "filter_workers", plain)(None)
    with pytest.raises(ValueError):
        await times.timed("p", "request_start", later)(None)
    assert {(time.hook, time.calls) for time in times} == {("filter_workers", 1), ("request_start", 1)}


async def test_hooks_are_timed_from_startup_on_where_a_plugin_wants_it():
    class Watcher:
        times = None

        @hookimpl
        async def startup(self, router):
            type(self).times = router.time_hooks()

        @hookimpl
        def response_end(self):
            pass

    async with ScriptedWorker() as worker, running_router([worker.url], classes=[Watcher]) as router:
        for headers in ({}, {"x-router-plugins": "-least_inflight"}):
            await exchange_once(router.port, headers=headers, json={"text": "hi"})
        calls = {(time.plugin, time.hook): time.calls for time in Watcher.times}
        assert calls["watcher", "response_end"] == 2
        assert calls["least_inflight", "score_workers"] == 1
        assert all(time.seconds > 0 for time in Watcher.times if time.calls)


def plugin(name, part):
    def metrics():
        if isinstance(part, Exception):
            raise part
        return part

    return LoadedPlugin(name, object(), None, "d", "1", "fail", {"metrics": metrics})


def test_metrics_that_would_break_the_page_are_left_out_and_counted():
    good = '# HELP a b\n# TYPE a_total counter\na_total{x="}"} 1\na_total 2.5e-3 1700000000\nb NaN\nc +Inf\n\nd -1'
    plugins = [
        plugin("good", good),
        plugin("silent", None),
        plugin("raises", ValueError("no")),
        plugin("bytes", b"a 1"),
        plugin("nonsense", "a 1\nno metric at all"),
    ]
    outside = OutsideHooks(plugins, hook_timeout_s=1.0)
    assert outside.metrics() == good + "\n"
    assert outside.errors() == {("raises", "metrics"): 1, ("bytes", "metrics"): 1, ("nonsense", "metrics"): 1}

"""The metrics page of a router that serves, read by Prometheus's own parser."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import router_metrics
from prometheus_client.parser import text_string_to_metric_families

from router_core import Reject, hookimpl
from router_core.testing import Faults, RawClient, build_request, exchange_once
from router_core.testing.router import running_router

ENABLED = ("health", "least_inflight", "metrics")


class Page:
    """The samples of a page: ``page("router_requests_total", outcome="ok")``."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, name, **labels):
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert len(found) <= 1, found
        return found[0] if found else None

    def labels(self, name, label):
        return {sample.labels[label] for sample in self.samples if sample.name == name}


async def read(router):
    answer = await exchange_once(router.port, "GET", "/metrics")
    assert answer.status == 200
    assert answer.values("content-type") == ["text/plain; version=0.0.4; charset=utf-8"]
    return Page(answer.body.decode())


async def generate(router, **more):
    return await exchange_once(router.port, json={"text": "hi"}, **more)


async def test_requests_attempts_and_their_times_are_shown(scripted_workers):
    first, second = await scripted_workers(2)
    first.weight_version = "7"
    async with running_router([first.url, second.url], enabled=ENABLED) as router:
        for _ in range(6):
            await generate(router)
        page = await read(router)
    assert page("router_requests_total", outcome="ok") == 6
    assert page("router_request_seconds_count") == 6
    assert page("router_queue_seconds_count") == 6
    assert page("router_request_seconds_bucket", le="+Inf") == 6
    assert page("router_retries_total") == page("router_holds_total") == page("router_session_moves_total") == 0
    for worker in (first, second):
        assert page("router_attempts_total", worker=worker.url, outcome="ok") == 3
        assert page("router_upstream_seconds_count", worker=worker.url) == 3
        assert page("router_first_byte_seconds_count", worker=worker.url) == 3
        assert page("router_worker_inflight", worker=worker.url) == 0
        assert page("router_worker_state", worker=worker.url, state="ready") == 1
        assert page("router_worker_state", worker=worker.url, state="quarantined") == 0
    assert page("router_loop_lag_seconds_count") is not None


async def test_a_loop_that_stands_still_is_seen_in_its_lag(scripted_worker):
    """Once for the whole stall, however often the loop would have been looked at meanwhile."""

    class Blocks:
        @hookimpl
        async def request_start(self):
            time.sleep(0.3)  # noqa: ASYNC251  # what is tried is that the loop is blocked

    settings = {"metrics": {"lag_interval_s": 0.01}}
    async with running_router([scripted_worker.url], enabled=ENABLED, classes=[Blocks], plugins=settings) as router:
        before = await read(router)
        await generate(router)
        after = await read(router)

    def late(page, over_s):
        """Looks that were later than a bound."""
        return page("router_loop_lag_seconds_count") - page("router_loop_lag_seconds_bucket", le=over_s)

    assert late(after, "0.25") - late(before, "0.25") == 1
    assert after("router_loop_lag_seconds_sum") - before("router_loop_lag_seconds_sum") > 0.25


async def test_what_runs_and_what_waits_is_shown(scripted_worker):
    waiting = asyncio.Event()
    routers = []

    class Hold:
        @hookimpl
        async def startup(self, router):
            routers.append(router)

        @hookimpl
        async def around_upstream(self, exchange, call_next):
            if exchange.request.headers.get("x-hold"):
                asyncio.get_running_loop().call_soon(waiting.set)
                await routers[0].holds.hold(exchange, "for_a_test")
            return await call_next(exchange)

    scripted_worker.hold()
    async with running_router([scripted_worker.url], enabled=ENABLED, classes=[Hold]) as router:
        running = [
            asyncio.create_task(generate(router)),
            asyncio.create_task(generate(router, headers={"x-hold": "1"})),
        ]
        await scripted_worker.wait_for_requests(1)
        await waiting.wait()
        page = await read(router)
        assert page("router_requests_running") == 2
        assert page("router_requests_waiting") == 1
        assert page("router_held_requests", kind="for_a_test") == 1
        assert page("router_oldest_hold_seconds") > 0
        assert page("router_worker_inflight", worker=scripted_worker.url) == 1
        routers[0].holds.wake("for_a_test")
        scripted_worker.release()
        await asyncio.gather(*running)
        page = await read(router)
        assert page("router_requests_running") == page("router_requests_waiting") == 0
        assert page("router_held_requests", kind="for_a_test") is None
        assert page("router_holds_total") == page("router_hold_seconds_count") == 1
        assert page("router_holds_refused_total") == page("router_holds_timed_out_total") == 0
        assert page("router_worker_inflight", worker=scripted_worker.url) == 0


async def test_failures_are_shown_by_outcome_and_code(scripted_worker):
    async with running_router([scripted_worker.url], enabled=ENABLED) as router:
        scripted_worker.fault(Faults.close_before_answer())
        assert (await generate(router)).status == 502
        scripted_worker.fault(Faults.status(500))
        assert (await generate(router)).status == 500
        (worker,) = router.application.workers
        router.application.workers.quarantine(worker, worker.generation, "for a test")
        assert (await generate(router)).status == 503
        page = await read(router)
    assert page("router_requests_total", outcome="worker_lost") == 1
    assert page("router_requests_total", outcome="worker_error") == 1
    assert page("router_requests_total", outcome="rejected") == 1
    assert page("router_errors_total", code="worker_lost") == 1
    assert page("router_errors_total", code="no_worker") == 1
    assert page("router_attempts_total", outcome="worker_lost") == 1
    assert page("router_worker_state", state="quarantined") == 1


async def test_a_client_that_leaves_is_an_outcome_of_its_own(scripted_worker):
    ended = asyncio.Event()

    class Look:
        @hookimpl
        def response_end(self):
            ended.set()

    scripted_worker.hold()
    async with running_router([scripted_worker.url], enabled=ENABLED, classes=[Look]) as router:
        async with RawClient(router.port) as client:
            await client.send(build_request("POST", "/generate", json={"text": "hi"}))
            await scripted_worker.wait_for_requests(1)
        await ended.wait()
        page = await read(router)
    assert page("router_requests_total", outcome="client_left") == 1
    assert page("router_attempts_total", outcome="client_left") == 1


async def test_a_removed_worker_takes_its_series_with_it(scripted_workers):
    first, second = await scripted_workers(2)
    async with running_router([first.url, second.url], enabled=ENABLED) as router:
        for _ in range(4):
            await generate(router)
        await exchange_once(router.port, "POST", f"/remove_worker?url={first.url}")
        page = await read(router)
        for name in ("router_attempts_total", "router_upstream_seconds_count", "router_worker_state"):
            assert page.labels(name, "worker") == {second.url}
        assert page("router_requests_total", outcome="ok") == 4
        await exchange_once(router.port, "POST", f"/add_worker?url={first.url}")
        page = await read(router)
        assert page("router_worker_inflight", worker=first.url) == 0
        assert page("router_attempts_total", worker=first.url) is None


async def test_versions_and_sessions_are_shown(scripted_worker):
    async with running_router(enabled=ENABLED) as router:
        await exchange_once(
            router.port, "POST", "/workers", json={"url": scripted_worker.url, "weight_version": 'odd"\\v\u00e9'}
        )
        await exchange_once(router.port, "POST", "/sessions", json={})
        page = await read(router)
    assert page.labels("router_worker_info", "weight_version") == {'odd"\\v\u00e9'}
    assert page("router_sessions_open") == 1


async def test_moves_are_counted(scripted_workers):
    first, second = await scripted_workers(2)
    async with running_router([first.url, second.url], enabled=ENABLED) as router:
        a, b = router.application.workers
        router.application.router.session_moved("s", a, b)
        assert (await read(router))("router_session_moves_total") == 1


async def test_the_time_and_the_failures_of_hooks_are_shown_by_plugin(scripted_worker):
    class Bad:
        on_error = "skip"

        @hookimpl
        async def request_start(self, exchange):
            raise ValueError("no")

    class Picky:
        @hookimpl
        async def request_start(self, exchange):
            raise Reject(418, "teapot", "no")

    async with running_router([scripted_worker.url], enabled=ENABLED, classes=[Bad, Picky]) as router:
        await generate(router)
        page = await read(router)
    assert page("router_hook_calls_total", plugin="bad", hook="request_start") == 1
    assert page("router_hook_errors_total", plugin="bad", hook="request_start") == 1
    assert page("router_hook_errors_total", plugin="picky", hook="request_start") is None
    assert page("router_hook_seconds_total", plugin="picky", hook="request_start") > 0
    assert page("router_errors_total", code="teapot") == 1


async def test_hook_times_can_be_switched_off(scripted_worker):
    plugins = {"metrics": {"hook_times": False, "worker_histograms": False}}
    async with running_router([scripted_worker.url], enabled=ENABLED, plugins=plugins) as router:
        await generate(router)
        page = await read(router)
    assert page("router_hook_calls_total") is None
    assert page("router_upstream_seconds_count") is None
    assert page("router_attempts_total", outcome="ok") == 1


async def test_lines_of_other_plugins_are_on_the_page(scripted_worker):
    class Mine:
        @hookimpl
        def metrics(self):
            return "# TYPE mine_things gauge\nmine_things 3"

    class Broken:
        @hookimpl
        def metrics(self):
            return "this is no metric"

    async with running_router([scripted_worker.url], enabled=ENABLED, classes=[Mine, Broken]) as router:
        page = await read(router)
        assert page("mine_things") == 3
        assert page("router_health_ejections_total") == 0
        assert (await read(router))("router_hook_errors_total", plugin="broken", hook="metrics") == 1


async def test_switched_off_the_path_is_the_workers(scripted_worker):
    async with running_router([scripted_worker.url]) as router:
        assert (await exchange_once(router.port, "GET", "/metrics")).status == 404
    assert [request.path for request in scripted_worker.requests] == ["/metrics"]


@pytest.mark.parametrize("buckets", [[], [0], [1, 1], [2, 1], ["x"]])
async def test_bad_buckets_are_an_error_at_start_that_names_the_setting(buckets):
    with pytest.raises(Exception, match=r"plugins\.metrics\.buckets_s"):
        async with running_router(enabled=ENABLED, plugins={"metrics": {"buckets_s": buckets}}):
            pass


async def test_every_metric_of_the_page_is_documented(scripted_worker):
    readmes = Path(router_metrics.__file__).parents[1].glob("router_*/README.md")
    told = "\n".join(file.read_text(encoding="utf-8") for file in readmes)
    async with running_router([scripted_worker.url], enabled=(*ENABLED, "engine_control")) as router:
        await generate(router)
        page = await read(router)
    for family in page.families:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}`" in told, name

"""Middlewares by path: plain ASGI, Starlette's, and SlimeRouter's, their order, and what they are given."""

import asyncio
import json
import sys
import types
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse, Response

from router_core import ConfigError, Exchange, Router, hookimpl
from router_core.app import Application
from router_core.config import load
from router_core.testing import Faults, RawClient, ScriptedWorker, build_request, exchange_once, reply, reply_pieces

Serve = Callable[..., Awaitable[Any]]
ASK = {"text": "hi"}


def module(name: str, **members: Any) -> str:
    """A module of this name in sys.modules, as a user's own is importable."""
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made
    return name


class Mark:
    """A plain ASGI middleware: adds its mark to a header of the answer; the outermost is last."""

    letter = "?"

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                fields = [pair for pair in message["headers"] if pair[0] != b"x-marks"]
                before = b"".join(value for name, value in message["headers"] if name == b"x-marks")
                message = {**message, "headers": [*fields, (b"x-marks", before + self.letter.encode())]}
            await send(message)

        await self.app(scope, receive, marked if scope["type"] == "http" else send)


def mark(letter: str) -> type[Mark]:
    return type(f"Mark{letter}", (Mark,), {"letter": letter})


# --------------------------------------------------------------------------------------------------------------- order
async def test_the_first_path_is_the_outermost_and_slimes_list_the_other_way_round(serve: Serve) -> None:
    name = module("marks_of_a_user", A=mark("A"), B=mark("B"), C=mark("C"), D=mark("D"))
    async with ScriptedWorker() as worker:
        paths = [f"{name}:A", f"{name}.B"]
        slimes = [f"{name}:C", f"{name}:D"]
        application = Application(
            load(
                {"enabled": [], "router": {"middleware_paths": paths, "slime_router_middleware_paths": slimes}},
                file="",
                environment={},
            )
        )
        assert application.app is not None
        router = await serve(worker, classes=(mark("A"), mark("B")))
        for target in ("/generate", "/health", "/sessions/unknown/x"):
            assert (await exchange_once(router.port, target=target, json=ASK)).get("x-marks") == "BA"
        router = await serve(worker, router={"slime_router_middleware_paths": slimes}, classes=(mark("A"),))
        assert (await exchange_once(router.port, json=ASK)).get("x-marks") == "CDA"


async def test_plugin_classes_among_the_paths_run_in_their_order(serve: Serve) -> None:
    seen: list[str] = []

    def plugin(name: str) -> type[Any]:
        class Plugin:
            @hookimpl
            async def request_start(self, exchange: Exchange) -> None:
                seen.append(name)

        return type(name, (Plugin,), {})

    router = await serve(classes=(plugin("One"), mark("A"), plugin("Two")), enabled=("round_robin",))
    answer = await exchange_once(router.port, json=ASK)
    assert (seen, answer.get("x-marks")) == (["One", "Two"], "A")
    assert router.application.plans.default.names == ("round_robin", "one", "two", "ends")


# ------------------------------------------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("no_such_module_at_all:X", "there is no module 'no_such_module_at_all' in the current directory, nor"),
        ("json.nothing.here:X", "there is no module 'json.nothing'"),
        ("./file.py", "is not of the form pkg.mod:Class, the module found in the current directory"),
        ("file.py:Class", "is not of the form pkg.mod:Class"),
        ("file.py", "is not of the form pkg.mod:Class"),
        ("wrong_syntax_of_a_user:X", "cannot be imported: a syntax error in "),
        ("wrong_syntax_of_a_user:X", "wrong_syntax_of_a_user.py, line 2: "),
        ("json:NoSuchClass", "has no 'NoSuchClass'"),
        ("json", "is not of the form pkg.mod:Class"),
        ("", "is not of the form pkg.mod:Class"),
        ("json:", "is not of the form pkg.mod:Class"),
        (":X", "is not of the form pkg.mod:Class"),
        ("json:dumps", "neither a plugin class nor an ASGI middleware class"),
        ("broken_module_of_a_user:X", "cannot be imported: ZeroDivisionError"),
        ("classes_of_a_user:NeedsMore", "no method is marked @hookimpl, so it is taken for an ASGI middleware, and"),
        ("classes_of_a_user:NeedsMore", "cannot be made: TypeError"),
        ("classes_of_a_user:Fails", "cannot be made: OSError('no such checkpoint')"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(
    path: str, word: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NeedsMore:
        def __init__(self, app: Any, *, checkpoint: str) -> None: ...

    class Fails:
        def __init__(self, app: Any, *, router: Any) -> None:
            raise OSError("no such checkpoint")

    module("classes_of_a_user", NeedsMore=NeedsMore, Fails=Fails)
    (tmp_path / "broken_module_of_a_user.py").write_text("1 / 0\n")
    (tmp_path / "wrong_syntax_of_a_user.py").write_text("# a comment\nclass X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for setting in ("middleware_paths", "slime_router_middleware_paths"):
        with pytest.raises(ConfigError) as error:
            Application(load({"enabled": [], "router": {setting: [path]}}, file="", environment={}))
        assert word in str(error.value)
        assert "\n" not in str(error.value)


def test_a_plugin_path_given_twice_is_refused() -> None:
    class Twice:
        @hookimpl
        def response_end(self) -> None: ...

    name = module("plugins_of_a_user", Twice=Twice)
    tables = {"enabled": [], "router": {"middleware_paths": [f"{name}:Twice", f"{name}.Twice"]}}
    with pytest.raises(ConfigError, match="the name 'twice' is taken already"):
        Application(load(tables, file="", environment={}))


# ------------------------------------------------------------------------------------------------------ SlimeRouter's
class SlimeCache(BaseHTTPMiddleware):
    """Written as SlimeRouter's users wrote theirs: a cache of texts around ``/generate``."""

    def __init__(self, app: Any, *, router: Any) -> None:
        super().__init__(app)
        self.router = router
        self.args = router.args
        self.checkpoint = self.args.hf_checkpoint
        self.cache: dict[str, Any] = {}
        self.router.text_cache = self.cache

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        if request.url.path != "/generate":
            return await call_next(request)
        asked = await request.json()
        text = asked.get("text")
        if not text:
            return await call_next(request)
        asked["stream"] = False
        request._json = asked
        response = await call_next(request)
        if response.__class__.__name__ == "_StreamingResponse":
            response = await _materialize(response)
        told = None
        try:
            told = json.loads(response.body.decode("utf-8"))
        except ValueError:
            told = None
        if isinstance(told, dict) and "text" in told:
            self.cache[text] = told["text"]
            if getattr(self.router, "verbose", False):
                print(f"cached {len(self.cache)} texts of {self.checkpoint}")
        return response


async def _materialize(response: Any) -> Response:
    body = b""
    async for chunk in response.body_iterator:
        body += chunk
    dropped = {"content-length", "transfer-encoding", "connection"}
    headers = {name: value for name, value in response.headers.items() if name.lower() not in dropped}
    if "application/json" in response.headers.get("content-type", ""):
        return JSONResponse(content=json.loads(body.decode("utf-8")), status_code=response.status_code, headers=headers)
    return Response(content=body, status_code=response.status_code, headers=headers, media_type=response.media_type)


class SlimeStatus(BaseHTTPMiddleware):
    """Looks at the router's workers and answers a path of its own."""

    def __init__(self, app: Any, *, router: Any) -> None:
        super().__init__(app)
        self.router = router
        self.router.served = 0

    async def dispatch(self, request: Any, call_next: Any) -> Any:
        if request.url.path == "/my_status":
            urls = self.router.worker_urls
            least = min(urls, key=urls.get)
            return JSONResponse({"urls": urls, "least": least, "served": self.router.served})
        self.router.served += 1
        return await call_next(request)


async def test_middlewares_written_for_slimerouter_work(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(
            worker, classes=(SlimeStatus, SlimeCache), router={"args": {"hf_checkpoint": "/models/tiny", "port": 1}}
        )
        worker.say("one two", times=None)
        answer = await exchange_once(router.port, json={**ASK, "sampling_params": {"max_new_tokens": 4}})
        assert (answer.status, answer.json()["text"], answer.clean) == (200, "one two", True)
        assert router.application.router.text_cache == {"hi": "one two"}
        assert router.application.router.args.hf_checkpoint == "/models/tiny"
        assert router.application.router.args.port == 1
        assert router.application.router.args.connect_timeout_s == 5.0
        other = await exchange_once(router.port, target="/v1/thing", json={})
        assert other.status == 404
        status = (await exchange_once(router.port, "GET", "/my_status")).json()
        assert status == {"urls": {worker.url: 0}, "least": worker.url, "served": 2}
        worker.fault(Faults.close_before_answer())
        lost = await exchange_once(router.port, json=ASK)
        assert (lost.status, lost.get("x-router-error")) == (502, "worker_lost")


async def test_an_answer_cut_short_is_no_success_for_a_middleware_that_reads_it(serve: Serve) -> None:
    """Starlette's base class tells its user nothing of the loss: at least the client must not take it for whole."""
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(SlimeCache,), router={"args": {"hf_checkpoint": ""}})
        worker.handler = reply_pieces([b'{"text":"a"}', b" "], content_type="application/json")
        worker.fault(Faults.close_amid(after_pieces=1))
        answer = await exchange_once(router.port, json=ASK)
        assert answer.clean is False


async def test_streams_pass_base_http_middleware_as_they_come(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(SlimeStatus,))
        steps: asyncio.Queue[None] = asyncio.Queue()

        async def stepwise(request: Any, connection: Any) -> bool:
            await connection.begin()
            for step in range(3):
                await connection.write(b"data: %d\n\n" % step)
                await steps.get()
            return await connection.end()  # type: ignore[no-any-return]

        worker.handler = stepwise
        async with RawClient(router.port) as client:
            await client.send(build_request(json={}))
            answer = await client.read_head()
            for step in range(3):
                assert await client.read_piece(answer) == b"data: %d\n\n" % step
                steps.put_nowait(None)
            await client.read_body(answer)
            assert answer.clean is True


class Raises:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and any(name == b"x-bad" for name, _ in scope["headers"]):
            raise ValueError("a middleware")
        await self.app(scope, receive, send)


async def test_a_middleware_that_raises_fails_its_own_request(serve: Serve) -> None:
    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Raises,))
        worker.handler = reply(b"good")
        bad = await exchange_once(router.port, headers=[("X-Bad", "1")], json=ASK)
        assert bad.status == 500
        assert (await exchange_once(router.port, json=ASK)).body == b"good"


async def test_the_routers_services_reach_plugins_at_startup(serve: Serve) -> None:
    given: list[Router] = []

    class Keeps:
        @hookimpl
        async def startup(self, router: Router) -> None:
            given.append(router)

    async with ScriptedWorker() as worker:
        router = await serve(worker, classes=(Keeps,))
        (services,) = given
        assert services.workers is router.application.workers and services.sessions is router.application.sessions
        assert services.worker_urls == {worker.url: 0}
        assert services.session("nobody") is None
        answer = await services.control.call(router.workers[0], "GET", "/health", timeout_s=5)
        assert answer.is_ok
        assert services.find_tokenizer(None) is None

"""A kit for tests of routers and plugins: a scripted worker and a raw client, over real sockets.

The worker logs each request in the bytes that came, answers like an engine with the words it was told, and has faults
on demand. The client sends exact bytes and says exactly what came back, and how it ended::

    async def test_an_answer_cut_short_is_no_clean_end():
        async with ScriptedWorker() as worker:
            worker.say("first answer")
            worker.fault(Faults.close_amid(after_bytes=20), times=1)
            cut = await exchange_once(worker.port, json={"text": "hi"})
            assert cut.clean is False
            whole = await exchange_once(worker.port, json={"text": "hi"})
            assert whole.clean is True
            assert whole.json()["text"] == "Words of a scripted worker."
            assert [request.path for request in worker.requests] == ["/generate", "/generate"]
            assert worker.requests[0].body == b'{"text":"hi"}'

Fixtures: ``pytest_plugins = ["router_core.testing.pytest_plugin"]``.
"""

from router_core.testing.answer import RawAnswer, build_request
from router_core.testing.builders import build_answer, build_exchange, build_worker
from router_core.testing.client import NoAnswerError, RawClient, exchange_once
from router_core.testing.clock import TurnedClock
from router_core.testing.conformance import assert_plugin_conforms
from router_core.testing.connection import Connection
from router_core.testing.engines import Engine, EngineName
from router_core.testing.experts import Experts
from router_core.testing.faults import GARBAGE, ODD_JSON, Faults
from router_core.testing.health import HEALTH_PATHS, Health
from router_core.testing.http1 import Fields, MalformedHttpError, RawPairs
from router_core.testing.memory import MemoryGrowth, peak_memory_growth
from router_core.testing.replies import reply, reply_json, reply_pieces, send_events, send_json
from router_core.testing.request import ScriptedRequest
from router_core.testing.tokens import TURN_END, TURN_START, decode, encode, render_chat
from router_core.testing.words import ToolCall, Words
from router_core.testing.worker import Fault, Handler, ScriptedWorker

__all__ = [
    "GARBAGE",
    "HEALTH_PATHS",
    "ODD_JSON",
    "TURN_END",
    "TURN_START",
    "Connection",
    "Engine",
    "EngineName",
    "Experts",
    "Fault",
    "Faults",
    "Fields",
    "Handler",
    "Health",
    "MalformedHttpError",
    "MemoryGrowth",
    "NoAnswerError",
    "RawAnswer",
    "RawClient",
    "RawPairs",
    "ScriptedRequest",
    "ScriptedWorker",
    "ToolCall",
    "TurnedClock",
    "Words",
    "assert_plugin_conforms",
    "build_answer",
    "build_exchange",
    "build_request",
    "build_worker",
    "decode",
    "encode",
    "exchange_once",
    "peak_memory_growth",
    "render_chat",
    "reply",
    "reply_json",
    "reply_pieces",
    "send_events",
    "send_json",
]

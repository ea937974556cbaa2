from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from router_hf_tokenizer.door import TokenizerDoor
from router_hf_tokenizer.plugin import HfTokenizers

from router_core import ConfigError, Reject, Router, hookimpl
from router_core.reference_engine.tokenizer import ASSETS, Tokenizer
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router

PATH = str(ASSETS)


class Finder:
    """What another plugin sees: at its own `startup` no tokenizer can be there yet, since nothing was awaited."""

    router: Router
    was_ready: bool
    warming: dict[str, str]

    @hookimpl
    async def startup(self, router: Router) -> None:
        Finder.router = router
        Finder.was_ready = any(door is not None and door.is_ready for door in [router.find_tokenizer(None)])
        Finder.warming = dict(router.warming)


def finder() -> Router:
    return Finder.router


def started(*workers, **settings):
    return running_router(workers, enabled=["hf_tokenizer"], plugins={"hf_tokenizer": settings}, classes=[Finder])


async def test_the_port_is_open_while_the_tokenizer_is_loaded_and_the_router_ready_once_it_is() -> None:
    async with (
        ScriptedWorker() as worker,
        running_router(
            [worker.url], enabled=["hf_tokenizer"], plugins={"hf_tokenizer": {"path": PATH}}, classes=[Finder]
        ) as router,
    ):
        assert not Finder.was_ready
        assert Finder.warming == {"hf_tokenizer": f"{PATH!r} is being loaded"}
        assert (await exchange_once(router.port, json={"text": "hi"})).status == 200
        door = finder().find_tokenizer(None)
        tokenizer = await door.ready()
        assert await door.run(tokenizer.encode_batch, ["hi"]) == [Tokenizer().encode("hi")]
        assert (await exchange_once(router.port, "GET", "/readiness")).status == 200
        assert door.waiting == 0


async def test_tokenizers_are_found_by_name_and_an_unknown_name_is_left_to_others() -> None:
    own = {"path": PATH, "chat_template": "{{ messages[0].content }}"}
    async with started(path=PATH, models={"org/model": own}):
        find = finder().find_tokenizer
        assert find("other") is None
        first, second = await find(None).ready(), await find("org/model").ready()
        message = [{"role": "user", "content": "hi"}]
        options = {"tools": None, "add_generation_prompt": False, "template_kwargs": {}}
        assert first.apply_chat_template(message, **options) == "<|im_start|>user\nhi<|im_end|>\n"
        assert second.apply_chat_template(message, **options) == "hi"


async def test_a_request_that_waited_too_long_is_told_that_the_router_warms() -> None:
    with ThreadPoolExecutor(1) as threads:
        door = TokenizerDoor(None, "a/model", threads, wait_s=0)
        with pytest.raises(Reject, match="'a/model' is being loaded") as refused:
            await door.ready()
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (503, "warming", 1)


async def test_a_tokenizer_that_cannot_be_read_keeps_the_router_unready_and_says_why(tmp_path, caplog) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with caplog.at_level(logging.ERROR):
        async with started(path=str(tmp_path)) as router:
            door = finder().find_tokenizer(None)
            with pytest.raises(Reject, match="cannot be read") as refused:
                await door.ready()
            assert (refused.value.status, refused.value.code) == (500, "tokenizer_failed")
            cold = await exchange_once(router.port, "GET", "/readiness")
            assert cold.status == 503
            assert str(tmp_path) in cold.json()["error"]["message"]
    assert "cannot be read" in caplog.text


async def test_what_runs_in_a_thread_raises_where_it_is_awaited() -> None:
    async with started(path=PATH, max_characters=3):
        door = finder().find_tokenizer(None)
        tokenizer = await door.ready()
        with pytest.raises(Reject, match="4 characters"):
            await door.run(tokenizer.encode_batch, ["four"])


async def test_the_router_stops_while_a_tokenizer_is_loading() -> None:
    async with asyncio.timeout(10):
        async with started(path=PATH):
            pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "it names no tokenizer: set path"),
        ({"path": "/no/such/directory"}, "there is no directory '/no/such/directory': name one that holds"),
        ({"path": "./no/such"}, "there is no directory"),
        ({"path": str(ASSETS.parent)}, "holds no tokenizer"),
        ({"path": str(ASSETS / "tokenizer.json")}, "is a file: name the directory"),
        ({"path": PATH, "chat_template": "/no/such/file.jinja"}, "there is no file '/no/such/file.jinja'"),
        ({"models": {"m": {"path": PATH}}, "chat_template": "{{ x }}"}, "path names none"),
        ({"models": {"m": {"path": "/no/such"}}}, "there is no directory '/no/such'"),
        ({"path": PATH, "threads": 0}, "threads"),
        ({"path": PATH, "pathh": "x"}, "pathh"),
    ],
)
async def test_wrong_settings_are_errors_at_start_that_say_what_to_do(settings, said) -> None:
    with pytest.raises(ConfigError) as error:
        async with started(**settings):
            pass
    assert said in str(error.value)
    assert "plugins.hf_tokenizer" in str(error.value)


def test_a_template_may_be_a_file_and_a_path_a_name_on_the_hub(tmp_path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    settings = HfTokenizers.Settings(path="Qwen/Qwen3-8B", chat_template=str(tmp_path / "t.jinja"))
    assert settings.chat_template == "{{ messages }}"
    assert settings.path == "Qwen/Qwen3-8B"

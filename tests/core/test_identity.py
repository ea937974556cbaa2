"""Several plugins say who a request belongs to: each field from the first that knows it."""

from router_core import Exchange, Identity, Outcome, hookimpl
from router_core.testing import ScriptedWorker, exchange_once
from router_core.testing.router import running_router


class KnowsTheGroup:
    @hookimpl
    def identify(self, exchange: Exchange) -> Identity:
        return Identity(group="g")


class KnowsTheVersion:
    @hookimpl
    def identify(self, exchange: Exchange) -> Identity:
        return Identity(group="another", version_tag="7")


class KnowsNothing:
    @hookimpl
    def identify(self, exchange: Exchange) -> None:
        return None


async def test_each_field_of_the_identity_comes_from_the_first_plugin_that_knows_it() -> None:
    seen: list[Identity] = []

    class Looks:
        @hookimpl
        def response_end(self, exchange: Exchange, outcome: Outcome) -> None:
            seen.append(exchange.identity)

    classes = [KnowsNothing, KnowsTheGroup, KnowsTheVersion, Looks]
    async with ScriptedWorker() as worker, running_router([worker.url], enabled=[], classes=classes) as router:
        await exchange_once(router.port, json={"text": "hi"})
    assert seen == [Identity(group="g", version_tag="7")]


def test_an_identity_is_completed_only_where_it_knows_nothing() -> None:
    assert Identity(trajectory="t").completed_by(Identity("g", "u", "3")) == Identity("g", "t", "3")

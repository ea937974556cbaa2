"""docs/reference/metrics.md names each metric of a router with every plugin on, its type and its labels."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from router_core.reference_engine import running_engine
from router_core.reference_engine.tokenizer import ASSETS
from router_core.testing import exchange_once
from router_core.testing.router import running_router

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"(?m)^\| `(router_\w+)` \| (\w+)((?:, `\w+`)*) \|")
EXCEPT = {"round_robin", "power_of_two"}
"""They would choose beside other balancers, and have no metrics."""
OF_PROMETHEUS = {"le"}
WITHIN_S = 50
CHAT = {"model": "reference", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Name -> type and labels."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len({name for name, _, _ in rows}) == len(rows), "a metric is told twice"
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


async def shown() -> dict[str, tuple[str, set[str] | None]]:
    """The same of a page, after a few requests; labels are None where there is no sample yet."""
    names = sorted({point.name for point in entry_points(group="router_core.plugins") if _is_ours(point)} - EXCEPT)
    plugins = {"hf_tokenizer": {"path": str(ASSETS)}}
    first = ["hf_tokenizer", "tito"]
    enabled = [*first, *(name for name in names if name not in first)]
    async with running_engine() as engine, running_router(enabled=enabled, plugins=plugins) as router:
        refused = await exchange_once(router.port, json={"text": "hi"}, timeout_s=WITHIN_S)  # a tokenizer is loading
        assert refused.status == 503
        await exchange_once(router.port, "POST", "/workers", json={"url": engine.url})
        await exchange_once(router.port, "POST", "/sessions", json={"session_id": "s"})
        turn = await exchange_once(router.port, target="/sessions/s/v1/chat/completions", json=CHAT, timeout_s=WITHIN_S)
        assert turn.status == 200
        page = (await exchange_once(router.port, "GET", "/metrics")).body.decode()
    found: dict[str, tuple[str, set[str] | None]] = {}
    for family in text_string_to_metric_families(page):
        labels = [set(sample.labels) - OF_PROMETHEUS for sample in family.samples]
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, set.union(*labels) if labels else None)
    return found


def _is_ours(point: object) -> bool:
    dist = getattr(point, "dist", None)
    return dist is not None and dist.name == "router-core"


async def test_every_metric_is_documented_with_its_type_and_labels_and_no_other() -> None:
    told, page = documented(), await shown()
    assert page.keys() - told.keys() == set(), "write them into docs/reference/metrics.md"
    assert told.keys() - page.keys() == set(), "no page shows them"
    assert {name: kind for name, (kind, _) in told.items()} == {name: kind for name, (kind, _) in page.items()}
    wrong = {name: labels for name, (_, labels) in page.items() if labels is not None and labels != told[name][1]}
    assert wrong == {}
    for name in (name for name, (_, labels) in page.items() if labels is None):
        _check_in_source(name, told[name][1])


def _check_in_source(name: str, labels: set[str]) -> None:
    """For a metric of which no request has made a sample yet: its labels stand near its name in the plugin."""
    assert labels, f"{name} shows no sample, so it has labels"
    source = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "plugins").rglob("*.py")))
    short = name.removesuffix("_total")
    part = next(p for p in (short, short.split("_", 2)[-1], short.split("_", 3)[-1]) if p in source)
    near = "\n".join(source[at.start() : at.start() + 400] for at in re.finditer(re.escape(part), source))
    for label in labels:
        assert re.search(rf"\b{label}\b", near), f"{name}: its label {label!r} is not in the source"

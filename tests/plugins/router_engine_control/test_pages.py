import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from router_engine_control.pages import join_pages

SGLANG = """\
# HELP sglang:cpu_seconds_total Time.
# TYPE sglang:cpu_seconds_total counter
sglang:cpu_seconds_total{component="detokenizer"} 0.08
sglang:cpu_seconds_total{component="tokenizer"} 0.97
# HELP sglang:keys_active Keys.
# TYPE sglang:keys_active gauge
sglang:keys_active 0.0
"""


def test_each_family_stands_once_with_the_samples_of_all_workers():
    joined = join_pages([("http://a:1", SGLANG), ("http://b:2", SGLANG)])
    assert joined.splitlines() == [
        "# HELP sglang:cpu_seconds_total Time.",
        "# TYPE sglang:cpu_seconds_total counter",
        'sglang:cpu_seconds_total{worker="http://a:1",component="detokenizer"} 0.08',
        'sglang:cpu_seconds_total{worker="http://a:1",component="tokenizer"} 0.97',
        'sglang:cpu_seconds_total{worker="http://b:2",component="detokenizer"} 0.08',
        'sglang:cpu_seconds_total{worker="http://b:2",component="tokenizer"} 0.97',
        "# HELP sglang:keys_active Keys.",
        "# TYPE sglang:keys_active gauge",
        'sglang:keys_active{worker="http://a:1"} 0.0',
        'sglang:keys_active{worker="http://b:2"} 0.0',
    ]


def test_an_own_worker_label_is_kept_under_another_name():
    joined = join_pages([("w", 'm{worker="7",superworker="8"} 1\nn{a="x", worker = "9"} 2\n')])
    assert 'm{worker="w",exported_worker="7",superworker="8"} 1' in joined
    assert 'n{worker="w",a="x",exported_worker="9"} 2' in joined


@pytest.mark.parametrize("odd", ['m{a="}"} 1', 'm{a="{b}",c="\\"d"} 1', "m 1 1700000000", "m NaN", "m +Inf", "m{} 3"])
def test_odd_samples_stay_whole(odd):
    (family,) = text_string_to_metric_families(join_pages([("w", odd + "\n")]))
    (before,) = text_string_to_metric_families(odd + "\n")
    assert family.samples[0].labels == {**before.samples[0].labels, "worker": "w"}
    assert str(family.samples[0].value) == str(before.samples[0].value)


def test_what_is_no_sample_is_left_out():
    assert join_pages([("w", "<html>\n{}\n\n# EOF\n# a comment\n9lives 1\n")]) == ""


def test_the_joined_page_is_read_back_by_prometheus():
    registry = CollectorRegistry()
    counter = Counter("vllm:done", "Done.", ["model_name"], registry=registry)
    counter.labels('od"d\\name\n').inc(3)
    Histogram("vllm:seconds", "Seconds.", registry=registry).observe(0.3)
    page = generate_latest(registry).decode()
    families = {f.name: f for f in text_string_to_metric_families(join_pages([("a", page), ('b"\\\n', page)]))}
    done = [s for s in families["vllm:done"].samples if s.name == "vllm:done_total"]
    assert [s.labels for s in done] == [
        {"worker": "a", "model_name": 'od"d\\name\n'},
        {"worker": 'b"\\\n', "model_name": 'od"d\\name\n'},
    ]
    assert families["vllm:seconds"].type == "histogram"
    assert len([s for s in families["vllm:seconds"].samples if s.name.endswith("_count")]) == 2


@settings(deadline=None, database=None)
@given(st.text(max_size=200), st.text(max_size=20))
def test_no_page_breaks_the_join(page, worker):
    joined = join_pages([(worker, page)])
    assert "\n\n" not in joined
    assert not joined.startswith("\n")

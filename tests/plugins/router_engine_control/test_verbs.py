import json

import pytest
from router_engine_control.verbs import empties_cache, is_batch, new_weight_version, read_abort, read_rids

from router_core import Reject


@pytest.mark.parametrize(
    ("body", "rids"),
    [
        (b'{"rid": "r-1"}', ["r-1"]),
        (b'{"rid": ["r-1", "r-2"], "extra": 1}', ["r-1", "r-2"]),
        (b'{"abort_all": true}', None),
        (b'{"abort_all": true, "rid": "r-1"}', None),
    ],
)
def test_an_abort_names_rids_or_all(body, rids):
    assert read_abort(body) == rids


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "rid"),
        (b"[" * 200_000, None),
        (b"{}", "rid"),
        (b'{"rid": ""}', "rid"),
        (b'{"rid": 7}', "rid"),
        (b'{"rid": [7]}', "rid"),
        (b'{"rid": null, "abort_all": false}', "rid"),
        (b'{"abort_all": "yes"}', "abort_all"),
        (b"[]", None),
        (b"{", None),
        (b"\xff", None),
    ],
)
def test_an_abort_that_names_nothing_is_refused(body, param):
    with pytest.raises(Reject) as refused:
        read_abort(body)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("path", "body", "version"),
    [
        ("/update_weight_version", {"new_version": "7", "abort_all_requests": False}, "7"),
        ("/update_weights_from_disk", {"model_path": "m", "weight_version": "8"}, "8"),
        ("/update_weights_from_disk", {"model_path": "m"}, None),
        ("/update_weights_from_tensor", {"weight_version": 8}, None),
        ("/flush_cache", {"weight_version": "8"}, None),
    ],
)
def test_the_version_that_a_verb_gives_is_read(path, body, version):
    assert new_weight_version(path, json.dumps(body).encode()) == version


def test_a_verb_without_a_json_object_gives_no_version():
    assert new_weight_version("/update_weights_from_tensor", b"\x00\x01") is None
    assert new_weight_version("/update_weights_from_disk", b"[1]") is None


def test_rids_are_texts():
    assert read_rids({"rid": ["a", 1, "", None, "b"]}) == ["a", "b"]
    assert read_rids({"rid": {"a": 1}}) == read_rids({}) == []


@pytest.mark.parametrize(
    ("call", "batch"),
    [
        ({"text": "hi"}, False),
        ({"input_ids": [1, 2]}, False),
        ({"input_ids": []}, False),
        ({"text": ["hi", "ho"]}, True),
        ({"input_ids": [[1], [2]]}, True),
        ({"text": "hi", "sampling_params": {"n": 4}}, True),
        ({"text": "hi", "sampling_params": {"n": 1}}, False),
        ({"text": "hi", "sampling_params": [{}, {}]}, True),
    ],
)
def test_a_batch_is_told_from_one_generation(call, batch):
    assert is_batch(call) is batch


def test_flushes_sleep_and_new_weights_empty_the_prefix_cache():
    verbs = (
        "/flush_cache",
        "/sleep",
        "/update_weights_from_disk",
        "/update_weights",
        "/update_weight_version",
        "/pause",
    )
    assert [empties_cache(verb) for verb in verbs] == [True, True, True, True, False, False]

import json

from hypothesis import given
from hypothesis import strategies as st

from router_core.splice import remove_top_level_key

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(['"text":', "text", ',"text"']),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["text", "a", "b"]), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["text", "a", "b", "tex", "text2"]), values, max_size=5),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", "\t:")]),
)
def test_a_removed_key_is_gone_and_everything_else_is_as_it_was(body, separators) -> None:
    removed = remove_top_level_key(json.dumps(body, separators=separators).encode(), "text")
    assert json.loads(removed) == {key: value for key, value in body.items() if key != "text"}


def test_only_the_key_and_one_comma_go() -> None:
    assert remove_top_level_key(b'{ "text": "a,b" , "n" :1e-05}', "text") == b'{"n" :1e-05}'
    assert remove_top_level_key(b'{"n" :1e-05 , "text": "a,b" }', "text") == b'{"n" :1e-05  }'
    assert remove_top_level_key(b'{"text":1, "a":{"text":2}, "text":3}', "text") == b'{"a":{"text":2}}'
    assert remove_top_level_key(b'{"text":1}', "text") == b"{}"


def test_a_body_without_the_key_or_no_object_stays_as_it_is() -> None:
    for body in (b'{"a": "text"}', b'["text"]', b'{"text": 1', b"", b"\xff"):
        assert remove_top_level_key(body, "text") == body


def test_a_broken_body_raises_nothing() -> None:
    for body in (b'{"text":"}', b'{"text"}', b'{"text":}', b'{"text":{"a":1}', b'{,"text":1,}'):
        remove_top_level_key(body, "text")

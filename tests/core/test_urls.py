"""Worker URLs: what is accepted, and when two spellings are one worker."""

import ipaddress
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core.urls import parse_worker_url


@pytest.mark.parametrize(
    ("text", "base", "rank"),
    [
        ("http://h:1", "http://h:1", None),
        ("HTTP://H:1/", "http://h:1", None),
        ("http://h", "http://h", None),
        ("http://h:80", "http://h", None),
        ("https://h:443/", "https://h", None),
        ("https://h:80", "https://h:80", None),
        ("http://h:1/base", "http://h:1/base", None),
        ("http://h:1/base//", "http://h:1/base", None),
        ("http://h:1/Base", "http://h:1/Base", None),
        ("http://[::1]:1", "http://[::1]:1", None),
        ("http://[0:0:0:0:0:0:0:1]:1/", "http://[::1]:1", None),
        ("http://[2001:DB8::A]", "http://[2001:db8::a]", None),
        ("http://h:1@3", "http://h:1", 3),
        ("http://h:1/base@12/", "http://h:1/base", 12),
        ("http://[::1]:1@0", "http://[::1]:1", 0),
        ("http://a_b.svc.cluster.local:8000", "http://a_b.svc.cluster.local:8000", None),
    ],
)
def test_a_url_is_taken_apart(text: str, base: str, rank: int | None) -> None:
    url = parse_worker_url(text)
    assert (url.base, url.dp_rank) == (base, rank)


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:9",
        "",
        " ",
        "ftp://h:1",
        "http://",
        "http://:80",
        "http://h:99999",
        "http://h:0",
        "http://h:-1",
        "http://h:1:2",
        "http://h:x",
        "http://h :1",
        "http://h:1/a b",
        "http://h:1\n",
        "http://h:1/é",
        "http://é:1",
        "http://h:1@٣",
        "http://user@h:1",
        "http://user:secret@h:1@2",
        "http://h:1@rank",
        "http://h:1?x=1",
        "http://h:1?",
        "http://h:1#x",
        "http://h%41:1",
        "http://.:1",
        "http://a..b:1",
        "http://" + "a" * 64 + ":1",
        "http://" + "a." * 130 + ":1",
        "http://[::1",
        "http://[::1]x:1",
        "http://[::1%eth0]:1",
        "http://[v1.x]:1",
        "http://[1.2.3.4]:1",
        "http://h\\x:1",
        None,
        7,
    ],
)
def test_what_names_no_worker_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_worker_url(text)


def test_a_refusal_does_not_repeat_a_password() -> None:
    with pytest.raises(ValueError, match="user information") as refused:
        parse_worker_url("http://user:s3cret@h:1")
    assert "s3cret" not in str(refused.value)


HOSTS = st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z0-9]{1,5}){0,2}\Z") | st.ip_addresses(v=6).map(
    lambda ip: f"[{ip}]"
)
PATHS = st.lists(st.from_regex(r"\A[A-Za-z0-9._~%-]{1,6}\Z"), max_size=3).map(
    lambda parts: "".join(f"/{p}" for p in parts)
)


@given(st.sampled_from(["http", "https"]), HOSTS, st.integers(1, 65535), PATHS, st.none() | st.integers(0, 999999))
def test_every_spelling_of_a_url_has_one_key(scheme: str, host: str, port: int, path: str, rank: int | None) -> None:
    plain = f"{scheme}://{host}:{port}{path}" + ("" if rank is None else f"@{rank}")
    spellings = [plain, plain + "/", plain + "//"]
    if rank is None:
        spellings.append(f"{scheme.upper()}://{host.upper()}:{port}{path}/")
    if host.startswith("["):
        exploded = ipaddress.IPv6Address(host.strip("[]")).exploded
        spellings.append(plain.replace(host, f"[{exploded}]", 1))
    parsed = [parse_worker_url(text) for text in spellings]
    assert len({url.key for url in parsed}) == 1
    again = parse_worker_url(parsed[0].key)
    assert (again.key, again.dp_rank) == (parsed[0].key, rank)


@given(
    st.text(max_size=30) | st.text(alphabet="htp:/@[]%.#?0123456789a ", max_size=30).map(lambda tail: "http://" + tail)
)
def test_any_text_is_accepted_whole_or_refused_with_a_value_error(text: str) -> None:
    try:
        url = parse_worker_url(text)
    except ValueError:
        return
    parts = urlsplit(url.base)
    assert parts.scheme in ("http", "https")
    assert parts.hostname
    assert parts.port != 0
    assert url.base.isascii()
    assert url.base.isprintable()
    assert not set(url.base) & set(" ?#")

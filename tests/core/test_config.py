"""Every source of configuration, which one wins, and what is said when one is wrong."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router_core import ConfigError
from router_core.app import Application
from router_core.config import DEFAULT_ENABLED, Config, load, toml_value


def loaded(
    text: str = "", *, environment: dict[str, str] | None = None, file: Path | None = None, **more: Any
) -> Config:
    """The configuration of a file with this text, these variables and flags."""
    if file is not None:
        file.write_text(text)
    return load(more.pop("flags", None), file=str(file) if file else "", environment=environment or {}, **more)


def refused(text: str = "", **more: Any) -> str:
    with pytest.raises(ConfigError) as error:
        Application(loaded(text, **more))
    line = str(error.value)
    assert "\n" not in line
    return line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "my.toml"


# ----------------------------------------------------------------------------------------------------------- precedence
def test_without_any_source_the_defaults_hold() -> None:
    config = loaded()
    assert (config.router.host, config.router.port, config.enabled) == ("127.0.0.1", 8000, DEFAULT_ENABLED)
    assert config.where("router.port") == "default"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    text = 'enabled = ["round_robin"]\n[router]\nport = 1\nhost = "file"\nlog_level = "debug"\n'
    environment = {"ROUTER__PORT": "2", "ROUTER__HOST": "environment"}
    config = loaded(text, file=file, environment=environment, flags={"router.port": 3})
    assert (config.router.port, config.router.host, config.router.log_level) == (3, "environment", "debug")
    assert (config.enabled, config.where("enabled")) == (("round_robin",), str(file))
    assert config.where("router.port") == "--port"
    assert config.where("router.host") == "environment variable ROUTER__HOST"
    assert config.where("router.log_level") == str(file)
    assert loaded(text, file=file, environment=environment, settings=["router.port=4"]).router.port == 4
    assert loaded(settings=["port=4"], flags={"router.port": 3}).router.port == 3


def test_tables_are_merged_key_by_key(file: Path) -> None:
    text = "[plugins.health]\ninterval_s = 1\ntimeout_s = 5\n"
    environment = {"ROUTER__PLUGINS__HEALTH__INTERVAL_S": "2"}
    config = loaded(text, file=file, environment=environment, settings=["plugins.health.path=/ready"])
    assert config.plugins["health"] == {"interval_s": 2, "timeout_s": 5, "path": "/ready"}
    assert config.where("plugins.health.timeout_s") == str(file)


def test_a_file_in_the_working_directory_is_taken_without_being_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environment={}).router.port == 8000
    Path("plugins.toml").write_text("[router]\nport = 7\n")
    assert load(environment={}).router.port == 7
    assert load(environment={}, file="").router.port == 8000


def test_enable_and_disable_change_the_list_at_last(file: Path) -> None:
    config = loaded(
        'enabled = ["health", "round_robin"]', file=file, enable=["least_inflight", "health"], disable=["health"]
    )
    assert config.enabled == ("round_robin", "least_inflight")
    assert "--disable: 'nobody' is not enabled; enabled are: " in refused(disable=["nobody"])
    assert refused(enable=["nobody"]).startswith("--enable: enabled: there is no plugin 'nobody'")


def test_the_repositorys_file_is_the_default_written_out() -> None:
    written = Path(__file__).parents[2] / "plugins.toml"
    config = load(file=str(written), environment={})
    assert config.enabled == DEFAULT_ENABLED
    assert config.router == load(file="", environment={}).router
    named, unnamed = Application(config), Application(load(file="", environment={}))
    assert [p.settings for p in named.registry.plugins] == [p.settings for p in unnamed.registry.plugins]


# -------------------------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0.5", 0.5),
        ("true", True),
        ('"text"', "text"),
        ("text", "text"),
        ("/ready", "/ready"),
        ('["a", "b"]', ["a", "b"]),
        ("{a = 1}", {"a": 1}),
        ("a,b", "a,b"),
        ("http://h:1", "http://h:1"),
        ("", ""),
        ("5\nport = 3", "5\nport = 3"),
        ("value = 3", "value = 3"),
        ("[unclosed", "[unclosed"),
        ("1e400", float("inf")),
    ],
)
def test_values_are_toml_else_text(text: str, value: Any) -> None:
    assert toml_value(text) == value


@given(st.text(max_size=30))
def test_any_text_is_a_value(text: str) -> None:
    toml_value(text)


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:1,http://b:2", ["http://a:1", "http://b:2"]),
        (" http://a:1 , http://b:2 ,", ["http://a:1", "http://b:2"]),
        ('["http://a:1"]', ["http://a:1"]),
        ("http://a:1", ["http://a:1"]),
        ("", []),
    ],
)
def test_lists_may_be_written_with_commas(text: str, urls: list[str]) -> None:
    assert loaded(environment={"ROUTER__WORKERS": text}).router.workers == urls
    assert loaded(settings=[f"router.workers={text}"]).router.workers == urls
    assert loaded(settings=[f"workers={text}"]).router.workers == urls


def test_names_may_be_written_with_commas() -> None:
    for config in (
        loaded(environment={"ROUTER__ENABLED": "health, round_robin"}),
        loaded(settings=["enabled=health,round_robin"]),
    ):
        assert config.enabled == ("health", "round_robin")
    assert loaded(environment={"ROUTER__ENABLED": "[]"}).enabled == ()
    assert loaded(environment={"ROUTER__ENABLED": ""}).enabled == ()


def test_a_plugins_list_takes_commas_too() -> None:
    config = loaded(settings=["profiles.p.enable=health,round_robin"])
    assert config.profiles["p"].enable == ["health", "round_robin"]


# -------------------------------------------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ROUTER__PROT", "prot: no such setting; did you mean 'port'?"),
        ("ROUTER__", ""),
        ("ROUTER__NO__SUCH", "no.such"),
        ("ROUTER__ROUTER__PROT", "router.prot"),
        ("ROUTER__PLUGINS__HEALTH__INTERVALL", "plugins.health.intervall"),
        ("ROUTER__PLUGINS__HEALHT__INTERVAL_S", "plugins.healht"),
        ("router__prot", "prot"),
    ],
)
def test_an_unknown_variable_is_named(name: str, key: str) -> None:
    line = refused(environment={name: "1"})
    assert name in line
    assert key in line


def test_other_variables_are_not_ours() -> None:
    """A Kubernetes Service called router sets these."""
    loaded(environment={"ROUTER_PORT": "tcp://10.0.0.1:80", "ROUTER_SERVICE_HOST": "10.0.0.1", "ROUTERS__X": "1"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[router]\nprot = 1", ["router.prot", "unknown key; did you mean 'port'?"]),
        ('[router]\nport = "many"', ["router.port", "not 'many'"]),
        ("[router]\nport = 70000", ["router.port", "65535"]),
        ("[router]\nport = -1", ["router.port"]),
        ("[router]\nport = 1.5", ["router.port"]),
        ("[router]\nworkers = 7", ["router.workers", "list"]),
        ('[router]\nworkers = ["127.0.0.1:9"]', ["router.workers", "http://"]),
        ('[router]\nworkers = "http://h:1"', ["router.workers", "list"]),
        ("[router]\nconnect_timeout_s = 0", ["router.connect_timeout_s", "greater than 0"]),
        ("[router]\nconnect_timeout_s = nan", ["router.connect_timeout_s", "finite"]),
        ("[router]\nshutdown_grace_s = inf", ["router.shutdown_grace_s", "finite"]),
        ('[router]\nlog_level = "loud"', ["router.log_level", "'loud'"]),
        ("router = 7", ["router"]),
        ("plugins = 7", ["plugins"]),
        ("[plugins]\nhealth = 7", ["plugins.health"]),
        ("enabled = 7", ["enabled"]),
        ("enabled = [7]", ["enabled"]),
        ('enabled = "health"', ["enabled"]),
        ("[plugin.health]", ["plugin", "unknown key; did you mean 'plugins'?"]),
        ("[profiles]\np = 7", ["profiles.p"]),
        ("[profiles.p]\nenable = 7", ["profiles.p.enable"]),
        ("[plugins.health]\ninterval_s = 0", ["plugins.health.interval_s", "greater than 0"]),
        ("[plugins.health]\ninterval = 1", ["plugins.health.interval", "unknown key; did you mean 'interval_s'?"]),
        ("[plugins.health]\nbreakfast = 1", ["plugins.health.breakfast: unknown key"]),
        ('enabled = ["hf_tokenizer"]\n[plugins.hf_tokenizer]\nthreads = 1', ["plugins.hf_tokenizer: it names no"]),
        ("port =", ["cannot be read", "Invalid value"]),
        ("[router]\nport = 1\nport = 2", ["cannot be read", "overwrite"]),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_file_and_key(file: Path, text: str, words: list[str]) -> None:
    line = refused(text, file=file)
    assert line.startswith(f"{file}: ")
    for word in words:
        assert word in line


def test_a_file_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(file=str(tmp_path / "nope.toml"), environment={})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file=str(tmp_path), environment={})
    (tmp_path / "latin.toml").write_bytes(b'host = "caf\xe9"')
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file=str(tmp_path / "latin.toml"), environment={})


@pytest.mark.parametrize("pair", ["port", "=1", "router.=1", ".port=1", "router..port=1", ""])
def test_a_set_that_is_none_is_named(pair: str) -> None:
    assert "is not KEY=VALUE" in refused(settings=[pair])


def test_a_wrong_set_names_its_key_once() -> None:
    assert refused(settings=["router.prot=1"]) == "--set router.prot: unknown key; did you mean 'port'?"
    assert refused(settings=["plugin.health.path=/"]) == "--set plugin.health.path: plugin: unknown key; " + (
        "did you mean 'plugins'?"
    )


def test_the_table_of_a_plugin_that_nothing_enables_is_not_looked_at(file: Path) -> None:
    text = "[plugins.hf_tokenizer]\nbreakfast = 1\n"
    assert Application(loaded(text, file=file)).config.plugins["hf_tokenizer"] == {"breakfast": 1}
    assert "plugins.hf_tokenizer.breakfast: unknown key" in refused(text, file=file, enable=["hf_tokenizer"])


def test_a_key_that_is_a_value_and_a_table_is_named() -> None:
    assert "is a value and a table at once" in refused(settings=["router.port=1", "router.port.x=2"])
    line = refused(environment={"ROUTER__PLUGINS": "x", "ROUTER__PLUGINS__HEALTH__PATH": "/"})
    assert "is a value and a table at once" in line


def test_an_unknown_process_profile_is_named() -> None:
    assert "--profile: there is no profile 'p'; profiles: none" in refused(profile="p")
    line = refused(profile="q", settings=["profiles.p={}"])
    assert "profiles: p" in line


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    ["router", "port", "plugins", "health", "enabled", "profiles", "workers", "p", "enable", "plugins"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_no_configuration_raises_anything_but_a_config_error(value: Any) -> None:
    tables = value if isinstance(value, dict) else {"router": value}
    try:
        Application(load(tables, file="", environment={}))
    except ConfigError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["1e5", "1_000", "+7", "2.50", "007", "0x10"])
def test_a_number_written_in_another_way_is_no_other_text(text: str) -> None:
    config = load(settings=[f"ready_file={text}"], file="", environment={"ROUTER__ADMIN_HOST": text})
    assert (config.router.ready_file, config.router.admin_host) == (text, text)


def test_a_number_may_be_written_in_any_way_where_a_number_is_wanted() -> None:
    told = load(settings=["port=8_001", "hook_timeout_s=2.50", "router.args.lr=1e5"], file="", environment={}).router
    assert (told.port, told.hook_timeout_s, told.args["lr"]) == (8001, 2.5, 1e5)

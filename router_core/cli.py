"""The command line: ``router-core serve | check | plugins | new-plugin | engine | demo``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from router_core.errors import ConfigError

EXIT_CONFIG = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; a wrong configuration is one line on standard error and exit status 2."""
    options = _parser().parse_args(arguments)
    try:
        status = int(options.run(options) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read has enough, as in `router-core plugins | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        return 0
    except ConfigError as error:
        print(f"router-core: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="router-core", description="A router between RL rollouts and inference workers."
    )
    parser.add_argument("--version", action="version", version=f"router-core {version('router-core')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve requests in front of workers")
    _add_configuration(serve)
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="validate the configuration and make all plugins, without starting them")
    _add_configuration(check)
    told = check.add_mutually_exclusive_group()
    told.add_argument("--explain", action="store_true", help="print each setting with its value and where it is set")
    told.add_argument("--schema", action="store_true", help="print the JSON schema of plugins.toml")
    check.set_defaults(run=_check)

    plugins = commands.add_parser("plugins", help="list plugins: version, distribution, hooks, on or off")
    _add_configuration(plugins)
    plugins.set_defaults(run=_plugins)

    new_plugin = commands.add_parser("new-plugin", help="write a package with a plugin of your own, tests included")
    new_plugin.add_argument("name", metavar="NAME", help="the plugin's name: a-z, 0-9 and _")
    new_plugin.add_argument("--directory", metavar="D", help="where to write it (default: ./router-NAME)")
    new_plugin.set_defaults(run=_new_plugin)

    engine = commands.add_parser("engine", help="serve a small real model, for trying things out")
    engine.set_defaults(run=_engine)
    from router_core.reference_engine import add_arguments

    add_arguments(engine)

    demo = commands.add_parser(
        "demo", help="two small engines, a router, three rollouts at once, one worker killed and back"
    )
    demo.add_argument(
        "--engine",
        choices=("reference", "smollm2"),
        default="reference",
        help="reference: a tiny random model, nothing to install (default); smollm2: a small real one, in English",
    )
    demo.add_argument("--keep", action="store_true", help="leave everything serving until Ctrl-C")
    demo.add_argument("--port", type=int, default=0, help="port of the router (default: a free one)")
    demo.set_defaults(run=_demo)
    return parser


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: ./plugins.toml if there is one)")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for a free one (default: 8000)")
    parser.add_argument("--worker", action="append", metavar="URL", help="a worker's URL; may be repeated")
    parser.add_argument("--processes", type=int, metavar="N", help="processes that serve the port (default: 1)")
    parser.add_argument("--enable", action="append", default=[], metavar="NAME", help="a plugin to add to `enabled`")
    parser.add_argument("--disable", action="append", default=[], metavar="NAME", help="a plugin to take out of it")
    parser.add_argument("--middleware-paths", nargs="+", action="extend", metavar="PATH", help="pkg.mod:Class ...")
    parser.add_argument(
        "--slime-router-middleware-paths", nargs="+", action="extend", metavar="PATH", help="the same, last = outermost"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. plugins.health.interval_s=2"
    )
    parser.add_argument("--profile", metavar="NAME", help="the profile whose switches hold for the whole process")
    parser.add_argument("--ready-file", metavar="FILE", help="gets one JSON line once the port is open")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")


_FLAGS = {
    "host": "router.host",
    "port": "router.port",
    "worker": "router.workers",
    "processes": "router.processes",
    "middleware_paths": "router.middleware_paths",
    "slime_router_middleware_paths": "router.slime_router_middleware_paths",
    "ready_file": "router.ready_file",
    "log_level": "router.log_level",
}


def _application(options: argparse.Namespace) -> Any:
    from router_core.app import Application

    read = _reader(options)
    return Application(read(), read_config=read)


def _reader(options: argparse.Namespace) -> Any:
    """What reads the configuration, at the start and for each reload."""
    from router_core.config import Config, load

    given = {key: getattr(options, name) for name, key in _FLAGS.items()}
    sys.path.insert(0, "")  # middleware paths may name modules of the working directory

    def read() -> Config:
        return load(
            {key: value for key, value in given.items() if value is not None},
            settings=options.set,
            file=options.config,
            enable=options.enable,
            disable=options.disable,
            profile=options.profile,
        )

    return read


def _serve(options: argparse.Namespace) -> int:
    # before a plugin imports numpy: the kernel may look 20 ms for a huge page, in the midst of the loop
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    read = _reader(options)
    config = read()
    if config.router.processes > 1:
        from router_core.processes import serve_in_processes

        return serve_in_processes(read, config)
    from router_core.app import Application
    from router_core.server import serve

    return serve(Application(config, read_config=read))


def _check(options: argparse.Namespace) -> int:
    if options.schema:
        from json import dumps

        from router_core.introspection import schema

        print(dumps(schema(), indent=2))
        return 0
    application = _application(options)
    if options.explain:
        from router_core.introspection import explain

        print(explain(application.config, application.registry))
        return 0
    from router_core.build import build_name

    made, on = len(application.registry.plugins), ", ".join(application.plans.default.names) or "none"
    file = application.config.file or "none"
    print(f"ok (plugins were made, not started): {made} made, on: {on}; file: {file}; build: {build_name()}")
    return 0


def _plugins(options: argparse.Namespace) -> int:
    from router_core.listing import plugin_table

    application = _application(options)
    print(plugin_table(application.registry, application.plans.default.names))
    return 0


def _new_plugin(options: argparse.Namespace) -> int:
    from router_core.new_plugin import new_plugin

    target = new_plugin(options.name, options.directory)
    print(f"wrote {target}; next: cd {target} && pip install -e '.[test]' && pytest")
    return 0


def _engine(options: argparse.Namespace) -> int:
    from router_core.reference_engine import run_engine

    return run_engine(options)


def _demo(options: argparse.Namespace) -> int:
    from router_core.demo import demo
    from router_core.server import bind

    if not 0 <= options.port <= 65535:
        raise ConfigError(f"a port is a number from 0 to 65535, not {options.port}", where="--port")
    bind("127.0.0.1", options.port, lambda _: "--port").close()  # said before two engines are started
    return demo(options.engine, keep=options.keep, port=options.port)

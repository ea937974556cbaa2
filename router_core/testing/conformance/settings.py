"""Its settings: read, written, and read again they are the same; what is unknown is refused."""

from __future__ import annotations

from pydantic import ValidationError

from router_core import PluginSettings
from router_core.testing.conformance.subject import Nonconformance, Subject


async def settings_round_trip(subject: Subject) -> None:
    """Settings survive a round trip, are described, refuse unknown keys, and cannot be changed later."""
    model = subject.model
    if not issubclass(model, PluginSettings):
        raise Nonconformance(f"{model.__qualname__} is not a subclass of router_core.PluginSettings")
    settings = model.model_validate(dict(subject.settings))
    again = model.model_validate(settings.model_dump(exclude_unset=True))
    if again != settings:
        raise Nonconformance(f"settings read from their own dump differ: {again!r}, not {settings!r}")
    settings.model_dump_json()
    try:
        model.model_validate({**subject.settings, "no_such_setting_": 1})
    except ValidationError:
        pass
    else:
        raise Nonconformance("its settings take an unknown key: keep extra='forbid' of PluginSettings")
    if not model.model_config.get("frozen"):
        raise Nonconformance("its settings can be changed after the start: keep frozen=True of PluginSettings")
    if silent := [name for name, field in model.model_fields.items() if not field.description]:
        raise Nonconformance(f"settings without a docstring below them: {', '.join(silent)}")

"""Settings of the plugin that concern samples."""

from __future__ import annotations

from pydantic import Field, field_validator

from router_core import PluginSettings
from router_tito.errors import ExportError
from router_tito.exporters.auxiliary import DEFAULT_RULES, AuxiliaryRules


class ExportSettings(PluginSettings):
    """Which calls of an agent are auxiliary, and how many exports run at one time."""

    auxiliary_rules: list[str] = Field(default=list(DEFAULT_RULES))
    """By what a lone call is taken for an auxiliary one (a title, a summary) and left out of the samples: ``no_tools``
    (it offers none, the conversation does), ``other_system`` (no tools, and a system prompt of its own), or
    ``pkg.mod:function``. An empty list leaves nothing out."""
    auxiliary_patterns: list[str] = Field(default=[])
    """Regular expressions; a lone call in whose system prompt or last message one is found is auxiliary too."""
    max_exports: int = Field(default=2, ge=1)
    """Most requests for samples that are worked on at one time; more wait."""

    @field_validator("auxiliary_rules")
    @classmethod
    def _known_rules(cls, rules: list[str]) -> list[str]:
        _make(rules, [])
        return rules

    @field_validator("auxiliary_patterns")
    @classmethod
    def _good_patterns(cls, patterns: list[str]) -> list[str]:
        _make([], patterns)
        return patterns

    def make_rules(self) -> AuxiliaryRules:
        """The rules as they are set."""
        return _make(self.auxiliary_rules, self.auxiliary_patterns)


def _make(rules: list[str], patterns: list[str]) -> AuxiliaryRules:
    try:
        return AuxiliaryRules(rules, patterns)
    except ExportError as error:
        raise ValueError(str(error)) from None

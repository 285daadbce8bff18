"""What is said of one setting beside its name, type and default, and the list of all that a class declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from agent_runtime.settings.kinds import Kind, kind_of

Command = Literal["serve", "apply", "mcp"]
"""A command that takes settings as flags."""

PREFIX = "HUNK_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a setting is shown and bounded.

    help: one sentence for `--help` and the written file. commands: those that have it as a flag; without any it is set
    by file or environment only. group: the heading in `--help`. metavar: what stands for the value there. minimum,
    maximum: of a number. unset: what a default of None means, in words. secret: never shown.
    """

    help: str
    commands: tuple[Command, ...] = ()
    group: str = "Service"
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    unset: str = ""
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """One setting as a class declares it."""

    name: str
    annotation: Any
    default: Any
    kind: Kind
    setting: Setting

    @property
    def variable(self) -> str:
        """The environment's name for it."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The command line's name for it."""
        return "--" + self.name.replace("_", "-")


def declared(settings: type[Any]) -> Iterator[Declared]:
    """What a frozen dataclass declares, in its order: each field is `Annotated[type, Setting(...)]` with a default."""
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        hint = hints[field.name]
        assert get_origin(hint) is Annotated, f"{field.name} is not Annotated[type, Setting(...)]"
        annotation, setting = get_args(hint)
        assert isinstance(setting, Setting), f"{field.name} has no Setting"
        kind = kind_of(annotation, setting.minimum, setting.maximum)
        yield Declared(field.name, annotation, field.default, kind, setting)

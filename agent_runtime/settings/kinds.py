"""The kinds of value that a setting can have, each read from text (the environment) and from TOML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

BASES = (bool, int, float, str, Path)


@dataclass(frozen=True, slots=True)
class Kind:
    """`base` is one of `BASES`; `choices` are the only texts that there are, if any; `many` is a tuple of it."""

    base: type[Any]
    choices: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False
    minimum: float | None = None
    maximum: float | None = None

    def from_text(self, text: str) -> Any:
        """A value as a variable holds it; raises ValueError. An empty one is None or () where that is a value."""
        if self.many:
            return tuple(self._one_of_text(part.strip()) for part in text.split(",") if part.strip())
        return None if self.optional and not text.strip() else self._one_of_text(text.strip())

    def from_toml(self, value: Any, folder: Path) -> Any:
        """A value as a file in `folder` holds it, to which paths are relative; raises ValueError."""
        if self.many:
            if not isinstance(value, list):
                raise ValueError
            return tuple(self._one_of_toml(each, folder) for each in value)
        return self._one_of_toml(value, folder)

    def wanted(self) -> str:
        """What to give, in words."""
        one = self._one_wanted()
        return f"a list, each {one}" if self.many else one

    def _one_of_text(self, text: str) -> Any:
        if self.base is bool:
            if text.lower() not in WORDS:
                raise ValueError
            return WORDS[text.lower()]
        if self.base is Path:
            return _path(text)
        return self._bounded(self.base(text))

    def _one_of_toml(self, value: Any, folder: Path) -> Any:
        if self.base is Path:
            return folder / _path(value) if isinstance(value, str) else _refuse()
        if self.base is float and type(value) is int:
            value = float(value)
        if type(value) is not self.base:  # True is an int, too
            raise ValueError
        return self._bounded(value)

    def _bounded(self, value: Any) -> Any:
        if self.choices and value not in self.choices:
            raise ValueError
        if self.base is float and not math.isfinite(value):
            raise ValueError
        if (self.minimum is not None and value < self.minimum) or (self.maximum is not None and value > self.maximum):
            raise ValueError
        return value

    def _one_wanted(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        name = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}[
            self.base
        ]
        match self.minimum, self.maximum:
            case None, None:
                return name
            case least, None:
                return f"{name} of at least {least:g}"
            case None, most:
                return f"{name} of at most {most:g}"
            case least, most:
                return f"{name} from {least:g} to {most:g}"


def kind_of(annotation: Any, minimum: float | None = None, maximum: float | None = None) -> Kind:
    """The kind that a type stands for: a base, a Literal of texts, `tuple[base, ...]`, or one of these or None."""
    optional = False
    if get_origin(annotation) in (Union, UnionType):
        annotation, none = get_args(annotation)
        assert none is NoneType, f"{annotation} | {none} is no kind of setting"
        optional = True
    many = get_origin(annotation) is tuple
    if many:
        annotation, rest = get_args(annotation)
        assert rest is ...
    choices: tuple[str, ...] = ()
    if get_origin(annotation) is Literal:
        annotation, choices = str, get_args(annotation)
    assert annotation in BASES, f"{annotation} is no kind of setting"
    return Kind(annotation, choices, many, optional, minimum, maximum)


def _path(text: str) -> Path:
    return Path(text).expanduser() if text.strip() else _refuse()


def _refuse() -> Any:
    raise ValueError

"""Renders a model's own chat template, a Jinja program from its metadata, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_runtime.errors import CorruptModel


class ChatTemplate:
    """One model's template. `bos_token` and `eos_token` are what it may refer to by these names.

    The environment is set up as transformers' `apply_chat_template` does it (block trimming, loop controls,
    `raise_exception`, `tojson`), so that both render the same text.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = _tojson
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CorruptModel(f"the model's chat template is not valid Jinja: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text of `messages` ({"role", "content"} each), ready for the assistant's turn."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=None, **self._tokens
            )
        except Exception as error:  # a template is a program of somebody else's: it may divide by zero
            raise CorruptModel(f"the model's chat template cannot be rendered: {error}") from error


def _tojson(value: Any, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML; a prompt is not HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

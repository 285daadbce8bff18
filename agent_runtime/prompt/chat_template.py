"""Renders a model's chat template, a Jinja program from somebody else, in a sandbox with limits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from time import thread_time
from types import FrameType
from typing import Any, NoReturn

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_runtime.errors import CorruptModel

RENDER_SECONDS = 5.0
"""Seconds of CPU time to parse or render a template. Those of the catalogue take some milliseconds."""

LINES_OF_LOOK = 256
"""Lines between two checks of the time: a check takes longer than a line."""

MAX_PRODUCT = 1_000_000
"""Limit of the length of a text or list, or of the bits of a number, that one multiplication or power makes."""


class ChatTemplate:
    """One model's template, which may refer to `bos_token` and `eos_token`.

    The environment is that of transformers' `apply_chat_template` (block trimming, loop controls, `raise_exception`,
    `tojson`), so that both render the same text.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["tojson"] = _tojson
        self._source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            with _limit_time():
                self._template = environment.from_string(source)
        except Exception as error:  # parsing may recurse too deeply, and computes what is constant
            raise CorruptModel(f"the model's chat template is not valid Jinja: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as source text."""
        return partial(ChatTemplate, **self._tokens), (self._source,)

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        folds_system: bool = True,
    ) -> str:
        """Render `messages` ({"role", "content"} each) as a prompt for the assistant's turn.

        folds_system: where the template refuses a system message (Gemma 2), its text goes before that of the first
        question.
        """
        render = partial(self._template.render, add_generation_prompt=add_generation_prompt, tools=None, **self._tokens)
        try:
            with _limit_time():
                try:
                    return render(messages=messages)
                except _RefusedByTemplate:
                    if not folds_system or len(messages) < 2 or messages[0]["role"] != "system":
                        raise
                    first = f"{messages[0]['content']}\n\n{messages[1]['content']}"
                    return render(messages=[{**messages[1], "content": first}, *messages[2:]])
        except Exception as error:  # a template is a program of somebody else's: it may divide by zero
            raise CorruptModel(f"the model's chat template cannot be rendered: {error}") from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses large products, since a single Python operation cannot be interrupted."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute the product; raises SecurityError if it would be too large."""
        if _measure_product(operator, left, right) > MAX_PRODUCT:
            raise SecurityError(f"a product of more than {MAX_PRODUCT} characters, items or bits")
        return super().call_binop(context, operator, left, right)


def _measure_product(operator: str, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
    for times, many in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(many, "__len__"):
            return times * len(many)
    return 0


@contextmanager
def _limit_time() -> Iterator[None]:
    """Raise TimeoutError in the block when its time is over; the time is checked every few lines.

    It is raised at a line of code only, not while the interpreter closes a generator that nobody needs any more: there
    it would be printed and lost.
    """
    end, lines = thread_time() + RENDER_SECONDS, count(1)

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and next(lines) % LINES_OF_LOOK == 0 and thread_time() > end:
            raise TimeoutError(f"it takes more than {RENDER_SECONDS:g} s")
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


def _tojson(value: Any, indent: int | None = None) -> str:
    """Return JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _RefusedByTemplate(jinja2.TemplateError):
    """What a template raises by itself."""


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedByTemplate(message)


_GAP = re.compile("\ue0f0(\\d+)\ue0f1")


def render_frame(template: ChatTemplate, roles: Sequence[str], *, folds_system: bool = True) -> list[str]:
    """Return the text before each message and after the last one: one more than there are roles.

    No message goes through the template. Raises CorruptModel if the template omits or repeats a message, or does not
    know a role.
    """
    messages = [{"role": role, "content": f"\ue0f0{number}\ue0f1"} for number, role in enumerate(roles)]
    pieces = _GAP.split(template.render(messages, folds_system=folds_system))
    if pieces[1::2] != [str(number) for number in range(len(roles))]:
        raise CorruptModel("the model's chat template does not show every message once and in order")
    return pieces[::2]

"""Request bodies below /v1: what is taken, ignored, and refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agent_runtime.errors import BadRequest, Unsupported
from agent_runtime.llm.interface import ChatMessage
from agent_runtime.server.schemas import Prediction, Text
from agent_runtime.types import Certainty, Decide, Mode, ReuseName, ScopeName
from editor.grammars import find_language
from editor.syntax import survey
from editor.types import FormatName, Policy

OWN_MODEL = "hunk"
"""The model that the service runs, whichever it is."""

MAX_MESSAGES = 10_000
"""And parts of one: no context holds more, for each has some tokens of the chat template about it."""

PASSED_OVER = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Fields of OpenAI's that change no answer of this service, whatever they hold."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "web_search_options": (),
}
"""Fields of OpenAI's that are not supported: null and these values say what happens anyway."""

MESSAGE_PASSED_OVER = frozenset(
    {"annotations", "cache_control", "name", "reasoning", "reasoning_content", "refusal", "tool_call_id"}
)
MESSAGE_NEUTRAL: Mapping[str, tuple[Any, ...]] = {"audio": (), "function_call": (), "tool_calls": ([],)}

Role = Literal["system", "developer", "user", "assistant", "tool"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: Text | None = None


class Message(BaseModel):
    """One message; `developer` is another name of `system`."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: Role
    content: Text | Annotated[list[_Part], Field(max_length=MAX_MESSAGES)] | None = None

    def chat_message(self) -> ChatMessage:
        """What the model is shown of it; raises BadRequest where it holds more than text."""
        _check_others("a message's ", self.model_extra, MESSAGE_PASSED_OVER, MESSAGE_NEUTRAL)
        return ChatMessage("system" if self.role == "developer" else self.role, self._text())

    def _text(self) -> str:
        if self.content is None and self.role != "assistant":
            raise BadRequest(f"a message of the role {self.role!r} has no content", field="messages")
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        for part in self.content:
            if part.type != "text" or part.text is None:
                raise Unsupported(
                    f"a message's content can be text only: a part of the type {part.type!r} is none", field="messages"
                )
        return "".join(part.text or "" for part in self.content)


class ApplyOptions(BaseModel):
    """What an edit sent as a message can say beyond the message, as the fields of `POST /apply`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: Text = Field("", description="The file's name, which tells the language; else its text does.")
    format: FormatName | Literal["auto"] = "auto"
    mode: Mode = "auto"
    policy: Policy = "strict"
    min_certainty: Certainty | None = Field(None, description="What is less sure is refused. Null: nothing is.")
    scope: ScopeName = "auto"
    decide: Decide = "auto"
    reuse: ReuseName | None = None


class StreamOptions(BaseModel):
    """How an answer is streamed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = Field(False, description="Passed over: nothing is added to the chunks.")


class ChatBody(BaseModel):
    """A chat, or one user message that holds an edit: `<instruction>...</instruction><code>...</code><update>...`."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "model": "hunk",
                    "messages": [
                        {
                            "role": "user",
                            "content": "<code>limit = 10\nretries = 3\n</code>\n"
                            "<update>limit = 10\nseconds = 5\nretries = 3\n</update>",
                        }
                    ],
                },
                {"model": "hunk", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8},
            ]
        },
    )

    model: Text = OWN_MODEL
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0.0, le=2.0, description="Null: 0, always the likeliest token.")
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0, le=1 << 30)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=100.0)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    prediction: Prediction | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    hunk: ApplyOptions | None = Field(None, description="Of an edit; not OpenAI's.")

    def check(self) -> None:
        """Raise Unsupported for what changes answers elsewhere and not here, BadRequest for what nobody knows."""
        _check_others("", self.model_extra, PASSED_OVER, NEUTRAL)
        if self.stream_options is not None and not self.stream:
            raise BadRequest("'stream_options' is for answers with 'stream': true", field="stream_options")
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest("'top_logprobs' is for answers with 'logprobs': true", field="top_logprobs")

    @property
    def most_tokens(self) -> int | None:
        """Of the answer; the older name counts where the newer one is not there."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def includes_usage(self) -> bool:
        """Whether a last chunk tells the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


def _is_bool(value: Any) -> Any:
    """0 is equal to False, and so would pass for it."""
    if not isinstance(value, bool):
        raise ValueError("has to be a boolean")
    return value


class CodeApplyBody(BaseModel):
    """An edit as hosted apply services take it without a chat around it."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "initial_code": "limit = 10\nretries = 3\n",
                    "edit_snippet": "limit = 10\nseconds = 5\nretries = 3\n",
                    "instructions": "add a limit of seconds",
                }
            ]
        },
    )

    initial_code: Text
    edit_snippet: Text
    instructions: Text = ""
    model: Text = OWN_MODEL
    stream: Annotated[Literal[False], BeforeValidator(_is_bool)] = False
    hunk: ApplyOptions | None = None


def _check_others(
    whose: str, others: Mapping[str, Any] | None, passed_over: frozenset[str], neutral: Mapping[str, tuple[Any, ...]]
) -> None:
    for name, value in (others or {}).items():
        field = "messages" if whose else name
        if name in passed_over or (name in neutral and (value is None or value in neutral[name])):
            continue
        if name in neutral:
            allowed = ", ".join(repr(each) for each in neutral[name])
            hint = f"; it may be null{', ' if allowed else ''}{allowed}"
            raise Unsupported(f"this service does not support {whose}{name!r}{hint}", field=field)
        raise BadRequest(f"there is no field {whose}{name!r}", field=field)


MAX_BORDERS = 8
"""So many places at which one section may end and the next begin are looked at; a text with more is not such a file."""

Span = tuple[int, int]

_TAGS = ("instruction", "code", "update")
_TO_CODE = re.compile(r"</instruction>\s*<code>")
_TO_UPDATE = re.compile(r"</code>\s*<update>")
_FIRST_LINE = re.compile(r"\A\r?\n")
_LAST_LINE = re.compile(r"\r?\n\Z")


@dataclass(frozen=True, slots=True)
class ApplyMessage:
    """What the sections say; `code` is the file, byte for byte."""

    code: str
    update: str
    instruction: str = ""


def read_apply_message(text: str) -> ApplyMessage | None:
    r"""The edit that a message holds; None where it has another form and is a question like any other.

    The message is `<code>...</code><update>...</update>`, maybe with `<instruction>...</instruction>` before, and
    nothing but white space around and between. What stands in a section is taken as it is, with one exception: where
    both `<code>` and `<update>` are followed by a line's end and both closing tags begin a line, these line ends are
    the message's and not the texts'.

    The texts may hold the tags, too. Where that leaves several ways to read the message, the one is taken in which
    every section opens and closes each tag equally often; raises BadRequest where there are several such, or none: a
    file cut at the wrong place would be damaged.
    """
    text = text.strip()
    has_instruction = text.startswith("<instruction>")
    if not text.endswith("</update>") or not (has_instruction or text.startswith("<code>")):
        return None
    readings = list(_readings(text, has_instruction))
    if len(readings) > 1:
        readings = [spans for spans in readings if all(_is_balanced(text, *span) for span in spans)]
        if len(readings) != 1:
            raise BadRequest(
                "it cannot be told where <code> ends and <update> begins, for the texts hold these tags themselves; "
                "send the file and the edit apart, to /v1/code/apply or /apply",
                field="messages",
            )
    if not readings:
        return None
    *instruction, code, update = (text[start:end] for start, end in readings[0])
    code, update = _strip_layout(code, update)
    return ApplyMessage(code, update, "".join(instruction).strip())


def _readings(text: str, has_instruction: bool) -> Iterator[tuple[Span, ...]]:
    """All ways to part the message: where its sections begin and end."""
    first, last = len("<instruction>" if has_instruction else "<code>"), len(text) - len("</update>")
    to_update = _borders(_TO_UPDATE, text)
    if not has_instruction:
        yield from (((first, start), (end, last)) for start, end in to_update)
        return
    for before, behind in _borders(_TO_CODE, text):
        yield from (((first, before), (behind, start), (end, last)) for start, end in to_update if behind <= start)


def _borders(pattern: re.Pattern[str], text: str) -> Sequence[Span]:
    found = [match.span() for match in islice(pattern.finditer(text), MAX_BORDERS + 1)]
    if len(found) > MAX_BORDERS:
        raise BadRequest(
            f"the texts hold the tags of the message more than {MAX_BORDERS} times; send the file and the edit apart, "
            "to /v1/code/apply or /apply",
            field="messages",
        )
    return found


def _is_balanced(text: str, start: int, end: int) -> bool:
    return all(text.count(f"<{tag}>", start, end) == text.count(f"</{tag}>", start, end) for tag in _TAGS)


def _strip_layout(code: str, update: str) -> tuple[str, str]:
    """The texts without the line ends that only set them apart from the tags."""
    if all(_FIRST_LINE.search(text) and _LAST_LINE.search(text[1:]) for text in (code, update)):
        code, update = (_LAST_LINE.sub("", _FIRST_LINE.sub("", text)) for text in (code, update))
    return code, update


MAX_CHARACTERS = 200_000
"""Longer texts are not looked at: a grammar takes milliseconds a thousand lines."""

_SIGNS = [
    (re.compile(sign, re.MULTILINE), suffixes)
    for sign, suffixes in [
        (r"^<\?php", ("php",)),
        (r"^package \w+\s*$", ("go",)),
        (r"^\s*(async def|def|class) .*:\s*(#.*)?$", ("py",)),
        (r"^\s*(pub(\(\w+\))? )?(const |async |unsafe )*fn \w+", ("rs",)),
        (r"^\s*#\s*(include|ifndef|pragma)\b", ("cpp",)),
        (r"^\s*(using [\w.]+;|namespace [\w.]+)", ("cs",)),
        (r"^\s*(package|import( static)?) [\w.]+(\.\*)?;", ("java",)),
        (r"^\s*(import\b.*['\"];?|export |const |let |var |(async )?function\b)", ("ts", "tsx")),
        (r"^\s*end\s*$", ("rb",)),
    ]
]
"""What tells a language, the surest first, and the suffixes of the grammars that then have to prove it."""


def name_of(code: str) -> str:
    """`file` with a suffix, where the text shows a language whose grammar reads it without an error; else "".

    A definition has to be found, too: a grammar that finds none proves little. JavaScript counts as TypeScript, which
    holds it. Without a name it is as if there were no grammar for the text.
    """
    if len(code) > MAX_CHARACTERS:
        return ""
    suffixes = next((suffixes for sign, suffixes in _SIGNS if sign.search(code)), ())
    return next((name for suffix in suffixes if _is_read(name := f"file.{suffix}", code)), "")


def _is_read(name: str, code: str) -> bool:
    found = survey(code, find_language(name))
    return found is not None and not found.error_lines and bool(found.symbols)

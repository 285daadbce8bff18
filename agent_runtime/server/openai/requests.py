"""Request bodies below /v1: accepted, ignored and refused fields, and the edit in a message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from agent_runtime.certainty import Certainty
from agent_runtime.errors import BadRequest, Unsupported
from agent_runtime.llm.interface import ChatMessage
from agent_runtime.server.schemas import Prediction, Text
from agent_runtime.types import Decide, Mode, ReuseName, ScopeName
from editor.grammars import find_language
from editor.syntax import survey
from editor.types import FormatName, Policy

OWN_MODEL = "hunk"
"""A name for the model that the service runs."""

MAX_MESSAGES = 10_000
"""Maximum messages, and parts of one: each takes some tokens of the chat template, so no context holds more."""

IGNORED_FIELDS = frozenset(
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
"""Fields of OpenAI's that are ignored, whatever their value: they change no answer of this service."""

NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
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
"""Fields of OpenAI's that are not supported. They may be null or have one of these values, which change nothing."""

IGNORED_MESSAGE_FIELDS = frozenset(
    {"annotations", "cache_control", "name", "reasoning", "reasoning_content", "refusal", "tool_call_id"}
)
NEUTRAL_MESSAGE_VALUES: Mapping[str, tuple[Any, ...]] = {"audio": (), "function_call": (), "tool_calls": ([],)}

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

    def to_chat_message(self) -> ChatMessage:
        """Return the message for the model; raises Unsupported or BadRequest if it has other content than text."""
        _check_other_fields("a message's ", self.model_extra, IGNORED_MESSAGE_FIELDS, NEUTRAL_MESSAGE_VALUES)
        return ChatMessage("system" if self.role == "developer" else self.role, self._get_text())

    def _get_text(self) -> str:
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
    """Options of an edit that is sent as a message; they are fields of `POST /apply`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: Text = Field(
        "", description="The file's name, which shows its language. Empty: the language is guessed from the text."
    )
    format: FormatName | Literal["auto"] = "auto"
    mode: Mode = "auto"
    policy: Policy = "strict"
    min_certainty: Certainty | None = Field(None, description="Refuse less certain merges. Null: accept all.")
    scope: ScopeName = "auto"
    decide: Decide = "auto"
    reuse: ReuseName | None = None


class StreamOptions(BaseModel):
    """How an answer is streamed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False
    include_obfuscation: bool = Field(False, description="Ignored: nothing is added to the chunks.")


class ChatBody(BaseModel):
    """A chat, or one user message with an edit: `<instruction>...</instruction><code>...</code><update>...`."""

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
    temperature: float | None = Field(None, ge=0.0, le=2.0, description="Null: 0, always the most likely token.")
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
    hunk: ApplyOptions | None = Field(None, description="Options of an edit; OpenAI does not have this field.")

    def check(self) -> None:
        """Raise Unsupported for a field of OpenAI's that is not supported, BadRequest for an unknown or useless one."""
        _check_other_fields("", self.model_extra, IGNORED_FIELDS, NEUTRAL_VALUES)
        if self.stream_options is not None and not self.stream:
            raise BadRequest("'stream_options' is for answers with 'stream': true", field="stream_options")
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest("'top_logprobs' is for answers with 'logprobs': true", field="top_logprobs")

    @property
    def max_answer_tokens(self) -> int | None:
        """Maximum tokens of the answer: the newer of OpenAI's two fields, else the older."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


def _is_bool(value: Any) -> Any:
    """Raise ValueError unless the value is a boolean: 0 is equal to False, and would be accepted."""
    if not isinstance(value, bool):
        raise ValueError("has to be a boolean")
    return value


class CodeApplyBody(BaseModel):
    """An edit in the format of hosted apply services, without a chat."""

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

    initial_code: Text = Field(validation_alias=AliasChoices("initial_code", "initialCode"))
    edit_snippet: Text = Field(validation_alias=AliasChoices("edit_snippet", "editSnippet"))
    instructions: Text = ""
    model: Text = OWN_MODEL
    stream: Annotated[Literal[False], BeforeValidator(_is_bool)] = False
    hunk: ApplyOptions | None = None


def _check_other_fields(
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
"""Maximum places where one section may end and the next begin."""

Span = tuple[int, int]

_TAGS = ("instruction", "code", "update")
_TO_CODE = re.compile(r"</instruction>\s*<code>")
_TO_UPDATE = re.compile(r"</code>\s*<update>")
_FIRST_LINE = re.compile(r"\A\r?\n")
_LAST_LINE = re.compile(r"\r?\n\Z")


@dataclass(frozen=True, slots=True)
class ApplyMessage:
    """The sections of a message with an edit; `code` is the file, byte for byte."""

    code: str
    update: str
    instruction: str = ""


def parse_apply_message(text: str) -> ApplyMessage | None:
    """Parse the edit in a message; return None if the message has another form, and is a question.

    The message is `<code>...</code><update>...</update>`, optionally after `<instruction>...</instruction>`, with
    nothing but white space around and between. A section's text is taken unchanged, with one exception: where both
    `<code>` and `<update>` are followed by a line break and both closing tags begin a line, these line breaks are not
    part of the texts.

    The texts may contain these tags, so that the message can be read in several ways. Then the one is taken in which
    each section has as many opening as closing tags. Raises BadRequest if there is not exactly one: a file that is cut
    at the wrong place would be damaged.
    """
    text = text.strip()
    has_instruction = text.startswith("<instruction>")
    if not text.endswith("</update>") or not (has_instruction or text.startswith("<code>")):
        return None
    readings = list(_find_readings(text, has_instruction))
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


def _find_readings(text: str, has_instruction: bool) -> Iterator[tuple[Span, ...]]:
    """Yield each way to split the message: the start and end of its sections."""
    first, last = len("<instruction>" if has_instruction else "<code>"), len(text) - len("</update>")
    to_update = _find_borders(_TO_UPDATE, text)
    if not has_instruction:
        yield from (((first, start), (end, last)) for start, end in to_update)
        return
    for before, behind in _find_borders(_TO_CODE, text):
        yield from (((first, before), (behind, start), (end, last)) for start, end in to_update if behind <= start)


def _find_borders(pattern: re.Pattern[str], text: str) -> Sequence[Span]:
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
    """Return the texts without the line breaks that only separate them from the tags."""
    if all(_FIRST_LINE.search(text) and _LAST_LINE.search(text[1:]) for text in (code, update)):
        code, update = (_LAST_LINE.sub("", _FIRST_LINE.sub("", text)) for text in (code, update))
    return code, update


MAX_CHARACTERS = 200_000
"""Maximum characters of a text whose language is guessed: parsing takes milliseconds per thousand lines."""

_LANGUAGE_SIGNS = [
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
"""Patterns that hint at a language, the most certain first, and the suffixes of the grammars that then check it."""


def guess_file_name(code: str) -> str:
    """Guess a name, `file` and a suffix, for a text in a language that its grammar parses without error; else "".

    The grammar must also find a definition, as it may accept any text without one. JavaScript counts as TypeScript,
    which contains it. A text without a name is merged without a grammar.
    """
    if len(code) > MAX_CHARACTERS:
        return ""
    suffixes = next((suffixes for sign, suffixes in _LANGUAGE_SIGNS if sign.search(code)), ())
    return next((name for suffix in suffixes if _is_parsed(name := f"file.{suffix}", code)), "")


def _is_parsed(name: str, code: str) -> bool:
    found = survey(code, find_language(name))
    return found is not None and not found.error_lines and bool(found.symbols)

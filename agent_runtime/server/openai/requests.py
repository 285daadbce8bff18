"""The bodies of `/v1/chat/completions` and `/v1/code/apply`: what is taken, passed over and refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agent_runtime.chat import ChatMessage
from agent_runtime.errors import BadRequest, Unsupported
from agent_runtime.http.schema import Prediction, Text
from agent_runtime.types import Certainty, Decide, Mode, ReuseName, ScopeName
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

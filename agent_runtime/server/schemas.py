"""The request bodies of applies and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from agent_runtime.apply.multi_file import MAX_FILES
from agent_runtime.errors import BadRequest, Unsupported
from agent_runtime.session.files import MAX_SESSION_FILES
from agent_runtime.types import (
    DECIDE,
    SENT_OPTIONS,
    Certainty,
    Decide,
    Draft,
    Mode,
    ReuseName,
    ScopeName,
    resolve_min_certainty,
)
from editor.types import FormatName, Policy

_BLOCK_CHARACTERS = 1 << 16


def _check_encodable(text: str) -> str:
    """Raise ValueError for a lone surrogate: JSON can contain one, a file cannot."""
    if text.isascii():
        return text
    for start in range(0, len(text), _BLOCK_CHARACTERS):  # in one piece it would take memory anew, which is slower
        try:
            text[start : start + _BLOCK_CHARACTERS].encode("utf-16-le")  # three times as fast as UTF-8
        except UnicodeEncodeError as error:
            place = start + error.start
            raise ValueError(f"holds a lone surrogate at character {place}, which is not text") from None
    return text


Text = Annotated[str, AfterValidator(_check_encodable)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


SEED = "Of sampling. The default is a seed as any other: the same request gets the same answer."

Encoding = Literal["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "cp1252", "latin-1"]
"""Encodings that files are read in (`editor.codec`)."""


class _PredictionPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: Text


class _PredictionBody(BaseModel):
    """OpenAI's form of a prediction: the text in one piece, or in parts."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["content"]
    content: Text | list[_PredictionPart]


Prediction = Text | _PredictionBody


def get_prediction_text(prediction: Prediction | None) -> str | None:
    """Return a prediction in any form as text."""
    if not isinstance(prediction, _PredictionBody):
        return prediction
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


MAX_NAME = 100
"""Maximum characters of a field's name in a message: a sender may make it as long as the body."""

EXAMPLES: list[Any] = [
    {
        "original": "def add(a, b):\n    return a - b\n",
        "edit": "<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE\n",
        "path": "calc.py",
    },
    {
        "files": [
            {"path": "a.py", "original": "a = 1\n", "edit": '{"old_string": "a = 1", "new_string": "a = 2"}'},
            {"path": "b.py", "original": "b = 1\n", "edit": '{"old_string": "b = 1", "new_string": "b = 2"}'},
        ]
    },
]


class FileBody(BaseModel):
    """One of several files: `path` in the workspace, or `original`, the file's text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: Text | None = Field(None, description="With `original`: its name. Without: the file in the workspace.")
    original: Text | None = None
    encoding: Encoding = "utf-8"
    edit: Text | None = Field(None, description="Of this file; left out where the edit beside `files` names it.")
    prediction: Prediction | None = None
    expected_sha256: Sha256 | None = None


class ApplyBody(BaseModel):
    """One edit of one file (`path` in the workspace, or `original`, the file's text), or of several files.

    Several: `files`, each with its own `edit`; or one `edit` that names its files, which are in the workspace or given
    in `files`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": EXAMPLES})

    edit: Text | None = None
    path: Text | None = Field(None, description="With `original`: its name. Without: the file in the workspace.")
    original: Text | None = None
    encoding: Encoding = Field("utf-8", description="In which `original` gives the file's bytes, for the hashes.")
    files: list[FileBody] | None = Field(None, max_length=MAX_FILES)
    format: FormatName | Literal["auto"] = "auto"
    instruction: Text = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    min_certainty: Certainty | None = Field(
        None,
        description="What is less sure is refused. Null: `model`; with `write` `likely`, unless the mode is `model`.",
    )
    model: Text | None = Field(None, description="Has to be the model that the service runs.")
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63, description=SEED)
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    draft: Draft = "copy"
    expected_sha256: Sha256 | None = Field(None, description="The file's hash as the sender believes it to be.")
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    prediction: Prediction | None = Field(None, description="The whole file as it is expected to be after the edit.")
    reuse: ReuseName | None = Field(None, description="What may be taken of earlier edits. Null: the service's own.")
    workspace: Text | None = Field(None, description="Where the files are. Null: below the service's `--root`.")
    write: bool = Field(False, description="Put the merged files in their places in the workspace, all or none.")
    stream: bool = Field(False, description="Answer by server-sent events: phases, tokens, and then the result.")
    trace: bool = Field(False, description="Tell in the answer, token by token, what the model read and wrote.")

    def options(self, salt: str = "") -> dict[str, Any]:
        """Return the options of every file; the salt comes from the sender, not from the body."""
        least = resolve_min_certainty(self.min_certainty, self.mode, write=self.write)
        return {name: getattr(self, name) for name in SENT_OPTIONS} | {"min_certainty": least, "salt": salt}


def convert_validation_error(errors: Sequence[Any], what: str = "the body") -> BadRequest:
    """Convert pydantic's error to that of an unsupported field or, if there is none, of a malformed request."""
    first = errors[0]
    place = [str(part)[:MAX_NAME] for part in _strip_location(first["loc"])]
    field = place[0] if place else ""
    if first["type"] == "json_invalid":
        return BadRequest(f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    if not place:
        return BadRequest(f"{what} has to be a JSON object; send it as application/json")
    if first["type"] == "extra_forbidden":
        return Unsupported(f"there is no field {field!r}", field=field)
    return BadRequest(f"field {'.'.join(place)!r}: {first['msg']}", field=field)


def _strip_location(place: Sequence[Any]) -> Sequence[Any]:
    """Return a location without the part of the request with which the framework begins it."""
    is_part = place[:1] == ("body",) or (len(place) > 1 and place[0] in ("query", "path", "header", "cookie"))
    return place[1:] if is_part else place


def _make_config(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class SessionBody(BaseModel):
    """What a session is about."""

    model_config = _make_config(workspace="default")

    workspace: Text | None = Field(None, description="Whose files it reads. Null: the service's `--root`, if any.")
    reuse: ReuseName | None = Field(
        None, description="How its prompts follow changes of files. Null: as suits the model best."
    )
    preamble: Text | None = Field(None, description="What the model is told before anything else.", max_length=65536)


class ReadBody(BaseModel):
    """Files to be put into the context, and to be taken out of it."""

    model_config = _make_config(paths=["src/limits.py"])

    paths: list[Text] = Field(default_factory=list, max_length=MAX_SESSION_FILES, description="Files of the workspace.")
    texts: dict[Text, Text] = Field(
        default_factory=dict, max_length=MAX_SESSION_FILES, description="Texts, by paths that they stand for."
    )
    forget: list[Text] = Field(default_factory=list, max_length=MAX_SESSION_FILES, description="To be taken out.")
    with_text: bool = Field(False, description="Tell the text of each file in the answer, too.")


class AskBody(BaseModel):
    """A question to the model."""

    model_config = _make_config(question="Where is the limit set?", max_tokens=200)

    question: Text
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31, description="Of the answer. Null: 1024.")
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63, description=SEED)
    stop: list[Text] = Field(default_factory=list, max_length=16, description="Texts that end the answer.")
    clock: Text = Field("", max_length=4096, description="What changes with every turn, such as the time.")
    prediction: Prediction | None = Field(None, description="What the answer is expected to be; it saves time only.")
    stream: bool = Field(False, description="Answer by server-sent events: tokens, and then the result.")


class SessionApplyBody(BaseModel):
    """One edit, of the file at `path` or of the files that it names; the options are those of `POST /apply`."""

    model_config = _make_config(path="src/limits.py", edit='{"old_string": "limit = 10", "new_string": "limit = 20"}')

    edit: Text
    path: Text | None = Field(None, description="The file, read or not. Null: the edit names its files itself.")
    write: bool = Field(False, description="Put the merged files in their places.")
    stream: bool = Field(False, description="Answer by server-sent events: phases, tokens, and then the result.")
    expected_sha256: Sha256 | None = Field(None, description="The file's hash as the sender believes it to be.")
    prediction: Prediction | None = Field(None, description="The whole file as it is expected to be after the edit.")
    format: FormatName | Literal["auto"] = "auto"
    instruction: Text = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    min_certainty: Certainty | None = Field(
        None,
        description="What is less sure is refused. Null: `model`; with `write` `likely`, unless the mode is `model`.",
    )
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63, description=SEED)
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    draft: Draft = "copy"
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    reuse: ReuseName | None = Field(None, description="Null: as the session has it.")
    trace: bool = False

    def options(self) -> dict[str, Any]:
        """Return the options of the edit."""
        least = resolve_min_certainty(self.min_certainty, self.mode, write=self.write)
        return {name: getattr(self, name) for name in SENT_OPTIONS} | {"min_certainty": least}

"""The request bodies of applies and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from agent_runtime.apply.multi_file import MAX_FILES
from agent_runtime.certainty import Certainty
from agent_runtime.errors import BadRequest, Unsupported, find_nearest
from agent_runtime.session.files import MAX_SESSION_FILES
from agent_runtime.types import (
    DECIDE,
    SENT_OPTIONS,
    WRITE_SECONDS,
    Decide,
    Draft,
    Mode,
    OnConflict,
    ReuseName,
    ScopeName,
    encode_edit,
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


def encode_objects(edit: object) -> object:
    """Encode an edit that is sent as JSON objects; anything else is left to the schema."""
    try:
        return encode_edit(edit)
    except TypeError:
        return edit


EditText = Annotated[
    Text,
    BeforeValidator(encode_objects),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array", "items": {"type": "object"}}]}),
]
"""An edit: a text in any format, or the objects of one in JSON."""

WriteSeconds = Annotated[
    float, Field(gt=0.0, le=86_400.0, description="Maximum time from the first token that the model writes for a file.")
]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


SEED = "Seed of sampling. It has a default, so that the same request gets the same answer."

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

    path: Text | None = Field(
        None, description="With `original`: the file's name. Without: the file's path in the workspace."
    )
    original: Text | None = None
    encoding: Encoding = "utf-8"
    edit: EditText | None = Field(
        None, description="The edit of this file; omitted if the edit beside `files` names the file."
    )
    prediction: Prediction | None = None
    expected_sha256: Sha256 | None = None
    base: Text | None = None
    base_sha256: Sha256 | None = None


class ApplyBody(BaseModel):
    """One edit of one file (`path` in the workspace, or `original`, the file's text), or of several files.

    Several: `files`, each with its own `edit`; or one `edit` that names its files, which are in the workspace or given
    in `files`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": EXAMPLES})

    edit: EditText | None = None
    path: Text | None = Field(
        None, description="With `original`: the file's name. Without: the file's path in the workspace."
    )
    original: Text | None = None
    encoding: Encoding = Field("utf-8", description="Encoding of the file, in which its hashes are computed.")
    files: list[FileBody] | None = Field(None, max_length=MAX_FILES)
    format: FormatName | Literal["auto"] = "auto"
    instruction: Text = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    min_certainty: Certainty | None = Field(
        None,
        description="Refuse less certain merges. Null: `model`; with `write` `likely`, unless the mode is `model`.",
    )
    model: Text | None = Field(None, description="The model that the service runs; other names are refused.")
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63, description=SEED)
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    max_write_seconds: WriteSeconds = WRITE_SECONDS
    draft: Draft = "copy"
    expected_sha256: Sha256 | None = Field(
        None, description="The expected hash of the file; if it differs, the request is refused."
    )
    base: Text | None = Field(
        None,
        description="The text that the edit was made for. The file may have changed since: both changes are merged.",
    )
    base_sha256: Sha256 | None = Field(
        None, description="As `base`, by the hash of a version that the service has shown, written or kept."
    )
    on_conflict: OnConflict = Field(
        "refuse", description="Where the edit and the file's changes since the base touch the same lines."
    )
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    prediction: Prediction | None = Field(None, description="The expected text of the whole file after the edit.")
    reuse: ReuseName | None = Field(
        None, description="How the KV of earlier edits is reused. Null: the service's own mode."
    )
    workspace: Text | None = Field(None, description="Name of the workspace. Null: the service's `--root`.")
    write: bool = Field(False, description="Write the merged files to the workspace, all or none.")
    stream: bool = Field(
        False, description="Answer with server-sent events: phases, tokens, and at the end the result."
    )
    trace: bool = Field(False, description="Add a trace of each token that the model read and wrote to the answer.")

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
        return Unsupported(f"there is no field {field!r}{_describe_nearest(field)}", field=field)
    return BadRequest(f"field {'.'.join(place)!r}: {first['msg']}", field=field)


def _describe_nearest(field: str) -> str:
    """Describe what an unknown field of an apply was meant to be, "" if nothing is near."""
    if field in ("old_string", "new_string", "old_str", "new_str", "oldString", "newString", "replace_all"):
        return "; an edit in JSON is the value of 'edit', as text or as an object"
    near = find_nearest(field, ApplyBody.model_fields)
    return f"; did you mean {near!r}?" if near else ""


def _strip_location(place: Sequence[Any]) -> Sequence[Any]:
    """Return a location without the part of the request with which the framework begins it."""
    is_part = place[:1] == ("body",) or (len(place) > 1 and place[0] in ("query", "path", "header", "cookie"))
    return place[1:] if is_part else place


def _make_config(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class UndoBody(BaseModel):
    """A write to be undone."""

    model_config = _make_config(id="3f2a9c0d1b4e")

    id: Text | None = Field(None, description="ID of the write, or its beginning. Null: the last one that is in force.")
    workspace: Text | None = Field(None, description="Workspace of its files. Null: the service's `--root`.")


class UndoResponseFile(BaseModel):
    """A file that was put back. The hashes are those before and after the undo; null: no file."""

    path: str
    before: str | None
    after: str | None


class UndoResponse(BaseModel):
    """The undo, which is a write itself: its `id` undoes it. `undoes` is the ID of the write that was undone."""

    id: str
    undoes: str
    files: list[UndoResponseFile]


class SessionBody(BaseModel):
    """What a session is about."""

    model_config = _make_config(workspace="default")

    workspace: Text | None = Field(None, description="Workspace of its files. Null: the service's `--root`, if any.")
    reuse: ReuseName | None = Field(
        None, description="How its prompts follow changes of files. Null: the best mode for the model."
    )
    preamble: Text | None = Field(None, description="The text with which each prompt begins.", max_length=65536)


class ReadBody(BaseModel):
    """Files to be put into the context, and to be taken out of it."""

    model_config = _make_config(paths=["src/limits.py"])

    paths: list[Text] = Field(default_factory=list, max_length=MAX_SESSION_FILES, description="Files of the workspace.")
    texts: dict[Text, Text] = Field(
        default_factory=dict, max_length=MAX_SESSION_FILES, description="Texts to show as files, by path."
    )
    forget: list[Text] = Field(
        default_factory=list, max_length=MAX_SESSION_FILES, description="Paths to remove from the context."
    )
    with_text: bool = Field(False, description="Add the text of each file to the answer.")


class AskBody(BaseModel):
    """A question to the model."""

    model_config = _make_config(question="Where is the limit set?", max_tokens=200)

    question: Text
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31, description="Maximum tokens of the answer. Null: 1024.")
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63, description=SEED)
    stop: list[Text] = Field(default_factory=list, max_length=16, description="Texts that end the answer.")
    clock: Text = Field("", max_length=4096, description="Text that changes with every turn, such as the time.")
    prediction: Prediction | None = Field(None, description="The expected answer; it saves time and changes nothing.")
    stream: bool = Field(False, description="Answer with server-sent events: tokens, and at the end the result.")


class SessionApplyBody(BaseModel):
    """One edit, of the file at `path` or of the files that it names; the options are those of `POST /apply`."""

    model_config = _make_config(path="src/limits.py", edit='{"old_string": "limit = 10", "new_string": "limit = 20"}')

    edit: EditText
    path: Text | None = Field(None, description="The file, whether read before or not. Null: the edit names its files.")
    write: bool = Field(False, description="Write the merged files.")
    stream: bool = Field(
        False, description="Answer with server-sent events: phases, tokens, and at the end the result."
    )
    expected_sha256: Sha256 | None = Field(
        None, description="The expected hash of the file; if it differs, the request is refused."
    )
    base_sha256: Sha256 | None = Field(
        None,
        description="The hash of the version that the edit was made for. The file may have changed since: both changes "
        "are merged.",
    )
    on_conflict: OnConflict = "refuse"
    prediction: Prediction | None = Field(None, description="The expected text of the whole file after the edit.")
    format: FormatName | Literal["auto"] = "auto"
    instruction: Text = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    min_certainty: Certainty | None = Field(
        None,
        description="Refuse less certain merges. Null: `model`; with `write` `likely`, unless the mode is `model`.",
    )
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    seed: int = Field(0, ge=-(1 << 63), lt=1 << 63, description=SEED)
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    max_write_seconds: WriteSeconds = WRITE_SECONDS
    draft: Draft = "copy"
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    reuse: ReuseName | None = Field(None, description="Null: the session's mode.")
    trace: bool = False

    def options(self) -> dict[str, Any]:
        """Return the options of the edit."""
        least = resolve_min_certainty(self.min_certainty, self.mode, write=self.write)
        return {name: getattr(self, name) for name in SENT_OPTIONS} | {"min_certainty": least}

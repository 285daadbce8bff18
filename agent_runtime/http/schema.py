"""The body of `POST /apply`: what is taken, and what is refused by name because it is not supported yet."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from agent_runtime.errors import BadRequest, Unsupported
from agent_runtime.patching import MAX_FILES
from agent_runtime.types import DECIDE, SENT_OPTIONS, Decide, Draft, Mode, ReuseName, ScopeName
from editor.types import FormatName, Policy

NOT_YET: dict[str, tuple[Any, ...]] = {
    "stream": (False,),
    "write": (False,),
}
"""Fields of the interface whose other values come with later versions; these values are what happens anyway."""


def _encodable(text: str) -> str:
    """JSON can spell a lone surrogate, which no file can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"holds a lone surrogate at character {error.start}, which is not text") from None
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


Encoding = Literal["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "cp1252", "latin-1"]
"""What files are read in (`editor.codec`)."""


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


def text_of(prediction: Prediction | None) -> str | None:
    """A prediction as text, whatever its form."""
    if not isinstance(prediction, _PredictionBody):
        return prediction
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


class FileBody(BaseModel):
    """One of several files: `path` below the service's root, or `original`, the file's text."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: Text | None = None
    original: Text | None = None
    encoding: Encoding = "utf-8"
    edit: Text | None = Field(None, description="Of this file; left out where the edit beside `files` names it.")
    prediction: Prediction | None = None
    expected_sha256: Sha256 | None = None


class ApplyBody(BaseModel):
    """One edit of one file (`path` below the service's root, or `original`, the file's text), or of several files.

    Several: `files`, each with its own `edit`; or one `edit` that names its files, below the service's root or given
    in `files`.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {
                    "original": "def add(a, b):\n    return a - b\n",
                    "edit": "<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE\n",
                    "path": "calc.py",
                }
            ]
        },
    )

    edit: Text | None = None
    path: Text | None = Field(None, description="With `original`: its name. Without: the file below the root.")
    original: Text | None = None
    encoding: Encoding = Field("utf-8", description="In which `original` gives the file's bytes, for the hashes.")
    files: list[FileBody] | None = Field(None, max_length=MAX_FILES)
    format: FormatName | Literal["auto"] = "auto"
    instruction: Text = ""
    mode: Mode = "auto"
    policy: Policy = "strict"
    model: Text | None = Field(None, description="Has to be the model that the service runs.")
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    seed: int = 0
    max_tokens: int | None = Field(None, ge=1)
    draft: Draft = "copy"
    expected_sha256: Sha256 | None = Field(None, description="The file's hash as the sender believes it to be.")
    scope: ScopeName = "auto"
    decide: Decide = DECIDE
    prediction: Prediction | None = Field(None, description="The whole file as it is expected to be after the edit.")
    reuse: ReuseName | None = Field(None, description="What may be taken of earlier edits. Null: the service's own.")
    stream: Literal[False] = False
    trace: bool = Field(False, description="Tell in the answer, token by token, what the model read and wrote.")
    write: Literal[False] = False

    def options(self, salt: str = "") -> dict[str, Any]:
        """What applies to every file; the salt is of whom it comes from, and not in the body."""
        return {name: getattr(self, name) for name in SENT_OPTIONS} | {"salt": salt}


def fault_of_validation(errors: list[Any]) -> BadRequest:
    """What pydantic found, as a field that is not supported or, if there is none, as a malformed request."""
    first = next((error for error in errors if _is_not_yet(error)), errors[0])
    place = _place(first)
    field = place[0] if place else ""
    if first["type"] == "json_invalid":
        return BadRequest(f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    if not field:
        return BadRequest("the body has to be a JSON object; send it as application/json")
    if _is_not_yet(first):
        allowed = ", ".join(repr(value) for value in NOT_YET[field])
        what = f"supports only {allowed} for" if allowed else "does not support"
        return Unsupported(f"this version {what} the field {field!r}", field=field)
    if first["type"] == "extra_forbidden":
        return Unsupported(f"there is no field {field!r}", field=field)
    return BadRequest(f"field {'.'.join(place)!r}: {first['msg']}", field=field)


def _is_not_yet(error: Any) -> bool:
    place = _place(error)
    return bool(place) and place[0] in NOT_YET and error["type"] in ("literal_error", "extra_forbidden")


def _place(error: Any) -> list[str]:
    return [str(part) for part in error["loc"] if part != "body"]

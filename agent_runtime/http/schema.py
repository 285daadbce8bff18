"""The body of `POST /apply`: what is taken, and what is refused by name because it is not supported yet."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from agent_runtime.errors import BadRequest, Unsupported
from agent_runtime.types import ApplyRequest, Draft, Mode

NOT_YET: dict[str, tuple[Any, ...]] = {
    "files": (),
    "prediction": (),
    "stream": (False,),
    "write": (False,),
    "scope": ("auto", "file"),
    "decide": ("generate",),
    "reuse": ("exact",),
    "policy": ("strict",),
    "format": ("auto", "lazy", "search_replace"),
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


class ApplyBody(BaseModel):
    """One edit of one file: `path` below the service's root, or `original`, the file's text."""

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

    edit: Text
    path: Text | None = Field(None, description="With `original`: its name. Without: the file below the root.")
    original: Text | None = None
    format: Literal["auto", "lazy", "search_replace"] = "auto"
    instruction: Text = ""
    mode: Mode = "auto"
    model: Text | None = Field(None, description="Has to be the model that the service runs.")
    temperature: float = Field(0.0, ge=0.0, le=10.0)
    seed: int = 0
    max_tokens: int | None = Field(None, ge=1)
    draft: Draft = "copy"
    expected_sha256: Sha256 | None = Field(None, description="The file's hash as the sender believes it to be.")
    scope: Literal["auto", "file"] = "auto"
    decide: Literal["generate"] = "generate"
    reuse: Literal["exact"] = "exact"
    policy: Literal["strict"] = "strict"
    stream: Literal[False] = False
    write: Literal[False] = False

    def request(self, original: bytes) -> ApplyRequest:
        """The pipeline's request for these bytes."""
        return ApplyRequest(
            original=original,
            edit=self.edit,
            path=self.path or "",
            format=self.format,
            instruction=self.instruction,
            mode=self.mode,
            temperature=self.temperature,
            seed=self.seed,
            max_tokens=self.max_tokens,
            draft=self.draft,
        )


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

"""The bodies of the session routes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_runtime.http.schema import SEED, Prediction, Sha256, Text
from agent_runtime.sessions.files import MAX_FILES
from agent_runtime.types import (
    DECIDE,
    SENT_OPTIONS,
    Certainty,
    Decide,
    Draft,
    Mode,
    ReuseName,
    ScopeName,
    min_certainty_of,
)
from editor.types import FormatName, Policy


def _strict(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [example]})


class SessionBody(BaseModel):
    """What a session is about."""

    model_config = _strict(workspace="default")

    workspace: Text | None = Field(None, description="Whose files it reads. Null: the service's `--root`, if any.")
    reuse: ReuseName | None = Field(
        None, description="How its prompts follow changes of files. Null: as suits the model best."
    )
    preamble: Text | None = Field(None, description="What the model is told before anything else.", max_length=65536)


class ReadBody(BaseModel):
    """Files to be put into the context, and to be taken out of it."""

    model_config = _strict(paths=["src/limits.py"])

    paths: list[Text] = Field(default_factory=list, max_length=MAX_FILES, description="Files of the workspace.")
    texts: dict[Text, Text] = Field(
        default_factory=dict, max_length=MAX_FILES, description="Texts, by paths that they stand for."
    )
    forget: list[Text] = Field(default_factory=list, max_length=MAX_FILES, description="To be taken out.")
    with_text: bool = Field(False, description="Tell the text of each file in the answer, too.")


class AskBody(BaseModel):
    """A question to the model."""

    model_config = _strict(question="Where is the limit set?", max_tokens=200)

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

    model_config = _strict(path="src/limits.py", edit='{"old_string": "limit = 10", "new_string": "limit = 20"}')

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
        """How the edit is merged."""
        least = min_certainty_of(self.min_certainty, self.mode, write=self.write)
        return {name: getattr(self, name) for name in SENT_OPTIONS} | {"min_certainty": least}

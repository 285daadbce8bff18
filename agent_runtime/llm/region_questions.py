"""The questions to the model about one edit: one for each region that it can touch."""

from __future__ import annotations

from dataclasses import dataclass

from agent_runtime.edit_selection import render_blocks
from agent_runtime.llm.interface import ModelTask
from agent_runtime.types import GivenScope
from editor import scope as editor_scope
from editor.grammars import find_language
from editor.lazy.merge import render_snippet
from editor.scope import Region, Scope
from editor.types import ParsedEdit, Sketch


@dataclass(frozen=True, slots=True)
class Question:
    r"""One region and what a model has to know of it: texts without their final newline.

    `merges` and `prediction` are guesses at the answer, whose lines all end with "\n": the editor's, best first, and
    the sender's.
    """

    region: Region
    file_text: str
    edit_text: str
    merges: tuple[str, ...]
    prediction: str | None


def scope_of(task: ModelTask) -> Scope:
    """The regions that the request's `scope` asks for."""
    if task.request.scope == "file":
        return whole_file(task)
    return editor_scope.find_regions(task.text, task.edit, task.by_rule, find_language(task.request.path))


def whole_file(task: ModelTask) -> Scope:
    """All of the file as one region."""
    return editor_scope.build_whole_scope(task.text, task.edit, task.by_rule)


def questions(task: ModelTask, scope: Scope) -> list[Question]:
    """The questions of a scope's regions, in the order of the file."""
    expected: tuple[str, ...] | None = None
    if task.request.prediction is not None:
        expected = editor_scope.cut(task.text, _normalize_prediction(task.request.prediction), scope.regions)
    return [
        Question(
            region=region,
            file_text=region.text.removesuffix("\n"),
            edit_text=_edit_text(task, region.edit),
            merges=region.candidates,
            prediction=None if expected is None else expected[number],
        )
        for number, region in enumerate(scope.regions)
    ]


def describe_scope(scope: Scope) -> GivenScope:
    """The scope as the answer tells it."""
    regions = tuple((region.first_line + 1, region.end_line) for region in scope.regions if region.num_lines)
    num_lines = sum(region.num_lines for region in scope.regions)
    return GivenScope("file" if scope.whole else "regions", regions, num_lines, scope.num_lines)


def _edit_text(task: ModelTask, part: ParsedEdit | None) -> str:
    if part is None:
        return task.request.edit.strip("\n")
    if isinstance(part.changes, Sketch):
        return render_snippet(part.changes, find_language(task.request.path))
    return render_blocks(part).removesuffix("\n")


def _normalize_prediction(prediction: str) -> str:
    r"""A prediction with "\n" lines and no BOM, as the texts are that the model sees."""
    return prediction.removeprefix("\ufeff").replace("\r\n", "\n")

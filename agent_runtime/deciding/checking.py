"""Which readings of an edit are worth a model's time: those that every check lets pass."""

from __future__ import annotations

from agent_runtime.types import ModelTask
from editor.languages import language_of
from editor.types import Unresolved
from editor.verify import passed, verify


def sound(task: ModelTask) -> list[int]:
    """The numbers of the task's candidates that the checks let pass under the request's policy."""
    if not isinstance(task.by_rule, Unresolved):
        return []
    language = language_of(task.request.path)
    return [
        number
        for number, candidate in enumerate(task.by_rule.candidates)
        if passed(verify(task.text, candidate.text, task.edit, language), task.request.policy)
    ]

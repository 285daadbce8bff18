"""Which readings of an edit are worth a model's time: those that it can see whole and that every check lets pass."""

from __future__ import annotations

from agent_runtime.apply.merger import ModelTask
from editor.languages import language_of
from editor.scope import Scope, holds
from editor.types import Unresolved
from editor.verify import passed, verify


def sound(task: ModelTask, scope: Scope) -> list[int]:
    """The numbers of the task's candidates that change nothing outside of the scope's regions and that the checks let
    pass under the request's policy.
    """
    if not isinstance(task.by_rule, Unresolved):
        return []
    language, said = language_of(task.request.path), (task.request.instruction,)
    return [
        number
        for number, candidate in enumerate(task.by_rule.candidates)
        if holds(task.text, candidate.text, scope.regions)  # it takes less than the checks
        and passed(verify(task.text, candidate.text, task.edit, language, said=said), task.request.policy)
    ]

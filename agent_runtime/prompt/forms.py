"""Prompt forms: instructions, examples and order of sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_runtime.prompt.examples import (
    CART,
    FIRST,
    LIMITS,
    REQUIRED,
    SECTIONS,
    STORE,
    ApplyTexts,
    Example,
    PromptPiece,
)

TAG = "updated-code"
"""The answer's usual tag, also in the texts of a form; another takes its place where a file or an edit holds it."""

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PromptForm:
    """A form of the prompt for applying an edit.

    system: what the model is told first. examples: edits that are shown as if they had been asked and answered before.
    order: the sections of a question (`texts.SECTIONS`).
    """

    name: str
    system: str
    examples: tuple[Example, ...]
    order: tuple[str, ...] = ("part", "code", "update", "instruction")

    def render_preamble(self, tag: str) -> list[Message]:
        """The messages before the question, the same for every edit."""
        messages: list[Message] = [{"role": "system", "content": self.system.replace(TAG, tag)}]
        for example in self.examples:
            question = "".join(piece.text for piece in self.render_question(example.texts))
            answer = f"<{tag}>\n{example.result}\n</{tag}>"
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return messages

    def render_question(self, texts: ApplyTexts) -> list[PromptPiece]:
        """The pieces of a question, in order."""
        pieces: list[PromptPiece] = []
        for name in self.order:
            section, text = SECTIONS[name], SECTIONS[name].text(texts)
            if text or name in REQUIRED:
                pieces += [PromptPiece(section.before), PromptPiece(text, name), PromptPiece(section.after)]
        return pieces


_RULES = (
    "Copy every line that the edit does not change exactly as it is, comments, blank lines and indentation included. "
    "Comments such as '... existing code ...' stand for unchanged code: never write them, "
    "write the code they stand for."
)
_TAGS = (
    "You merge edits into code. You are given a file in <code> and an edit of it in <update>. "
    "Write the whole file with the edit applied, between <updated-code> and </updated-code>. " + _RULES
)
_TAUGHT = (
    "You merge edits into code. You are given a file in <code> and an edit of it in <update>. "
    "Write the whole file with the edit applied, between <updated-code> and </updated-code>. "
    "Every new or changed line of the edit goes into the file, new comments too, indented as the file is. "
    "Every other line of the file is copied exactly as it is, with its comments and blank lines. "
    "A line such as '... existing code ...' in the edit stands for lines of the file that are left out there: "
    "never write it, write those lines."
)
_EDIT_FIRST = (
    "You merge edits into code. You are given an edit in <update> and the file that it changes in <code>. "
    "Write the whole file with the edit applied, between <updated-code> and </updated-code>. " + _RULES
)

DEFAULT = PromptForm("tags", _TAGS, (STORE,))
"""The form of a model that the catalogue does not know."""

_ALL = (
    DEFAULT,
    PromptForm("examples", _TAUGHT, (CART, STORE)),
    PromptForm("many-examples", _TAUGHT, (FIRST, LIMITS, CART, STORE)),
    PromptForm("edit-first", _EDIT_FIRST, (STORE,), order=("part", "instruction", "update", "code")),
)
FORMS: Mapping[str, PromptForm] = {form.name: form for form in _ALL}


def find_form(name: str) -> PromptForm:
    """The form called `name`; raises ValueError, naming all, where there is none."""
    if name not in FORMS:
        raise ValueError(f"no prompt form is called {name!r}; there are {', '.join(FORMS)}")
    return FORMS[name]

"""The forms that a prompt can take: what the model is told, which examples it sees, in which order things stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_runtime.prompt.examples import CART, FIRST, LIMITS, METHOD, SAVE, STORE, Example
from agent_runtime.prompt.texts import REQUIRED, SECTIONS, Texts

TAG = "updated-code"
"""The answer's usual tag, also in the texts of a form; another takes its place where a file or an edit holds it."""

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PromptForm:
    """One way to ask for an edit to be applied.

    system: what the model is told first. examples: edits that are shown as if they had been asked and answered before.
    order: the sections of a question (`texts.SECTIONS`). closing: a line of ours behind them. lead: what the answer is
    made to begin with, before its tag.
    """

    name: str
    system: str
    examples: tuple[Example, ...]
    order: tuple[str, ...] = ("part", "code", "update", "instruction")
    closing: str = ""
    lead: str = ""

    def preamble(self, tag: str) -> list[Message]:
        """The messages before the question, the same for every edit."""
        messages: list[Message] = [{"role": "system", "content": self.system.replace(TAG, tag)}]
        for example in self.examples:
            question = "".join(piece for piece, _ in self.question(example.texts, tag))
            answer = f"{self.opening(tag)}{example.result}\n</{tag}>"
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return messages

    def question(self, texts: Texts, tag: str) -> list[tuple[str, bool]]:
        """The pieces of a question, in order, and whether each is the user's text or ours."""
        pieces: list[tuple[str, bool]] = []
        for name in self.order:
            section, text = SECTIONS[name], SECTIONS[name].text(texts)
            if text or name in REQUIRED:
                pieces += [(section.before, False), (text, True), (section.after, False)]
        return [*pieces, (self.closing.replace(TAG, tag), False)]

    def opening(self, tag: str) -> str:
        """What the answer is made to begin with."""
        return f"{self.lead}<{tag}>\n"


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
_FAST_APPLY = (
    "You are a coding assistant that helps merge code updates, ensuring every modification is fully integrated."
)
_FAST_APPLY_TASK = (
    "Merge all changes from the <update> snippet into the <code> above.\n"
    "- Preserve the code's structure, order, comments, and indentation exactly.\n"
    "- Output only the updated code, enclosed within <updated-code> and </updated-code> tags.\n"
    "- Do not include any additional text, explanations, placeholders, ellipses, or code fences.\n"
)
_CLOSING = "Write the whole code with the edit applied, between <updated-code> and </updated-code>.\n"

DEFAULT = PromptForm("tags", _TAGS, (STORE,))
"""The form of a model that the catalogue does not know."""

_BLOCKS = (
    "You merge edits into code. You are given a file in <code> and an edit of it in one or several <update>. "
    "Each <update> shows some lines of the changed file; lines that none of them shows stay as they are. "
    "Write the whole file with the edit applied, between <updated-code> and </updated-code>. "
    "Copy every line that the edit does not change exactly as it is, comments, blank lines and indentation included."
)
_UPDATE_FIRST = ("part", "instruction", "update", "code")
_ALL = (
    DEFAULT,
    PromptForm("plain", _TAGS, ()),
    PromptForm("fast-apply", _FAST_APPLY, (), closing=_FAST_APPLY_TASK),
    PromptForm("short", _TAGS, (SAVE,)),
    PromptForm("bare", _TAGS, (CART,)),
    PromptForm("two", _TAGS, (CART, STORE)),
    PromptForm("two-short", _TAGS, (CART, SAVE)),
    PromptForm("three", _TAGS, (CART, METHOD, STORE)),
    PromptForm("edit-first", _EDIT_FIRST, (STORE,), order=_UPDATE_FIRST),
    PromptForm("two-edit-first", _EDIT_FIRST, (CART, STORE), order=_UPDATE_FIRST),
    PromptForm("instruction-first", _TAGS, (STORE,), order=("part", "instruction", "code", "update")),
    PromptForm("new-lines", _TAGS, (STORE,), order=("part", "code", "update", "new", "instruction")),
    PromptForm("closing", _TAGS, (STORE,), closing=_CLOSING),
    PromptForm("taught-one", _TAUGHT, (STORE,)),
    PromptForm("taught-two", _TAUGHT, (CART, STORE)),
    PromptForm("taught", _TAUGHT, (FIRST, LIMITS, CART, STORE)),
    PromptForm("taught-new", _TAUGHT, (CART, STORE), order=("part", "code", "update", "new", "instruction")),
    PromptForm("many", _TAGS, (CART, FIRST, LIMITS, STORE)),
    PromptForm("marked", _TAGS, (FIRST, LIMITS, STORE)),
    PromptForm("blocks", _BLOCKS, (LIMITS, STORE), order=("part", "code", "blocks", "instruction")),
    PromptForm("usual", _TAGS, (STORE,), order=("part", "code", "usual", "instruction")),
    PromptForm("two-usual", _TAGS, (CART, STORE), order=("part", "code", "usual", "instruction")),
    PromptForm("edit-first-usual", _EDIT_FIRST, (STORE,), order=("part", "instruction", "usual", "code")),
    PromptForm("usual-new", _TAGS, (STORE,), order=("part", "code", "usual", "new", "instruction")),
    PromptForm("lead", _TAGS, (STORE,), lead="Here is the whole code with the edit applied:\n"),
)
FORMS: Mapping[str, PromptForm] = {form.name: form for form in _ALL}


def form_called(name: str) -> PromptForm:
    """The form called `name`; raises ValueError, naming all, where there is none."""
    if name not in FORMS:
        raise ValueError(f"no prompt form is called {name!r}; there are {', '.join(FORMS)}")
    return FORMS[name]

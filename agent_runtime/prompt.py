"""Builds the prompt of one apply: what the model reads, what it is likely to copy, and where its answer ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from agent_runtime.chat_template import ChatTemplate

SYSTEM = (
    "You merge edits into code. You are given a file in <code> and an edit of it in <update>. "
    "Write the whole file with the edit applied, between <updated-code> and </updated-code>. "
    "Copy every line that the edit does not change exactly as it is, comments, blank lines and indentation included. "
    "Comments such as '... existing code ...' stand for unchanged code: never write them, "
    "write the code they stand for."
)

EXAMPLE_FILE = '''\
import os


class Store:
    """Files in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def load(self, name):
        path = os.path.join(self.folder, name)
        with open(path) as file:
            return file.read()

    def save(self, name, text):
        path = os.path.join(self.folder, name)
        # overwrite
        with open(path, "w") as file:
            file.write(text)

    def remove(self, name):
        os.remove(os.path.join(self.folder, name))

    def names(self):
        return sorted(os.listdir(self.folder))'''

EXAMPLE_EDIT = """\
# ... existing code ...

    def save(self, name, text, mode="w"):
        if not name:
            raise ValueError("no name")
        # ... existing code ...
        with open(path, mode) as file:
            file.write(text)

    def exists(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    # ... existing code ..."""

EXAMPLE_RESULT = '''\
import os


class Store:
    """Files in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def load(self, name):
        path = os.path.join(self.folder, name)
        with open(path) as file:
            return file.read()

    def save(self, name, text, mode="w"):
        if not name:
            raise ValueError("no name")
        path = os.path.join(self.folder, name)
        # overwrite
        with open(path, mode) as file:
            file.write(text)

    def exists(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    def remove(self, name):
        os.remove(os.path.join(self.folder, name))

    def names(self):
        return sorted(os.listdir(self.folder))'''

FILE_SLOT, EDIT_SLOT, INSTRUCTION_SLOT = "\ue0f0file\ue0f1", "\ue0f0edit\ue0f1", "\ue0f0instruction\ue0f1"
_SLOTS = re.compile("(\ue0f0(?:file|edit|instruction)\ue0f1)")


class TextEncoder(Protocol):
    """What the prompt needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token."""
        ...

    def encode_template(self, text: str) -> list[int]:
        """Ids of a text of ours, in which names of control tokens are control tokens."""
        ...


@dataclass(frozen=True, slots=True)
class ApplyPrompt:
    """One apply as token ids.

    `file_ids` is the answer if the edit changed nothing, closing tag included, and `edit_ids` the edit: the draft
    copies from them. The answer ends at `stop`.
    """

    token_ids: tuple[int, ...]
    file_ids: tuple[int, ...]
    edit_ids: tuple[int, ...]
    stop: str


def build_prompt(
    template: ChatTemplate, encoder: TextEncoder, *, file_text: str, edit_text: str, instruction: str
) -> ApplyPrompt:
    """Lay out an apply: the stable preamble first, then file, edit and instruction, so that a prefix can be reused.

    File, edit and instruction are encoded as plain text: nothing in them can end a turn. `file_text` and `edit_text`
    come without their final newline.
    """
    tag = _free_tag(file_text + edit_text)
    slots = {FILE_SLOT: file_text, EDIT_SLOT: edit_text, INSTRUCTION_SLOT: instruction}
    token_ids: list[int] = []
    for part in _SLOTS.split(_render(template, tag, has_instruction=bool(instruction))):
        token_ids += encoder.encode(slots[part]) if part in slots else encoder.encode_template(part)
    stop = f"</{tag}>"
    return ApplyPrompt(
        token_ids=tuple(token_ids),
        file_ids=tuple(encoder.encode(f"{file_text}\n{stop}")),
        edit_ids=tuple(encoder.encode(edit_text)),
        stop=stop,
    )


def _render(template: ChatTemplate, tag: str, *, has_instruction: bool) -> str:
    instruction = f"<instruction>{INSTRUCTION_SLOT}</instruction>\n" if has_instruction else ""
    messages = [
        {"role": "system", "content": SYSTEM.replace("updated-code", tag)},
        {"role": "user", "content": _task(EXAMPLE_FILE, EXAMPLE_EDIT)},
        {"role": "assistant", "content": f"<{tag}>\n{EXAMPLE_RESULT}\n</{tag}>"},
        {"role": "user", "content": _task(FILE_SLOT, EDIT_SLOT) + instruction},
    ]
    return template.render(messages) + f"<{tag}>\n"


def _task(file_text: str, edit_text: str) -> str:
    return f"<code>\n{file_text}\n</code>\n<update>\n{edit_text}\n</update>\n"


def _free_tag(text: str) -> str:
    """A tag for the answer that the texts do not hold, so that a file about tags cannot end the answer early."""
    tag, number = "updated-code", 2
    while tag in text:
        tag, number = f"updated-code-{number}", number + 1
    return tag

"""Prompt forms: instructions, worked examples, and the order of the sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApplyTexts:
    """The texts of one apply, without final newlines.

    With an `outline`, `file` is only a part of a file, and the outline describes the rest.
    """

    file: str
    edit: str
    instruction: str = ""
    outline: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One text of an apply, between two fixed texts."""

    before: str
    text: Callable[[ApplyTexts], str]
    after: str


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A piece of a prompt that is encoded alone: the text of a section, or a fixed text, which has no section."""

    text: str
    section: str = ""


SECTIONS: Mapping[str, Section] = {
    "code": Section("<code>\n", lambda texts: texts.file, "\n</code>\n"),
    "update": Section("<update>\n", lambda texts: texts.edit, "\n</update>\n"),
    "instruction": Section("<instruction>", lambda texts: texts.instruction, "</instruction>\n"),
    "part": Section(
        "The code is only a part of a file. Write this part, and nothing of the rest, which is:\n<outline>\n",
        lambda texts: texts.outline,
        "\n</outline>\n",
    ),
}
"""The sections of a question by name. An empty section is left out, unless it is the file or the edit."""

REQUIRED = frozenset({"code", "update"})


@dataclass(frozen=True, slots=True)
class Example:
    """One apply and its correct answer."""

    texts: ApplyTexts
    result: str


STORE = Example(
    ApplyTexts(
        '''\
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
        return sorted(os.listdir(self.folder))''',
        """\
# ... existing code ...

    def save(self, name, text, mode="w"):
        if not name:
            raise ValueError("no name")
        # ... existing code ...
        with open(path, mode) as file:
            file.write(text)

    def exists(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    # ... existing code ...""",
    ),
    '''\
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
        return sorted(os.listdir(self.folder))''',
)
"""Placeholders around and in a changed method, and a new method."""

CART = Example(
    ApplyTexts(
        """\
import { Item } from "./item";

// What a customer wants to buy.
export class Cart {
  private items: Item[] = [];

  add(item: Item): void {
    this.items.push(item);
  }

  total(): number {
    let sum = 0;
    for (const item of this.items) {
      sum += item.price;
    }
    return sum;
  }

  clear(): void {
    this.items = [];
  }
}""",
        """\
export class Cart {
    // ...

    // The price of all items, without tax.
    total(): number {
        let sum = 0;
        for (const item of this.items) {
            // several of a kind
            sum += item.price * item.count;
        }
        return sum;
    }

    // ... rest of the class ...
}""",
    ),
    """\
import { Item } from "./item";

// What a customer wants to buy.
export class Cart {
  private items: Item[] = [];

  add(item: Item): void {
    this.items.push(item);
  }

  // The price of all items, without tax.
  total(): number {
    let sum = 0;
    for (const item of this.items) {
      // several of a kind
      sum += item.price * item.count;
    }
    return sum;
  }

  clear(): void {
    this.items = [];
  }
}""",
)
"""New comments, placeholders in other words, and another unit of indentation than the file's."""

LIMITS = Example(
    ApplyTexts(
        """\
export const limits = {
  files: 100,
  // the largest file that is read
  bytes: 1_000_000,
  paths: ["src", "test"],
  depth: 8,
};

export function fits(size: number): boolean {
  return size <= limits.bytes;
}""",
        """\
export const limits = {
  // ...
  depth: 12,
  seconds: 30,
};

// ... rest of the file ...""",
    ),
    """\
export const limits = {
  files: 100,
  // the largest file that is read
  bytes: 1_000_000,
  paths: ["src", "test"],
  depth: 12,
  seconds: 30,
};

export function fits(size: number): boolean {
  return size <= limits.bytes;
}""",
)
"""Placeholders in other words, in an object and for the rest of the file."""

FIRST = Example(
    ApplyTexts(
        """\
def first(items, wanted):
    low, high = 0, len(items) - 1
    while low < high:
        middle = (low + high) // 2
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low""",
        """\
def first(items, wanted):
    if not items:
        return None
    # ... existing code ...
    while low < high:
        # ... same ...
            high = middle
    return low if items[low] == wanted else None""",
    ),
    """\
def first(items, wanted):
    if not items:
        return None
    low, high = 0, len(items) - 1
    while low < high:
        middle = (low + high) // 2
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if items[low] == wanted else None""",
)
"""Placeholders for some lines of a function."""


TAG = "updated-code"
"""The answer's usual tag, also in the texts of the forms; it is replaced if a file or an edit contains it."""

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PromptForm:
    """A form of the apply prompt.

    system: the system message. examples: edits that are shown as earlier questions and answers. order: the sections of
    a question (`SECTIONS`).
    """

    name: str
    system: str
    examples: tuple[Example, ...]
    order: tuple[str, ...] = ("part", "code", "update", "instruction")

    def render_preamble(self, tag: str) -> list[Message]:
        """Return the messages before the question, which are the same for every edit."""
        messages: list[Message] = [{"role": "system", "content": self.system.replace(TAG, tag)}]
        for example in self.examples:
            question = "".join(piece.text for piece in self.render_question(example.texts))
            answer = f"<{tag}>\n{example.result}\n</{tag}>"
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return messages

    def render_question(self, texts: ApplyTexts) -> list[PromptPiece]:
        """Return the pieces of a question, in order."""
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
"""The form for models that are not in the catalogue."""

_ALL = (
    DEFAULT,
    PromptForm("examples", _TAUGHT, (CART, STORE)),
    PromptForm("many-examples", _TAUGHT, (FIRST, LIMITS, CART, STORE)),
    PromptForm("edit-first", _EDIT_FIRST, (STORE,), order=("part", "instruction", "update", "code")),
)
FORMS: Mapping[str, PromptForm] = {form.name: form for form in _ALL}


def find_form(name: str) -> PromptForm:
    """Return the form with this name; raises ValueError, which names all forms, if there is none."""
    if name not in FORMS:
        raise ValueError(f"no prompt form is called {name!r}; there are {', '.join(FORMS)}")
    return FORMS[name]

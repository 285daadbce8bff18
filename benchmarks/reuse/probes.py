"""Probes of the quality of reuse: an edit in the middle of a real Python file, and a question.

The files are runs of top-level statements of this Python's standard library, 1,000 to 1,900 tokens. The same seed and
the same files give the same probes.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import Literal

ProbeClass = Literal["look-up", "conclusion", "insensitive"]
"""`look-up`: the answer stands in the edited lines. `conclusion`: it follows from them with what stands elsewhere.
`insensitive`: it is a text that the edit leaves alone."""

SENSITIVE: tuple[ProbeClass, ...] = ("look-up", "conclusion")
FEWEST_CHARS, MOST_CHARS = 4_000, 6_500
MOST_A_FILE = 3
"""Probes of one kind from one file."""

SHORTEST_REPEAT, LONGEST_REPEAT = 450, 2_400
"""Characters of a function that is to be written again."""

WORDS: list[str] = re.findall(
    r"\w+",
    """
    anchor archive batch border bucket buffer cell channel chunk column cursor digest entry event folder frame group
    header item label layer ledger margin marker message node offset packet payload pointer prefix queue quota record
    region report route sample schema segment shard signal slot stage stream suffix symbol ticket token topic vector
    volume window worker zone
    """,
)
"""Words of programs for new names, so that nothing but the edit speaks for or against them."""

_MOST_TRIES, _SHORTEST_FILE = 4_000, 6_000
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "encodings", "__pycache__", "pydoc_data"}


@dataclass(frozen=True, slots=True)
class Probe:
    """A question about a file that was edited; raises ValueError where the edit does not change the answer as it says.

    before, after: the file's texts, ASCII. question: what is asked; begun: how the answer begins, so that the wanted
    symbol or value comes next. right, stale: that symbol or value after and before the edit; both empty where the
    answer does not depend on it. symbols: names that the edit is about, old and new.
    """

    kind: str
    probe_class: ProbeClass
    file_name: str
    before: str
    after: str
    question: str
    begun: str
    right: str = ""
    stale: str = ""
    symbols: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.before == self.after:
            raise ValueError("the edit changes nothing")
        if (self.probe_class == "insensitive") != (not self.right):
            raise ValueError("a probe has a right answer if and only if the edit changes it")
        if self.right and (holds(self.right, self.stale) or holds(self.stale, self.right)):
            raise ValueError("the stale answer is the right one")

    @property
    def edit_start(self) -> int:
        """The first character that the edit changes."""
        return _count_equal(self.before, self.after)

    def judge(self, answer: str) -> Literal["right", "stale", "other"]:
        """Return which of the two comes first in an answer."""
        right, stale = _find(answer, self.right), _find(answer, self.stale)
        if right is None and stale is None:
            return "other"
        return "right" if stale is None or (right is not None and right < stale) else "stale"


@dataclass(frozen=True)
class Stretch:
    """A run of a file's top-level statements, a Python text of its own; ASCII, so that characters are bytes."""

    file_name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *accumulate(len(line) for line in self.text.splitlines(keepends=True))]

    def start(self, node: ast.stmt | ast.expr | ast.arg) -> int:
        """Where a node begins, in characters; a decorated definition where its `def` or `class` stands."""
        return self._line_starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.stmt | ast.expr | ast.arg) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def replace(self, start: int, end: int, new: str) -> str:
        """Return the text with [start, end) replaced."""
        return self.text[:start] + new + self.text[end:]

    def is_middle(self, node: ast.stmt | ast.expr) -> bool:
        """Whether there is a prefix to keep before a node, and much text after it."""
        return 0.15 <= self.start(node) / len(self.text) <= 0.65

    @property
    def functions(self) -> list[ast.FunctionDef]:
        return [node for node in self.tree.body if isinstance(node, ast.FunctionDef)]

    @property
    def methods(self) -> list[ast.FunctionDef]:
        """Functions of the top level and those of its classes."""
        owners = [node for node in self.tree.body if isinstance(node, ast.ClassDef)]
        return self.functions + [node for owner in owners for node in owner.body if isinstance(node, ast.FunctionDef)]

    def find_lines(self, node: ast.stmt) -> tuple[int, int]:
        """Return the range of a definition's whole lines, with its decorators."""
        first = min([self.start(node), *(self.start(each) for each in getattr(node, "decorator_list", []))])
        return self.text.rfind("\n", 0, first) + 1, self.end(node) + 1


def make_probes(kind: str, count: int, seed: int, folder: Path | None = None) -> list[Probe]:
    """Make up to `count` probes of a kind; fewer where the files have no more places for them.

    `folder` holds the Python files that they are made from, by default this Python's standard library.
    """
    random = Random(f"{seed} {kind}")
    made: list[Probe] = []
    asked: set[tuple[str, str]] = set()
    by_file: Counter[str] = Counter()
    for stretch in islice(draw_stretches(random, folder), _MOST_TRIES):
        if len(made) >= count:
            break
        if by_file[stretch.file_name] >= MOST_A_FILE:
            continue
        try:
            probe = MAKERS[kind](stretch, random)
        except ValueError:  # the edit and the answer do not fit together here
            continue
        if probe is not None and (probe.file_name, probe.question) not in asked:
            asked.add((probe.file_name, probe.question))
            made.append(probe)
            by_file[stretch.file_name] += 1
    return made


def rename_function(stretch: Stretch, random: Random) -> Probe | None:
    """Give a function another name, and ask for it by its docstring."""
    docs = {node.name: (ast.get_docstring(node) or "").split("\n")[0].strip() for node in stretch.methods}
    found = [
        node
        for node in stretch.methods
        if stretch.is_middle(node) and stretch.text.count(node.name) == 1 and not node.name.startswith("__")
        if len(docs[node.name]) >= 24 and '"' not in docs[node.name] and stretch.text.count(docs[node.name]) == 1
    ]
    if not found:
        return None
    function = random.choice(found)
    new = make_name(stretch.text, function.name, random)
    start = stretch.text.index(function.name, stretch.start(function) + len("def"))
    after = stretch.replace(start, start + len(function.name), new)
    question = f'Which function of the file has the docstring "{docs[function.name]}"?'
    names = new, function.name
    return Probe(
        "renamed", "look-up", stretch.file_name, stretch.text, after, question, "```python\ndef ", *names, names[::-1]
    )


def add_parameter(stretch: Stretch, random: Random) -> Probe | None:
    """Give a function another first parameter, and ask for a call of it."""
    found = [
        node
        for node in stretch.functions
        if node.args.args and not node.args.posonlyargs and len(node.args.args[0].arg) > 2
        if stretch.is_middle(node) and stretch.text.count(f"{node.name}(") == 1
    ]
    if not found:
        return None
    function = random.choice(found)
    first = function.args.args[0]
    unused = [word for word in WORDS if word not in stretch.text]
    if not unused or holds(function.name, first.arg):
        return None
    new = random.choice(unused)
    after = stretch.replace(stretch.start(first), stretch.start(first), f"{new}, ")
    question = f"Write a call of `{function.name}` with all its arguments in a dict, in the order of its signature."
    begun, names = f'```python\n{function.name}(**{{"', (function.name, new)
    return Probe("caller", "conclusion", stretch.file_name, stretch.text, after, question, begun, new, first.arg, names)


def repeat_function(stretch: Stretch, random: Random) -> Probe | None:
    """Make an edit of another kind, and ask for a function after it that the edit leaves alone."""
    edit = random.choice((rename_function, add_parameter))(stretch, random)
    if edit is None:
        return None
    text, after = edit.after, Stretch(stretch.file_name, edit.after)
    last = len(text) - _count_equal(edit.before[::-1], text[::-1])
    changed_to = text.find("\n", last) % (len(text) + 1) + 1
    found = []
    for node in after.methods:
        start, end = after.find_lines(node)
        whole = text[start:end]
        is_apart = start > changed_to and not any(symbol in whole for symbol in edit.symbols)
        if is_apart and text.count(f"def {node.name}(") == 1 and SHORTEST_REPEAT <= len(whole) <= LONGEST_REPEAT:
            found.append((node.name, whole))
    if not found:
        return None
    name, whole = random.choice(found)
    begun = "```python\n" + whole[: whole.index(f"{name}(") + len(f"{name}(")].lstrip()
    question = f"Write the function `{name}` of the file again, without a change."
    file_name, before = edit.file_name, edit.before
    return Probe("repeat", "insensitive", file_name, before, text, question, begun, symbols=edit.symbols)


MAKERS: dict[str, Callable[[Stretch, Random], Probe | None]] = {
    "renamed": rename_function,
    "caller": add_parameter,
    "repeat": repeat_function,
}
"""The function that makes a probe of each kind; it returns None where the part of a file has no place for one."""


def holds(text: str, symbol: str) -> bool:
    """Whether a text holds a name or a literal as a whole."""
    return _find(text, symbol) is not None


def make_name(text: str, old: str, random: Random) -> str:
    """Return a name of two words in the style of the old one that is no part of the text."""
    while True:
        words = random.sample(WORDS, 2)
        is_camel = old[:1].isupper() and not old.isupper()
        name = "".join(word.capitalize() for word in words) if is_camel else "_".join(words)
        name = name.upper() if old.isupper() else name
        if name not in text and not any(word in old.lower() for word in words):
            return name


def draw_stretches(random: Random, folder: Path | None = None) -> Iterator[Stretch]:
    """Yield stretches of random files without end."""
    folder = folder or Path(sysconfig.get_path("stdlib"))
    while files := _list_files(folder):
        file = random.choice(files)
        pieces = _cut_statements(file)
        text = ""
        if pieces:
            wanted = random.randint(FEWEST_CHARS, MOST_CHARS)
            for piece in pieces[random.randrange(len(pieces)) :]:
                if len(text) + len(piece) > wanted:
                    break
                text += piece
        if len(text := text.strip("\n") + "\n") >= FEWEST_CHARS:
            yield Stretch(file.relative_to(folder).as_posix(), text)


def _find(text: str, symbol: str) -> int | None:
    found = re.search(rf"(?<![\w.]){re.escape(symbol)}(?![\w]|\.\d)", text) if symbol else None
    return None if found is None else found.start()


def _count_equal(first: str, second: str) -> int:
    """Count the leading characters that two texts share."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


@lru_cache(maxsize=4)
def _list_files(folder: Path) -> list[Path]:
    """List the Python files of the folder and of its packages, without tests and what is generated."""
    found = [*folder.glob("*.py"), *folder.glob("*/*.py")]
    return sorted(file for file in found if file.parent.name not in _LEFT_OUT and file.stat().st_size >= _SHORTEST_FILE)


@lru_cache(maxsize=1024)
def _cut_statements(file: Path) -> tuple[str, ...]:
    """Cut a file before each top-level statement; comments and decorators go with the statement."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if not text.isascii() or "\t" in text or "\r" in text or "\f" in text:
        return ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes of another's file
            body = ast.parse(text).body
    except SyntaxError:
        return ()
    lines = text.splitlines(keepends=True)
    pieces, first = [], 0
    for end in [node.end_lineno for node in body if node.end_lineno is not None]:
        pieces.append("".join(lines[first:end]))
        first = max(first, end)
    return tuple(pieces)

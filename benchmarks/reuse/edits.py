"""Two turns around one edit: a context of about 6,000 tokens, and the same with one hunk changed in its middle.

Edits are real ones of one hunk, before and after, where recorded ones lie next to the checkout; others are made in
files of the standard library by a seeded edit of a line in a function. The edited file stands between other files, so
that its hunk is in the middle. The second turn asks another question; with `balanced` it has the old files and a
note.
"""

from __future__ import annotations

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from random import Random
from typing import Any

from agent_runtime.session.changes import diff_lines, find_new_edits, render_note, split_lines
from agent_runtime.session.prompt import TextFileEncoder, make_file_segments
from benchmarks.cases import DEFAULT_CASES
from benchmarks.reuse.prompts import Books, TurnCount
from benchmarks.snippets import Pair
from benchmarks.snippets import read_pairs as recorded_pairs
from editor.grammars import find_language
from engine.reuse import PromptSegment
from repo_cache.tokenizer import BPETokenizer

CONTEXT_TOKENS = 6_000
FEWEST_TOKENS, MOST_TOKENS = 300, 5_000
"""Of an edited file."""
MOST_LINES = 20
"""Of a hunk, on either side."""

PREAMBLE = "You are a coding assistant. You are shown files of a project, and answer questions about them."
QUESTIONS = (
    "Which of these files has the most functions? Name it.",
    "Is there anything in these files that looks unfinished?",
)

_FILLER_LINE_TOKENS = 20
_STATEMENT = re.compile(r"(?P<indent> {4,})(?:return\b|[A-Za-z_][\w.]* (?:[-+*/]?=) |self\.|raise\b|assert\b)")


@dataclass(frozen=True, slots=True)
class EditPair:
    """The segments of both turns' prompts; `overlaid` is the second one's with a note in the place of the new text.

    It is empty where the second turn is none with an edit.
    """

    id: str
    source: str
    first: tuple[PromptSegment, ...]
    second: tuple[PromptSegment, ...]
    overlaid: tuple[PromptSegment, ...] = ()

    @property
    def prompts(self) -> tuple[tuple[PromptSegment, ...], ...]:
        return self.first, self.second, self.overlaid


def make_edit_pairs(
    tokenizer: BPETokenizer, count: int, seed: int, cases: Path = DEFAULT_CASES, context: int = CONTEXT_TOKENS
) -> list[EditPair]:
    """Return up to `count` pairs of recorded edits, where there are some at `cases`, and as many made ones.

    `context`: tokens of a prompt, about; longer where the edited file is.
    """
    recorded = recorded_pairs(cases) if cases.exists() else []
    sources = {"recorded": _select_single_hunks(recorded, seed), "made": _make_pairs(seed)}
    found = []
    for source, edits in sources.items():
        others = recorded if source == "recorded" else [_read_whole(file) for file in _list_library()]
        random = Random(f"{source}\0{seed}")
        number = 0
        for pair in edits:
            if number == count:
                break
            laid_out = _lay_out(tokenizer, pair, source, others, random, context // 2)
            if laid_out is not None:
                found.append(laid_out)
                number += 1
    return found


def _select_single_hunks(found: Sequence[Pair], seed: int) -> Iterator[Pair]:
    """Recorded edits of one hunk in a random order, each file's at most once."""
    paths = set()
    for pair in Random(seed).sample(found, len(found)):
        edits = diff_lines(split_lines(pair.before), split_lines(pair.after))
        is_short = len(edits) == 1 and max(edits[0].end - edits[0].first, len(edits[0].lines)) <= MOST_LINES
        if is_short and pair.path not in paths and find_language(PurePath(pair.path).name) is not None:
            paths.add(pair.path)
            yield pair


def _make_pairs(seed: int) -> Iterator[Pair]:
    """Yield files of the standard library with one statement changed, put in or taken out, in the middle half."""
    random = Random(f"made\0{seed}")
    files = _list_library()
    for file in random.sample(files, len(files)):
        lines = split_lines(_read(file))
        places = [place for place in range(len(lines) // 4, 3 * len(lines) // 4) if _STATEMENT.match(lines[place])]
        for place in random.sample(places, min(3, len(places))):
            made = _edit_line(lines, place, random)
            if _is_python("".join(made)):
                yield Pair(f"{file.name}:{place + 1}", file.name, "".join(lines), "".join(made))
                break


def _edit_line(lines: Sequence[str], place: int, random: Random) -> list[str]:
    found = _STATEMENT.match(lines[place])
    assert found is not None
    indent, name = found["indent"], f"checked_{random.randrange(1000)}"
    kind = random.choice(("put in", "changed", "taken out"))
    if kind == "put in":
        return [*lines[:place], f"{indent}{name} = True\n", *lines[place:]]
    if kind == "changed":
        return [*lines[:place], f"{indent}{name} = None\n", *lines[place + 1 :]]
    return [*lines[:place], *lines[place + 1 :]]


def _lay_out(
    tokenizer: BPETokenizer, pair: Pair, source: str, others: Sequence[Pair], random: Random, half: int
) -> EditPair | None:
    """Return the pair among other files; None where its file is too long or too short, or its edit too near an end."""
    files = TextFileEncoder(tokenizer)
    path = pair.path or "file"
    before = files.encode(path, pair.before, None)
    after = files.encode(path, pair.after, before)
    if not FEWEST_TOKENS <= len(before) <= MOST_TOKENS:
        return None
    (edit,) = diff_lines(split_lines(pair.before), split_lines(pair.after))
    above = len(tokenizer.encode("".join(split_lines(pair.before)[: edit.first])))
    leading = _make_filler(tokenizer, others, half - above, random, "a")
    behind = _make_filler(tokenizer, others, half - (len(before) - above), random, "b")
    old, new = (
        make_file_segments(tokenizer, path, tokens, ends_line=text.endswith("\n"))
        for tokens, text in ((before, pair.before), (after, pair.after))
    )
    opening = tokenizer.encode_template(f"<|im_start|>system\n{PREAMBLE}<|im_end|>\n<|im_start|>user\n")
    head = [PromptSegment(opening), *leading]
    first, second = (PromptSegment(_encode_question(tokenizer, asked)) for asked in QUESTIONS)
    said = find_new_edits(split_lines(pair.before), (), (edit,))
    noted = PromptSegment(tokenizer.encode("".join(render_note(path, each) for each in said)))
    return EditPair(
        pair.id,
        source,
        (*head, *old, *behind, first),
        (*head, *new, *behind, second),
        (*head, *old, *behind, noted, second),
    )


def _encode_question(tokenizer: BPETokenizer, asked: str) -> list[int]:
    return [*tokenizer.encode(f"\n{asked}"), *tokenizer.encode_template("<|im_end|>\n<|im_start|>assistant\n")]


def _make_filler(
    tokenizer: BPETokenizer, others: Sequence[Pair], num_tokens: int, random: Random, name: str
) -> list[PromptSegment]:
    """Return the beginning of other files, about so many tokens of them."""
    segments: list[PromptSegment] = []
    number = 0
    while num_tokens > _FILLER_LINE_TOKENS:
        number += 1
        other = random.choice(others)
        path, text = f"{name}{number}/{other.path}", other.before
        ids = tokenizer.encode(text)
        if len(ids) > num_tokens:
            text = tokenizer.decode(ids[:num_tokens])
            text = text[: text.rfind("\n") + 1]
        made = make_file_segments(tokenizer, path, TextFileEncoder(tokenizer).encode(path, text, None), ends_line=True)
        segments += made
        num_tokens -= sum(len(segment.token_ids) for segment in made)
    return segments


def _list_library() -> list[Path]:
    """Return files of the standard library that are long enough."""
    folder = Path(sysconfig.get_path("stdlib"))
    return sorted(file for file in folder.glob("*.py") if 4_000 <= file.stat().st_size <= 18_000)


def _read_whole(file: Path) -> Pair:
    return Pair(file.name, file.name, _read(file), "")


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd escapes of another's file
            ast.parse(text)
    except SyntaxError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class EditCount:
    """One edit: by mode, what became of the second prompt's tokens; `exact` is among them."""

    id: str
    source: str
    by_mode: Mapping[str, TurnCount]

    def vs_prefix(self, mode: str) -> float:
        """Return what is run, of what exact prefix caching runs."""
        return self.by_mode[mode].recomputed / self.by_mode["exact"].recomputed


def count_edits(pairs: Sequence[EditPair], modes: Sequence[str]) -> list[EditCount]:
    """Count both turns of each pair in each mode, every time with nothing cached or stored before."""
    return [
        EditCount(
            pair.id, pair.source, {mode: _count_second_turn(pair, mode) for mode in dict.fromkeys(["exact", *modes])}
        )
        for pair in pairs
    ]


def _count_second_turn(pair: EditPair, mode: str) -> TurnCount:
    books = Books()
    engine_mode: Any = "exact" if mode == "balanced" else mode
    books.turn(pair.first, engine_mode)
    return books.turn(pair.overlaid if mode == "balanced" else pair.second, engine_mode)

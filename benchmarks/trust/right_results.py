"""Right results: recorded edits and real commits, each an edit of one file with the text that is right.

source            format                              style
snippets          lazy                                the writer's own word: minimal, context, chat...
explicit          udiff, v4a, search_replace, replace written (by a model, in one go)
aider             search_replace                      aider
session           replace                             session
commits           each of the formats above in turn   commit, or the style of benchmarks.snippets

A commit is written as an edit by a program, so that there are as many as a measurement needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from random import Random

from benchmarks import edit_formats as rendering
from benchmarks.cases import Case, Record, load_cases_at, read_records
from benchmarks.snippets import STYLES, make_snippet
from editor import codec
from editor.errors import EditorError
from editor.types import FormatName

NUM_COMMITS = 360
WAYS = (*("udiff", "v4a", "search_replace", "replace"), *(f"lazy/{style}" for style in STYLES))
_MAX_CHARS = 200_000


def load_right_results(path: Path, limit: int | None, seed: int) -> list[Case]:
    """Return the right results at or below `path`: `limit` of them (all, and `NUM_COMMITS` commits, without one).

    A sample has the same share of each source, of commits one in each way to write them at least. Cases whose expected
    text cannot be written (mixed line endings that no merge gives back) are left out, as are those of more than 200,000
    characters.
    """
    by_source = {source: [case for case in read(path) if _is_sound(case)] for source, read in _READERS.items()}
    total = sum(map(len, by_source.values())) + NUM_COMMITS
    share = 1.0 if limit is None else min(1.0, limit / total)
    rng = Random(seed)
    drawn: list[Case] = []
    for found in by_source.values():
        kept = set(rng.sample(range(len(found)), min(len(found), max(1, round(share * len(found))))))
        drawn += [case for at, case in enumerate(found) if at in kept]
    return drawn + draw_commits(path, max(len(WAYS), round(share * NUM_COMMITS)), seed)


def draw_commits(path: Path, num_cases: int, seed: int, ways: Sequence[str] = WAYS) -> list[Case]:
    """Return real commits, drawn by the seed, as edits in each of the `ways` in turn."""
    rng = Random(f"commits\0{seed}")
    found = list(read_commits(find_folder(path, "commits")))
    rng.shuffle(found)
    way_of = cycle(ways)
    way = next(way_of)
    made: list[Case] = []
    for record in found:
        if len(made) == num_cases:
            break
        case = make_case(record, way, seed)
        if case is not None and _is_sound(case):
            made.append(case)
            way = next(way_of)
    return made


@lru_cache(maxsize=1)
def read_commits(path: Path) -> tuple[Record, ...]:
    """Return what is recorded of real commits at or below `path`: a file before and after each."""
    return tuple(record for _, some in read_records(path) for record in some if {"commit", "expected"} <= record.keys())


def make_case(record: Record, way: str, seed: int) -> Case | None:
    """Write one commit's change of one file as an edit; None where this way cannot say it."""
    before, after, path = record["original"], record["expected"], record["path"]
    name = f"{record['repo'].rpartition('/')[2]}@{record['commit'][:8]}/{path.rpartition('/')[2]}"
    if way.startswith("lazy/"):
        style = way.removeprefix("lazy/")
        edit = make_snippet(before, after, path, style, seed)
        return None if edit is None else Case(name, "commits", "lazy", path, before, edit, after, style=style)
    if "\r" in before + after:
        return None
    format_name, render = _WRITERS[way]
    edit = render(before, after, path)
    return None if edit is None else Case(name, "commits", format_name, path, before, edit, after, style="commit")


_WRITERS: dict[str, tuple[FormatName, Callable[[str, str, str], str | None]]] = {
    "udiff": ("udiff", rendering.render_udiff),
    "v4a": ("v4a", rendering.render_v4a),
    "replace": ("replace", lambda before, after, path: rendering.render_replace(before, after)),
    "search_replace": ("search_replace", lambda before, after, path: rendering.render_search_replace(before, after)),
}


def _read_snippets(path: Path) -> Iterator[Case]:
    for _, some in read_records(path):
        for record in some:
            if {"id", "style", "update", "original", "expected"} <= record.keys():
                yield Case(
                    *(record["id"], "snippets", "lazy", record["path"]),
                    *(record["original"], record["update"], record["expected"]),
                    instruction=record["instruction"],
                    style=record["style"],
                )


def _read_explicit(path: Path) -> Iterator[Case]:
    for _, some in read_records(path):
        for record in some:
            if {"name", "edit", "written_as", "original", "expected"} <= record.keys():
                yield Case(
                    *(record["name"], "explicit", record["written_as"], record["path"]),
                    *(record["original"], record["edit"], record["expected"]),
                    style="written",
                )


def _read_recorded(shape: str, folder: str, path: Path) -> Iterator[Case]:
    root = path / folder if (path / folder).is_dir() else path
    for case in load_cases_at(root).cases:
        if isinstance(case, Case) and case.shape == shape:
            yield Case(*(case.id, shape, case.format, case.path, case.original, case.edit, case.expected), style=shape)


_READERS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "snippets": lambda path: _read_snippets(find_folder(path, "snippets")),
    "explicit": lambda path: _read_explicit(find_folder(path, "explicit")),
    "aider": lambda path: _read_recorded("aider", "aider_chat_history", path),
    "session": lambda path: _read_recorded("session", "agent_sessions", path),
}


def find_folder(path: Path, name: str) -> Path:
    """Return the folder of one source where there is one: the other files need not be read for it."""
    return path / name if (path / name).is_dir() else path


def _is_sound(case: Case) -> bool:
    if max(len(case.original), len(case.expected)) > _MAX_CHARS or case.original == case.expected:
        return False
    try:
        source = codec.decode(case.original.encode())
        return codec.encode(codec.decode(case.expected.encode()).text, source) == case.expected.encode()
    except (EditorError, UnicodeEncodeError):
        return False

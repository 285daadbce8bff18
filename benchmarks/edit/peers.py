"""The same blocks, the same files, other matchers, in one run and in alternation: how many times faster is the editor?

    hunk            parse the edit and merge it: all blocks, every rung, uniqueness (no verification)
    hunk_verified   the same and the eight checks
    aider           aider-chat's own find_original_update_blocks and do_replace, block after block
    difflib_lines   every window of as many lines as SEARCH has, scored by SequenceMatcher over lines; the best is
                    replaced (what aider's find_similar_lines does for its error message)
    difflib_chars   the same windows scored over characters, with SequenceMatcher's own quick upper bounds as cut-off
                    (as difflib.get_close_matches does; aider's replace_closest_edit_distance does without)
    difflib_blocks  one SequenceMatcher over the lines of file and SEARCH, its longest run taken; finds no near-miss

aider comes from its wheel, which is fetched once into the cache and only read, never installed; without it (no network)
its row is left out with a word.
"""

from __future__ import annotations

import difflib
import importlib.util
import random
import statistics
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from platformdirs import user_cache_path

from benchmarks.cases import Case
from editor.execution import clear_caches
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.types import Merged, ParsedEdit, Sketch, Substitutions
from editor.verify import verify

AIDER = "aider-chat==0.86.2"
_ROUNDS = 3
_NUM_CHARS = 24
_FENCE = ("```", "```")
Blocks = Sequence[tuple[list[str], list[str]]]
Matcher = Callable[[Case, Blocks], str | None]


class _Timed(NamedTuple):
    """One matcher over all its cases: median milliseconds of each, and how many results were right."""

    ms: dict[int, float]
    exact: int


def compare(cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """Time all matchers on the SEARCH/REPLACE cases and return milliseconds and ratios by name."""
    chosen = [
        replace(case, edit=case.also.get("search_replace", case.edit))
        for case in cases
        if case.expects == "text" and not case.variety
        if case.format == "search_replace" or "search_replace" in case.also
    ]
    if not chosen:
        return {}
    some = random.Random(seed).sample(range(len(chosen)), min(_NUM_CHARS, len(chosen)))
    aider, note = _aider()
    matchers: dict[str, Matcher] = {"hunk": _hunk, "hunk_verified": _hunk_verified}
    matchers |= {"aider": aider} if aider else {}
    matchers |= {"difflib_lines": _difflib_lines, "difflib_chars": _difflib_chars, "difflib_blocks": _difflib_blocks}
    timed = _time(matchers, chosen, set(some))
    return {"cases": len(chosen), "note": note, **{name: _compared(found, timed) for name, found in timed.items()}}


def _time(matchers: Mapping[str, Matcher], cases: Sequence[Case], some: set[int]) -> dict[str, _Timed]:
    """In turn on each case, so that whatever else the machine does hits all alike; the slowest on some cases only."""
    times: dict[str, dict[int, float]] = {name: {} for name in matchers}
    exact = dict.fromkeys(matchers, 0)
    for number, case in enumerate(cases):
        blocks = _blocks(case)
        chosen = {name: matcher for name, matcher in matchers.items() if name != "difflib_chars" or number in some}
        runs: dict[str, list[float]] = {name: [] for name in chosen}
        for name, matcher in chosen.items():
            exact[name] += matcher(case, blocks) == case.expected
        for _ in range(_ROUNDS):
            for name, matcher in chosen.items():
                started = time.perf_counter()
                matcher(case, blocks)
                runs[name].append((time.perf_counter() - started) * 1e3)
        for name, taken in runs.items():
            times[name][number] = statistics.median(taken)
    return {name: _Timed(times[name], exact[name]) for name in matchers}


def _compared(found: _Timed, timed: Mapping[str, _Timed]) -> dict[str, Any]:
    """Ratios are this matcher's time over ours on the same cases: of all together, and the median of single ones."""
    out: dict[str, Any] = {"cases": len(found.ms), "exact": found.exact}
    out["total_ms"] = round(sum(found.ms.values()), 1)
    out["median_ms"] = round(statistics.median(found.ms.values()), 3)
    for own in ("hunk", "hunk_verified"):
        ours = timed[own].ms
        out[f"ratio_{own}"] = round(sum(found.ms.values()) / sum(ours[case] for case in found.ms), 2)
        out[f"median_ratio_{own}"] = round(statistics.median(ms / ours[case] for case, ms in found.ms.items()), 2)
    return out


def _blocks(case: Case) -> Blocks:
    edit = parse(case.edit, "search_replace")
    assert not isinstance(edit.changes, Sketch | Substitutions)
    return [(list(change.before), list(change.after)) for change in edit.changes]


def _hunk(case: Case, _: Blocks) -> str | None:
    return _merged(case, parse(case.edit, "search_replace"))


def _hunk_verified(case: Case, _: Blocks) -> str | None:
    edit = parse(case.edit, "search_replace")
    text = _merged(case, edit)
    if text is not None:
        verify(case.original, text, edit, find_language(case.path))
    return text


def _merged(case: Case, edit: ParsedEdit) -> str | None:
    clear_caches()
    outcome = merge(case.original, edit, find_language(case.path))
    return outcome.text if isinstance(outcome, Merged) else None


def _difflib_lines(case: Case, blocks: Blocks) -> str | None:
    return _by_windows(case, blocks, _ratio_of_lines)


def _difflib_chars(case: Case, blocks: Blocks) -> str | None:
    return _by_windows(case, blocks, _ratio_of_chars)


def _by_windows(case: Case, blocks: Blocks, score: Callable[[Sequence[str], list[str]], Sequence[float]]) -> str | None:
    lines = case.original.split("\n")
    for before, after in blocks:
        if not before:
            return None
        scores = score(lines, before)
        if not scores:
            return None
        at = max(range(len(scores)), key=scores.__getitem__)
        lines = [*lines[:at], *after, *lines[at + len(before) :]]
    return "\n".join(lines)


def _ratio_of_lines(lines: Sequence[str], before: list[str]) -> Sequence[float]:
    matcher: difflib.SequenceMatcher[str] = difflib.SequenceMatcher(None)
    matcher.set_seq2(before)
    scores = []
    for at in range(len(lines) - len(before) + 1):
        matcher.set_seq1(lines[at : at + len(before)])
        scores.append(matcher.ratio())
    return scores


def _ratio_of_chars(lines: Sequence[str], before: list[str]) -> Sequence[float]:
    matcher = difflib.SequenceMatcher(None, b="\n".join(before))
    best = 0.0
    scores = []
    for at in range(len(lines) - len(before) + 1):
        matcher.set_seq1("\n".join(lines[at : at + len(before)]))
        hopeful = matcher.real_quick_ratio() > best and matcher.quick_ratio() > best
        scores.append(matcher.ratio() if hopeful else 0.0)
        best = max(best, scores[-1])
    return scores


def _difflib_blocks(case: Case, blocks: Blocks) -> str | None:
    lines = case.original.split("\n")
    for before, after in blocks:
        match = difflib.SequenceMatcher(None, lines, before, autojunk=False).find_longest_match()
        at = match.a - match.b
        if at < 0 or not match.size:
            return None
        lines = [*lines[:at], *after, *lines[at + len(before) :]]
    return "\n".join(lines)


def _aider() -> tuple[Matcher | None, str]:
    folder = user_cache_path("hunk") / "peers" / AIDER.replace("==", "-")
    try:
        coder = _load_aider(_fetched(folder))
    except (OSError, subprocess.CalledProcessError, ImportError, StopIteration) as error:
        return None, f"aider left out: {AIDER} cannot be had ({type(error).__name__})"

    def run(case: Case, blocks: Blocks) -> str | None:
        text = f"{case.path}\n```\n{case.edit}```\n"
        content: str | None = case.original
        for _, before, after in list(coder.find_original_update_blocks(text, _FENCE, [case.path])):
            content = coder.do_replace("a file that is not there", content, before, after, _FENCE)
            if content is None:
                return None
        return content

    return run, f"aider's matcher is that of {AIDER}"


def _fetched(folder: Path) -> Path:
    """Return the folder that holds aider's wheel unpacked; its dependencies are not needed and not fetched."""
    if not (folder / "aider").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*command, "--dest", str(folder), AIDER], check=True, timeout=120, capture_output=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder)
    return folder


def _load_aider(folder: Path) -> Any:
    """Import aider's editblock_coder alone: what it imports beside the matcher is replaced by empty modules."""
    stubs: dict[str, dict[str, Any]] = {
        "aider": {"utils": types.ModuleType("aider.utils")},
        "aider.utils": {},
        "aider.dump": {"dump": print},
        "aider.coders": {},
        "aider.coders.base_coder": {"Coder": object},
        "aider.coders.editblock_prompts": {"EditBlockPrompts": object},
    }
    name = "aider.coders.editblock_coder"
    spec = importlib.util.spec_from_file_location(name, folder / "aider" / "coders" / "editblock_coder.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    before = dict(sys.modules)
    for stub, names in stubs.items():
        sys.modules[stub] = types.ModuleType(stub)
        vars(sys.modules[stub]).update(names)
    try:
        spec.loader.exec_module(module)
    finally:
        for stub in stubs:
            sys.modules.pop(stub)
            if stub in before:
                sys.modules[stub] = before[stub]
    return module

"""Compare what tools do with the same explicit edits: `python -m benchmarks.tools --aider PYTHON`.

    recorded   SEARCH/REPLACE blocks as models sent them to aider, and blocks and diffs that a model wrote for commits
    stale      such edits for a file that has changed since (`benchmarks.trust`, stale)
    ambiguous  edits whose quoted text stands in two places, or nowhere: only a refusal is right

hunk merges by rule. aider (`editblock_coder`, for SEARCH/REPLACE) and `git apply` (for diffs) are the real ones. PYTHON
is that of an environment with aider-chat, such as `make e2e` makes in <cache>/e2e/aider-*/bin/python.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.cases import Case
from benchmarks.harness import make_parser, render_rows, write_json
from benchmarks.trust.ambiguous import make_ambiguous_edits
from benchmarks.trust.right_results import draw_commits, load_right_results
from benchmarks.trust.stale import apply_by_rule, make_stale_cases
from editor import codec
from editor.types import FormatName

Outcome = Literal["right", "refused", "wrong"]
Tool = Callable[[Sequence[Case]], Iterator[str | None]]
"""Yields the text that a tool makes of each case, None if it refuses."""

AIDER = """
import json, sys
from aider.coders.editblock_coder import do_replace

for line in sys.stdin:
    case = json.loads(line)
    text = case["original"]
    for old, new in case["blocks"]:
        text = text and do_replace(case["path"], text, old, new, ("```", "```"))
    print(json.dumps(text or None), flush=True)
"""
BLOCK = re.compile(r"^<<<<<<< SEARCH\n(.*?)^=======\n(.*?)^>>>>>>> REPLACE", re.MULTILINE | re.DOTALL)


def merge_by_rule(cases: Sequence[Case]) -> Iterator[str | None]:
    """Merge with Hunk's rules, without a model."""
    for case in cases:
        result = apply_by_rule(case, case.original.encode())
        yield None if result is None or result.status == "rejected" else result.file.merged


def merge_with_aider(python: Path, cases: Sequence[Case]) -> Iterator[str | None]:
    """Merge SEARCH/REPLACE blocks as aider does, one after the other."""
    command = [str(python), "-c", AIDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for case in cases:
            blocks = [[old, new] for old, new in BLOCK.findall(case.edit)]
            process.stdin.write(json.dumps({"original": case.original, "path": case.path, "blocks": blocks}) + "\n")
            process.stdin.flush()
            yield json.loads(process.stdout.readline())
        process.stdin.close()


def merge_with_git(cases: Sequence[Case]) -> Iterator[str | None]:
    """Apply diffs with `git apply`, which is given the file's name and told to recount lines."""
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, case.path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(case.original.encode())
            command = ["git", "apply", "--recount", "-"]
            done = subprocess.run(command, input=case.edit.encode(), cwd=folder, capture_output=True, check=False)
            yield file.read_bytes().decode() if done.returncode == 0 and file.exists() else None


def judge(merged: str | None, right: Sequence[str], original: str) -> Outcome:
    """Judge a tool's text, whatever its line endings; without a right text, an unchanged file counts as refused."""
    if merged is None:
        return "refused"
    text, rights = _normalize(merged), [_normalize(one) for one in right]
    if text in rights:
        return "right"
    return "refused" if text == _normalize(original) else "wrong"


def _normalize(text: str) -> str:
    return codec.decode(text.encode()).text


def build_tasks(data: Path, seed: int) -> Mapping[str, list[tuple[Case, tuple[str, ...]]]]:
    """Return the cases of each kind, with the texts that are right."""
    formats: tuple[FormatName, ...] = ("search_replace", "udiff")
    drawn = load_right_results(data, None, seed)
    recorded = [case for case in drawn if case.shape in ("aider", "explicit") and case.format in formats]
    commits = draw_commits(data, 400, seed, formats)
    stale = make_stale_cases(commits, data, 0, seed)
    ambiguous = make_ambiguous_edits(commits, 240, seed)
    return {
        "recorded": [(case, (case.expected,)) for case in recorded],
        "stale": [(one.case, one.right) for one in stale],
        "ambiguous": [(case, ()) for case in ambiguous],
    }


def main() -> None:
    """Run the tools, and print a table."""
    parser = make_parser("tools", __doc__)
    parser.add_argument("--cases", type=Path, default=Path("../shared/data"), help="folder of recorded data")
    parser.add_argument("--aider", type=Path, help="Python of an environment with aider-chat")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    tools: dict[str, tuple[str, Tool]] = {
        "hunk, SEARCH/REPLACE": ("search_replace", merge_by_rule),
        "hunk, diff": ("udiff", merge_by_rule),
        "git apply --recount": ("udiff", merge_with_git),
    }
    if options.aider is not None:
        tools["aider"] = ("search_replace", lambda cases: merge_with_aider(options.aider, cases))
    rows: list[dict[str, Any]] = []
    for kind, tasks in build_tasks(options.cases, options.seed).items():
        for name, (format_name, tool) in tools.items():
            mine = [(case, right) for case, right in tasks if case.format == format_name]
            merged = tool([case for case, _ in mine])
            found: Counter[str] = Counter(
                judge(text, right, case.original) for text, (case, right) in zip(merged, mine, strict=True)
            )
            rows.append({"kind": kind, "name": f"{kind}: {name}", "cases": len(mine), **found})
    columns = {"tool": "{name}", "cases": "{cases}", "right": "{right}", "refused": "{refused}", "wrong": "{wrong}"}
    print(render_rows([{"right": 0, "refused": 0, "wrong": 0, **row} for row in rows], columns))
    write_json(options.json, {"tools": len(tools)}, rows)


if __name__ == "__main__":
    main()

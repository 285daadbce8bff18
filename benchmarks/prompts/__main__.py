"""Which form of prompt a model follows best: `python -m benchmarks.prompts --model NAME --forms tags,two`.

The model alone merges lazy snippets, and every check of the editor is made on the result, as in an apply. Exclusive
counts a form: `exact`; `exact_rejected`, right and refused by a check; `refused`, wrong and refused by a check;
`wrong`, which every check let pass: the figure to fear. `--half choose` and `--half held-out` are halves of the edits:
choose a form by the one and look at it on the other. A difference of one or two cases says nothing.

The right result is the first guess at what the model will write, which makes measuring quick and changes nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agent_runtime.errors import ModelUnavailable
from agent_runtime.process import settle
from agent_runtime.prompt import FORMS, PromptForm, build_prompt, find_form
from benchmarks.cases import DEFAULT_CASES
from benchmarks.machine import describe
from benchmarks.prompts.tasks import KINDS, Task, tasks
from editor.formats import parse
from editor.grammars import find_language
from editor.scope import check_region_kept, cut, splice
from editor.verify import is_accepted, verify

OUTCOMES = ("exact", "exact_rejected", "refused", "wrong")
SPARE_TOKENS = 256
CONTEXT = 4096
"""Tokens of prompt and answer; the tasks are small."""
AT_ONCE = 8
"""Edits that share the model's passes."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a model made of one task under one form. `differs` is its text where that is wrong."""

    form: str
    id: str
    kind: str
    style: str
    outcome: str
    failed_checks: tuple[str, ...]
    prompt: int
    completion: int
    differs: str | None


def measure(loaded: Any, form: PromptForm, task: Task) -> Row:
    """Have the model make the edit, and compare and check what it wrote."""
    from engine.speculation import MergeDraft
    from engine.types import GenerationRequest

    given = [] if task.region is None else [task.region]
    file_text, wanted = task.file, task.right
    if task.region is not None:
        file_text, (wanted,) = task.region.text, cut(task.file, task.right, given)
    prompt = build_prompt(
        loaded.text.template,
        loaded.text.tokenizer,
        file_text=file_text.removesuffix("\n"),
        edit_text=task.edit.strip("\n"),
        instruction="",
        outline=task.outline,
        form=form,
    )
    right_ids = loaded.text.tokenizer.encode(f"{wanted.removesuffix(chr(10))}\n{prompt.stop}")
    request = GenerationRequest(
        prompt=prompt.token_ids,
        max_new_tokens=len(prompt.file_ids) + len(prompt.edit_ids) + SPARE_TOKENS,
        stop_ids=loaded.text.stop_ids,
        stop=(prompt.stop.encode(),),
    )
    draft = MergeDraft(merges=[right_ids], original=prompt.file_ids, update=prompt.edit_ids)
    result = loaded.engine.run(request, draft)
    answer = result.text.decode("utf-8", errors="replace").removesuffix("\n") + "\n"
    merged = splice(task.file, given, [answer]) if given else answer
    truncated = result.finish_reason == "length"
    checks = verify(task.file, merged, parse(task.edit, "lazy"), find_language(task.path), truncated=truncated)
    checks += (check_region_kept(given, [answer]),) if given else ()
    same = _compared(merged, task) == _compared(task.right, task)
    outcome = {(True, True): "exact", (False, True): "exact_rejected", (True, False): "wrong"}.get(
        (is_accepted(checks), same), "refused"
    )
    failed = tuple(check.name for check in checks if not check.ok)
    texts = None if same else merged
    prompted, completed = len(prompt.token_ids), result.usage.completion
    return Row(form.name, task.id, task.kind, task.style, outcome, failed, prompted, completed, texts)


def _compared(text: str, task: Task) -> object:
    if task.inexact:
        return [line.rstrip() for line in text.split("\n") if line.strip()]
    return text.removesuffix("\n")


def main() -> None:
    """Compare the forms and print a table."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--forms", default=",".join(FORMS), help=f"by commas, of {', '.join(FORMS)}")
    parser.add_argument("--cases", type=Path, default=DEFAULT_CASES)
    parser.add_argument("--kinds", default=",".join(KINDS), help="by commas, of %(default)s")
    parser.add_argument("--half", choices=("choose", "held-out", "both"), default="choose")
    parser.add_argument("--limit", type=int, help="so many tasks of each kind at most")
    parser.add_argument("--seed", type=int, default=0, help="of the made snippets")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()

    from agent_runtime.models.config import LoadOptions, ModelSettings
    from agent_runtime.wiring import open_model

    found = chosen(tasks(options.cases, options.kinds.split(","), options.seed), options.half, options.limit)
    forms = [find_form(name) for name in options.forms.split(",")]
    loaded = open_model(options.model, ModelSettings.from_env(os.environ), LoadOptions(context=CONTEXT))
    print(describe())
    rows: list[Row] = []
    summary: dict[str, Any] = {"model": options.model, "half": options.half, "seed": options.seed, "forms": {}}
    print(f"{'form':<20}{'kind':<10}{'cases':>6}" + "".join(f"{name:>16}" for name in OUTCOMES), flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for form in forms:
            done = list(pool.map(partial(measure, loaded, form), found))
            rows += done
            summary["forms"][form.name] = _summary(done)
            for kind, counts in summary["forms"][form.name].items():
                cells = "".join(f"{counts[name]:>16}" for name in OUTCOMES)
                print(f"{form.name:<20}{kind:<10}{counts['cases']:>6}{cells}", flush=True)
            if options.json:
                text = json.dumps({"summary": summary, "rows": [asdict(row) for row in rows]}, indent=2)
                options.json.write_text(text, encoding="utf-8")
    loaded.engine.close()


def chosen(found: list[Task], half: str, limit: int | None) -> list[Task]:
    """The tasks of a half, the first `limit` of each kind."""
    counts: Counter[str] = Counter()
    kept: list[Task] = []
    for task in found:
        if half != "both" and task.held_out != (half == "held-out"):
            continue
        counts[task.kind] += 1
        if limit is None or counts[task.kind] <= limit:
            kept.append(task)
    return kept


def _summary(rows: list[Row]) -> dict[str, Any]:
    kinds = [kind for kind in KINDS if any(row.kind == kind for row in rows)]
    groups = {kind: [row for row in rows if row.kind == kind] for kind in kinds} | {"all": rows}
    return {
        name: {
            "cases": len(group),
            **{outcome: sum(row.outcome == outcome for row in group) for outcome in OUTCOMES},
            "prompt_mean": round(statistics.fmean(row.prompt for row in group), 1),
        }
        for name, group in groups.items()
    }


if __name__ == "__main__":
    try:
        main()
    except ModelUnavailable as error:
        sys.exit(str(error))

"""Shows results to a person: the coloured diff, how it was made and what it cost."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from agent_runtime.errors import EditRefused
from agent_runtime.types import ApplyResult

DIFF_STYLES = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}


def print_result(result: ApplyResult, console: Console, *, written: bool) -> None:
    """The diff, then one line on how it was made, then what stands against it."""
    print_diff(result.file.diff, console)
    console.print(_headline(result, written), soft_wrap=True)
    for check in result.file.checks:
        if not check.ok:
            console.print(Text(f"  {check.name}: {check.detail}", style="red"), soft_wrap=True)
    if result.file.method == "model":
        console.print(Text(f"  {_cost(result)}", style="dim"), soft_wrap=True)


def print_diff(diff: str, console: Console) -> None:
    """A unified diff in colours."""
    for line in diff.splitlines():
        style = next((style for mark, style in DIFF_STYLES.items() if line.startswith(mark)), "")
        console.print(Text(line, style=style), soft_wrap=True)


def print_refusal(fault: EditRefused, console: Console) -> None:
    """Why an edit was refused, the nearest miss, and what to send instead."""
    console.print(Text(f"hunk: {fault}", style="red"), soft_wrap=True)
    for reason in fault.reasons:
        if reason.nearest:
            print_diff(reason.nearest, console)
        if reason.suggestion:
            console.print(Text(reason.suggestion), soft_wrap=True)


def _headline(result: ApplyResult, written: bool) -> Text:
    file = result.file
    if result.status == "noop":
        return Text(f"nothing to do: {file.checks[0].detail}", style="bold")
    if result.status == "rejected":
        return Text("rejected by a check; nothing was written", style="bold red")
    by = f"by rule ({file.rung})" if file.method == "deterministic" else "by the model"
    where = "written" if written else "not written; --write does"
    return Text(f"merged {by}, {file.certainty if file.certainty == 'certain' else 'checked'}; {where}", style="bold")


def _cost(result: ApplyResult) -> str:
    usage, seconds = result.usage, result.timings["total_ms"] / 1e3
    return (
        f"{usage.prompt} prompt tokens ({usage.cached} cached), {usage.completion} written in {usage.forwards} forward "
        f"passes, {usage.accepted} of {usage.drafted} drafted tokens accepted, {seconds:.1f} s"
    )

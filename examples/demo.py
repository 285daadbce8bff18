"""Two edits of real files over HTTP: one that a rule merges, one that the model is asked to. Run by `make demo`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from agent_runtime.cli.render import print_diff, print_remarks
from hunk import Client
from hunk.errors import HunkError, NoConnection
from hunk.types import ApplyRequest, ApplyResult

FOLDER = Path(__file__).parent
BY_RULE = ("rate_limiter.py", "rate_limiter.search_replace.txt")
BY_MODEL = ("shopping_cart.ts", "shopping_cart.lazy.txt")
NUM_PLAIN_TOKENS = 64
START_SECONDS = 180

console = Console(highlight=False)


def main() -> int:
    """Start the service, apply both edits, compare with plain decoding, stop the service."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    model = parser.parse_args().model
    try:
        with served(model) as url, Client(url) as client:
            by_rule = show(client, "1. a SEARCH/REPLACE block that matches in one place", request_for(*BY_RULE))
            wait_until_ready(client, model)
            request = replace(request_for(*BY_MODEL), mode="model")
            by_model = show(client, "2. a lazy snippet that takes lines away, written by the model", request)
            compare_with_plain(client, request, by_model)
    except HunkError as fault:
        console.print(f"demo: {fault}", style="red")
        return fault.exit_code
    made = (by_rule.status, by_rule.file.method, by_model.status, by_model.file.method)
    if made != ("merged", "deterministic", "merged", "model"):
        console.print(f"demo: not as it should be: {made}", style="red")
        return 1
    return 0


@contextmanager
def served(model: str) -> Iterator[str]:
    """`hunk serve` on a free loopback port, as a process of its own; gives its URL."""
    hunk = Path(sys.executable).with_name("hunk")
    command = [hunk, "serve", "--model", model, "--port", "0", "--root", FOLDER]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            _, found, rest = said.partition("http://")
            if not found:
                raise NoConnection(f"the service did not start: {said}{process.stderr.read()}".strip())
            console.print(f"$ hunk serve --model {model} --port 0 --root examples\n{said}", style="dim", end="")
            yield "http://" + rest.partition(",")[0].strip()
        finally:
            process.terminate()


def request_for(file: str, edit: str) -> ApplyRequest:
    """One of the examples as a request."""
    return ApplyRequest((FOLDER / file).read_bytes(), (FOLDER / edit).read_text(encoding="utf-8"), path=file)


def show(client: Client, title: str, request: ApplyRequest) -> ApplyResult:
    """Apply over HTTP and print the edit, the diff and how it was made."""
    heading(title)
    console.print(request.edit.strip(), style="dim", markup=False)
    console.print()
    result = client.apply(request)
    print_diff(result.file.diff, console)
    print_remarks(result, console, "not written")
    return result


def heading(title: str) -> None:
    """A line across the terminal."""
    console.print()
    console.rule(title, align="left")


def wait_until_ready(client: Client, model: str) -> None:
    """Wait for the model; what needs none is answered before."""
    started = time.monotonic()
    with console.status(f"loading {model}"):
        while not client.is_ready():
            if time.monotonic() - started > START_SECONDS:
                raise NoConnection(f"the service did not load {model} within {START_SECONDS} s")
            time.sleep(0.2)
    console.print(f"\n{model} was ready {time.monotonic() - started:.1f} s later", style="dim")


def compare_with_plain(client: Client, request: ApplyRequest, first: ApplyResult) -> None:
    """Have the model write the edit with the copy draft, and its first tokens without, behind the cached prompt."""
    heading("the same edit, written with and without the copy draft, its prompt cached")
    written = replace(request, decide="generate")
    drafted = client.apply(written)
    plain = client.apply(replace(written, draft="none", max_tokens=NUM_PLAIN_TOKENS))
    same = drafted.file.merged == first.file.merged
    note = "" if same else " (another text than the reading that was chosen)"
    console.print(rate("copy draft, whole file", drafted) + note, soft_wrap=True)
    console.print(rate(f"plain decoding, first {NUM_PLAIN_TOKENS} tokens only", plain), soft_wrap=True)
    console.print(f"{'ratio':<38}{speed(drafted) / speed(plain):7.1f} x", style="bold")


def rate(label: str, result: ApplyResult) -> str:
    """Tokens, passes and tokens a second of one answer."""
    usage = result.usage
    return f"{label:<38}{speed(result):7.1f} tok/s  {usage.completion} tokens in {usage.forwards} forward passes"


def speed(result: ApplyResult) -> float:
    """Tokens a second of the answer, the rest of the prompt's prefill included."""
    return result.usage.completion / ((result.timings["prefill_ms"] + result.timings["decode_ms"]) / 1e3)


if __name__ == "__main__":
    sys.exit(main())

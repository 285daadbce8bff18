"""`hunk bench` and `hunk tune`: a benchmark of a checkout, or the kernels' tuner, runs in place of this process."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from agent_runtime.cli.render import print_faults_as_json, print_table
from agent_runtime.errors import BadRequest, find_nearest

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that holds our packages; in a checkout it also holds `benchmarks`, which is not installed."""


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in _list_benchmarks() if name.startswith(incomplete)] if _is_checkout() else []


@print_faults_as_json
def bench_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="The benchmark; without it, all are listed.", autocompletion=_complete_name
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the benchmark; see `hunk bench NAME --help`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="List the benchmarks as JSON.")] = False,
) -> None:
    """Run a benchmark of the checkout that this command is installed from.

    It is `python -m benchmarks.NAME`. Ends with the benchmark's exit code, or with 2 where there is no checkout or no
    such benchmark.
    """
    if not _is_checkout():
        raise BadRequest(
            f"benchmarks run from a checkout, and {CHECKOUT} is not one: clone the repository, run `make` in it, "
            "and use its .venv/bin/hunk",
            field="name",
        )
    if name is None:
        _print_list(as_json=as_json)
        return
    if name not in _list_benchmarks():
        near = find_nearest(name, _list_benchmarks())
        hint = f"did you mean {near}?" if near else "`hunk bench` lists them"
        raise BadRequest(f"there is no benchmark {name!r}; {hint}", field="name")
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    os.execve(sys.executable, [sys.executable, "-m", f"benchmarks.{name}", *(arguments or [])], environ)


def tune_command(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="The kernels, all by default, and options; see `hunk tune --help`."),
    ] = None,
) -> None:
    """Search the fastest constants of kernels on this machine's card.

    The card must serve nobody meanwhile. The engine reads the constants when it starts. Ends with 1 where no variant is
    right, with 2 where there is no card.
    """
    if find_spec("torch") is None:
        raise BadRequest("kernels need torch: `pip install 'hunk-apply[gpu]'`", field="ops")
    module = ".".join((*__name__.split(".")[:-3], "kernels", "tune"))
    os.execv(sys.executable, [sys.executable, "-m", module, *(arguments or [])])


def _is_checkout() -> bool:
    return (CHECKOUT / "benchmarks" / "__init__.py").is_file() and (CHECKOUT / "pyproject.toml").is_file()


def _print_list(*, as_json: bool) -> None:
    benchmarks = _list_benchmarks()
    if as_json:
        typer.echo(json.dumps({"benchmarks": [{"name": name, "what": what} for name, what in benchmarks.items()]}))
    else:
        print_table(("name", "what"), benchmarks.items())


def _list_benchmarks() -> dict[str, str]:
    """Return the benchmarks by name, each with the first sentence of its module."""
    return dict(sorted(_find_benchmarks(CHECKOUT / "benchmarks", "benchmarks.")))


def _find_benchmarks(folder: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield name and summary of each module that says how to run it; other modules are parts of these."""
    for path in folder.iterdir():
        if path.is_dir():
            yield from _find_benchmarks(path, f"{prefix}{path.name}.")
        elif path.suffix == ".py":
            name = prefix.removesuffix(".") if path.name == "__main__.py" else prefix + path.stem
            text = path.read_text(encoding="utf-8")
            if re.search(rf"`python -m {re.escape(name)}[ `]", text):
                yield name.removeprefix("benchmarks."), _parse_summary(text)


def _parse_summary(text: str) -> str:
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return re.split(r": `|\. |, where |; ", first)[0].removesuffix(".")

"""docs/api.md says what the service does: every route, every problem, and examples that work."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from shutil import copytree, which
from typing import get_args

import httpx
import pytest

import agent_runtime.server.app  # noqa: F401 -- all errors that there are
from agent_runtime.errors import HunkError
from agent_runtime.server.service import Service
from agent_runtime.workspace.registry import WorkspaceRegistry
from editor.formats import parse
from editor.merge import merge
from editor.types import FormatName, Merged
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving

ROOT = Path(__file__).resolve().parents[3]
DOC = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def _blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


FORMATS = DOC.partition("## Formats")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"^`(\w+)`[,:](?:(?!^`).)*?^```\w*\n(.*?)^```", FORMATS, re.DOTALL | re.MULTILINE)
FILES = {
    "v4a": "class Limits:\n    limit = 10\n",
    "lazy": "import os\n\n\ndef limit():\n    return 10\n",
}
FILE = "limit = 10\n\n"


@pytest.mark.parametrize(("name", "edit"), EXAMPLES)
def test_the_example_is_read_as_its_format(name: str, edit: str) -> None:
    parsed = parse(edit)
    assert parsed.format == name
    if name != "lazy":
        outcome = merge(FILES.get(name, FILE), parsed, "python")
        assert isinstance(outcome, Merged)
        assert "limit = 20" in outcome.text


def test_every_format_has_an_example() -> None:
    assert sorted(name for name, _ in EXAMPLES) == sorted(get_args(FormatName))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service as the examples expect it: `--root examples --allow-root /srv`."""
    srv = tmp_path_factory.mktemp("srv")
    root = copytree(ROOT / "examples", srv / "examples")
    copytree(root, srv / "shop")

    def with_files(service: Service) -> Service:
        return replace(service, workspaces=WorkspaceRegistry(root, allowed=[srv]))

    with serving(ScriptedMerger("# merged\n"), change=with_files) as url:
        SRV.append(srv)
        yield url


SRV: list[Path] = []
ROUTES = re.findall(r"`(GET|POST|DELETE|PUT|PATCH) (/[^ `]*)`", "\n".join(re.findall(r"^## .*", DOC, re.MULTILINE)))


def test_every_route_has_a_section_and_every_section_a_route(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    served = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert served == set(ROUTES)


SCHEMAS = """
Answer AnswerMessage ApplyAnswer ApplyBody ApplyOptions AskBody BatchBody BatchItem ChangedFile ChatBody Check
Choice CodeApplyAnswer CodeApplyBody CompletionAnswer CompletionDetails ErrorAnswer ErrorObject FileBody
FileContent FilePage FileResult GivenScope HistoryMessage ListedFile Message ModelList ModelObject Problem
PromptDetails ReadAnswer ReadBody ReadFile Reading Reason ScoredReading SeenFile SessionApplyBody SessionBody
SessionState SnapshotFile SnapshotPage SourceUsage StreamOptions TokenUsage UnaccountedLine UndoBody UndoResponse
UndoResponseFile Usage WorkspaceBody
WorkspaceChanges WorkspaceList WorkspaceStatus _Part _PredictionBody _PredictionPart
"""
"""Clients are generated from these names."""


def test_the_schemas_keep_their_published_names(url: str) -> None:
    schemas = httpx.get(f"{url}/openapi.json").json()["components"]["schemas"]
    assert sorted(schemas) == SCHEMAS.split()
    assert {name for name, schema in schemas.items() if schema["title"] != name} == set()


PROBLEMS = [
    (kind, int(status), int(exit_code))
    for kinds, status, exit_code in re.findall(r"^\| (`[a-z-`, ]+`) \| (\d{3}) \| (\d+) \|", DOC, re.MULTILINE)
    for kind in re.findall(r"`([a-z-]+)`", kinds)
]


def errors(root: type[HunkError] = HunkError) -> Iterator[type[HunkError]]:
    yield root
    for error in root.__subclasses__():
        yield from errors(error)


def test_every_problem_is_listed_with_its_status_and_its_exit_code() -> None:
    shipped = [error for error in errors() if error.__module__.startswith("agent_runtime.")]
    assert sorted(PROBLEMS) == sorted((error.kind, error.http_status, error.exit_code) for error in shipped)


def test_every_status_that_a_problem_has_is_one_of_http() -> None:
    known = {status.value for status in HTTPStatus} | {499}
    assert {status for _, status, _ in PROBLEMS} <= known


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    pytest.param(command, id=f"{page.name}-{number}")
    for page in PAGES
    for number, command in enumerate(
        re.findall(r"^(curl (?:.|\n(?!```|curl))*)$", "\n".join(_blocks(page)), re.MULTILINE), start=1
    )
]


@pytest.mark.skipif(which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_works_as_it_stands_there(url: str, command: str) -> None:
    typed = command.replace("http://127.0.0.1:8311", url).replace('"/srv', f'"{SRV[-1]}')
    assert url in typed
    done = subprocess.run(
        ["bash", "-c", typed.replace("curl ", "curl --fail-with-body --max-time 30 ", 1)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout

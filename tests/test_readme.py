"""What README.md tells a newcomer to type exists and works."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agent_runtime.models.config import CATALOGUE

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]


def commands(start: str) -> list[str]:
    found = [command for command in COMMANDS if command.startswith(start)]
    assert found, f"README.md has no command that starts with {start!r}"
    return found


@pytest.mark.parametrize("command", commands("make "))
def test_make_targets_exist(command: str) -> None:
    done = subprocess.run([*shlex.split(command), "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", [command for command in commands(".venv/bin/hunk apply") if "--model" not in command]
)
def test_edits_that_need_no_model_are_merged(command: str) -> None:
    hunk, *arguments = shlex.split(command)
    done = subprocess.run([ROOT / hunk, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(("merged by rule", "merged as its likeliest reading"))


def test_it_is_short_and_its_example_prints_what_it_says() -> None:
    assert len(README.splitlines()) <= 130
    printed = ""
    for command in commands(".venv/bin/hunk apply"):
        done = subprocess.run(
            [ROOT / shlex.split(command)[0], *shlex.split(command)[1:]], cwd=ROOT, capture_output=True
        )
        printed += (done.stdout + done.stderr).decode()
    assert f"```\n{printed}```" in README


def test_its_python_example_runs(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "limits.py").write_text("LIMIT = 10\n")
    done = subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "merged certain\n"
    assert (tmp_path / "limits.py").read_text() == "LIMIT = 20\n"


def test_the_links_of_the_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_index_names_every_document() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index, page.name
    assert "(clients/index.md)" in index


def test_the_pages_of_clients_name_the_versions_that_were_tried() -> None:
    folder = ROOT / "docs" / "clients"
    index = (folder / "index.md").read_text(encoding="utf-8")
    for page in folder.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        tried = (
            ROOT / "tests" / "e2e" / "clients" / page.stem / "package.json",
            folder / "transcripts" / f"{page.stem}.txt",
        )
        if page.name == "index.md":
            continue
        assert f"({page.name})" in index
        assert tried[1].exists() != ("(untried)" in text.splitlines()[0]), page.name
        if tried[0].exists():
            for version in json.loads(tried[0].read_text())["dependencies"].values():
                assert version in text, page.name


def test_every_option_that_is_shown_is_there() -> None:
    for typed in commands(".venv/bin/hunk"):
        hunk, name, *arguments = shlex.split(typed)
        wide = os.environ | {"COLUMNS": "200"}
        command = [ROOT / hunk, name, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=wide).stdout
        for argument in arguments:
            if argument.startswith("--"):
                assert argument in shown


def test_the_files_and_folders_that_it_names_are_there() -> None:
    for name in re.findall(r"`((?:docs|examples)/[\w./]+)`", README):
        assert (ROOT / name).exists(), name


def test_every_model_of_the_catalogue_has_its_measured_figures() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    header = next(line for line in page.splitlines() if "first load s" in line)
    table = page.partition(header)[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if re.search(r"\d", line)]
    assert {row[0].strip() for row in rows} == {entry.name for entry in CATALOGUE}
    assert all(len(row) == len(header.strip("|").split("|")) for row in rows)
    assert all(float(cell) > 0 for row in rows for cell in row[1:])


def test_the_documents_name_files_and_modules_that_exist() -> None:
    packages = "agent_runtime|editor|engine|kernels|repo_cache|benchmarks|tests|examples|deploy|docs"
    for document in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = document.read_text(encoding="utf-8")
        for name in re.findall(rf"`((?:{packages})/[\w./-]*)`", text):
            assert (ROOT / name).exists(), f"{document.name} names {name}"
        for name in re.findall(rf"python -m ((?:{packages})(?:\.[a-z_]+)*)", text):
            path = ROOT / name.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").exists(), f"{document.name} names {name}"

"""`hunk watch`: the command, and its output of an update."""

from __future__ import annotations

import io
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agent_runtime.cli.watch import MAX_FILES, JsonView, LineView, TableView, View
from agent_runtime.errors import CorruptModel, UnknownModel
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.tokenizer import open_tokenizer
from repo_cache.cache import RepoCache
from repo_cache.subscriptions import Update
from repo_cache.types import Notice, NoticeKind
from tests.agent_runtime.cli.test_cli import HUNK, assert_one_clear_line, hunk
from tests.models import RealModel

FUNCTIONS = "".join(f"def function_{number}(x):\n    return x + {number}\n\n\n" for number in range(60))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text(FUNCTIONS)
    (root / "b.bin").write_bytes(b"\0")
    return root


@pytest.fixture
def env(smollm2: RealModel, tmp_path: Path) -> dict[str, str]:
    """Use an empty cache, and SmolLM2's tokenizer in the working folder."""
    smollm2.tokenizer.save(tmp_path / "tokenizer.json")
    return {"HUNK_CACHE": str(tmp_path / "cache")}


def test_once_says_what_there_is_and_the_next_start_finds_it(
    folder: Path, env: dict[str, str], smollm2: RealModel, tmp_path: Path
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    done = hunk("watch", folder, "--tokenizer", tokenizer, "--once", "--json", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert answer.pop("milliseconds") > 0
    assert answer == {
        "event": "index",
        "root": str(folder),
        "files": 1,
        "tokens": len(smollm2.tokenizer.encode(FUNCTIONS)),
        "skipped": {"b.bin": "binary"},
    }
    assert list((tmp_path / "cache" / "tokens").glob("*.sqlite3"))
    plain = hunk("watch", folder, "--model", tokenizer.parent, "--once", "--exclude", "*.bin", env=env)
    assert plain.returncode == 0
    assert f"{folder}: 1 file, {answer['tokens']:,} tokens, indexed in" in plain.stdout


def test_changes_come_as_lines_until_ctrl_c(folder: Path, env: dict[str, str], tmp_path: Path) -> None:
    command = [str(HUNK), "watch", str(folder), "--model", str(tmp_path), "--json", "--no-store", "--include", "*.py"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**env, "PATH": ""}
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert json.loads(running.stdout.readline())["event"] == "index"
        (folder / "a.py").write_text(FUNCTIONS.replace("function_30", "renamed"))
        change = json.loads(running.stdout.readline())
        assert (change["event"], change["path"], change["kind"]) == ("change", "a.py", "modified")
        assert change["spans"]["kept"] > 3
        assert 0 < change["tokens_encoded"] < change["tokens"] / 4
        (folder / "a.py").rename(folder / "c.py")
        moved = json.loads(running.stdout.readline())
        assert (moved["kind"], moved["path"], moved["old_path"]) == ("renamed", "c.py", "a.py")
        assert moved["tokens_encoded"] == 0
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert running.stdout.read() == ""
        assert running.stderr.read() == ""
    assert not (tmp_path / "cache" / "tokens").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no-such-folder"], 2, ["no folder no-such-folder"]),
        ([".", "--model", "no-such-model"], 4, ["no-such-model"]),
        ([".", "--model", "smollm2-135m"], 4, ["hunk models pull smollm2-135m"]),
    ],
)
def test_bad_input_is_one_clear_line(
    env: dict[str, str], tmp_path: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    named = [] if "--model" in arguments else ["--model", "tokenizer.json"]
    done = subprocess.run(
        [HUNK, "watch", "--once", *arguments, *named],
        cwd=tmp_path,
        env={**env, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert_one_clear_line(done, code, *words)


def test_a_reader_that_leaves_ends_it_quietly(folder: Path, env: dict[str, str], tmp_path: Path) -> None:
    command = f"{HUNK} watch {folder} --model {tmp_path} --json --once --no-store | true"
    done = subprocess.run(
        ["/bin/bash", "-c", command], env={**env, "PATH": "/bin:/usr/bin"}, capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""


def test_the_tokenizer_is_the_models(smollm2: RealModel, tmp_path: Path) -> None:
    settings = ModelSettings(tmp_path)
    smollm2.tokenizer.save(tmp_path / "tokenizer.json")
    text = "def f(x):\n    return 12\n"
    for name in (tmp_path, tmp_path / "tokenizer.json", smollm2.path):
        assert open_tokenizer(str(name), settings).encode(text) == smollm2.tokenizer.encode(text)
    with pytest.raises(UnknownModel):
        open_tokenizer("no-such-model", settings)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptModel, match=r"tokenizer\.json"):
        open_tokenizer(str(tmp_path), settings)


@pytest.fixture
def updates(folder: Path, smollm2: RealModel) -> Iterator[Callable[..., Update]]:
    """Change the folder and return the update."""
    with RepoCache.open(folder, smollm2.tokenizer, watch=False) as cache, cache.subscribe() as subscription:

        def change(**files: str) -> Update:
            for name, text in files.items():
                (folder / f"{name}.py").write_text(text)
            cache.refresh()
            update = subscription.get(0)
            assert update is not None
            return update

        yield change


Updates = Callable[..., Update]


def shown(view: Callable[[Console], View], updates: list[Update], *notices: Notice) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=250, height=20, color_system=None)
    with view(console) as open_view:
        open_view.on_index(updates[0].since, 12.5, notices)
        for update in updates:
            open_view.on_update(update)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("view", [LineView, TableView])
def test_a_change_is_a_line_with_what_it_cost(view: Callable[[Console], View], updates: Updates) -> None:
    update = updates(a=FUNCTIONS.replace("function_30", "renamed"))
    text = shown(view, [update], Notice(NoticeKind.WATCH_LIMIT, "the limit of watches is reached"))
    (change,) = update.changes
    assert change.after is not None
    assert f"{update.num_encoded:,} of {len(change.after):,}" in text
    assert f"{change.spans.num_kept} kept, 1 changed" in text
    assert "modified" in text
    assert "1 file," in text
    assert "1 skipped (1 binary)" in text
    assert "the limit of watches is reached" in text


@pytest.mark.parametrize("view", [LineView, TableView])
def test_thousands_of_changes_are_one_line_and_nothing_is_parsed_for_it(
    view: Callable[[Console], View], updates: Updates
) -> None:
    update = updates(**{f"f{number}": f"x = {number}\n" for number in range(MAX_FILES + 1)})
    text = shown(view, [update])
    assert f"{MAX_FILES + 1} files" in text
    assert f"{MAX_FILES + 1} added" in text
    assert not any(tokens._spans for tokens in update.snapshot.values())


def test_markup_and_control_characters_in_names_do_no_harm(updates: Updates, folder: Path) -> None:
    update = updates(**{"[red]x[nothing]\x1b[2J": "x = 1\n"})
    text = shown(TableView, [update])
    assert "[red]x[nothing]" in text
    assert "\x1b[2J" not in text
    assert "\x1b[2J" not in shown(LineView, [update])


def test_json_has_a_line_a_file(updates: Updates, capsys: pytest.CaptureFixture[str]) -> None:
    update = updates(a="x = 1\n", b="y = 1\n")
    with JsonView() as view:
        view.on_update(update)
    rows: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["path"], row["kind"]) for row in rows] == [("a.py", "modified"), ("b.py", "added")]
    assert sum(row["tokens_encoded"] for row in rows) == update.num_encoded

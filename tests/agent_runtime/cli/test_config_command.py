"""`hunk config`: shows values and their origins and the file's path, checks the file, and writes a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_runtime.config.settings import SETTINGS
from agent_runtime.errors import BadRequest
from tests.agent_runtime.in_process import hunk_here


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "hunk.toml"
    path.write_text('port = 9000\ntoken = "sesame"\n')
    monkeypatch.setenv("HUNK_CONFIG", str(path))
    monkeypatch.setenv("HUNK_DTYPE", "float32")
    return path


def test_show_says_of_every_setting_where_it_comes_from(file: Path) -> None:
    done = hunk_here("config", "show")
    assert done.exit_code == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert set(rows) == {"setting", *SETTINGS}
    assert rows["port"].split() == ["port", "9000", f"{file}:1"]
    assert rows["dtype"].split() == ["dtype", "float32", "HUNK_DTYPE"]
    assert rows["host"].split() == ["host", "127.0.0.1", "default"]
    assert "sesame" not in done.output
    assert rows["token"].split()[1] == "********"


def test_show_as_json(file: Path) -> None:
    answer = json.loads(hunk_here("config", "show", "--json", "port", "dtype", "token", "kv-gib").stdout)
    assert answer["file"] == {"path": str(file), "exists": True}
    told = {name: (row["value"], row["from"], row["place"]) for name, row in answer["settings"].items()}
    assert told == {
        "port": (9000, "file", f"{file}:1"),
        "dtype": ("float32", "environment", "HUNK_DTYPE"),
        "token": ("********", "file", f"{file}:2"),
        "kv_gib": (None, "default", ""),
    }
    assert "sesame" not in hunk_here("config", "show", "--json").output


def test_show_of_what_there_is_not(file: Path) -> None:
    assert isinstance(hunk_here("config", "show", "colour").exception, BadRequest)


def test_path(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hunk_here("config", "path").stdout == f"{file}\n"
    other = tmp_path / "other.toml"
    told = json.loads(hunk_here("config", "path", "--json", "--config", other).stdout)
    assert told == {"path": str(other), "exists": False}
    monkeypatch.delenv("HUNK_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert hunk_here("config", "path").stdout == f"{tmp_path}/hunk/config.toml\n"


def test_check_tells_what_a_start_would_trip_over(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_SOMETHING_ELSE", "1")
    done = hunk_here("config", "check")
    assert (done.exit_code, done.stdout) == (0, f"{file}: fine\nHUNK_SOMETHING_ELSE is no setting and is ignored\n")
    assert json.loads(hunk_here("config", "check", "--json").stdout)["unknown_variables"] == ["HUNK_SOMETHING_ELSE"]
    file.write_text("port = 9000\nprot = 1\n")
    fault = hunk_here("config", "check").exception
    assert isinstance(fault, BadRequest)
    assert f"{file}:2" in str(fault)
    assert str(hunk_here("serve").exception) == str(fault)
    assert str(hunk_here("models", "list").exception) == str(fault)


def test_init_writes_a_file_that_is_fine_and_never_over_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUNK_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    target = tmp_path / "hunk" / "config.toml"
    assert hunk_here("config", "init").stdout == f"{target}\n"
    assert target.stat().st_mode & 0o777 == 0o600
    assert hunk_here("config", "check").stdout == f"{target}: fine\n"
    target.write_text("port = 1\n")
    assert isinstance(hunk_here("config", "init").exception, BadRequest)
    assert target.read_text() == "port = 1\n"
    assert isinstance(hunk_here("config", "init", tmp_path / "hunk").exception, BadRequest)
    monkeypatch.setenv("HUNK_CONFIG", "")
    assert isinstance(hunk_here("config", "init").exception, BadRequest)


def test_an_option_of_the_command_line_has_the_last_word(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def stop(*arguments: Any) -> None:
        seen.append(arguments[2])
        raise ZeroDivisionError

    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", stop)
    assert isinstance(hunk_here("serve").exception, ZeroDivisionError)
    assert isinstance(hunk_here("serve", "--dtype", "float16").exception, ZeroDivisionError)
    assert isinstance(hunk_here("serve", "--config", file.with_name("none")).exception, BadRequest)
    file.write_text("batch_invariant = true\n")
    assert isinstance(hunk_here("serve", "--no-batch-invariant").exception, ZeroDivisionError)
    assert isinstance(hunk_here("serve").exception, ZeroDivisionError)
    told = [(getattr(each, "dtype", None), getattr(each, "batch_invariant", None)) for each in seen]
    assert told == [("float32", False), ("float16", False), ("float32", False), ("float32", True)]

"""The built wheel, in an environment without torch and beside the packages of PyPI that are called as ours.

The environment holds what the wheel depends on, and is made once, in the cache folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest
from filelock import FileLock

from agent_runtime.models.config import ModelSettings

ROOT = Path(__file__).resolve().parents[2]
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
STRANGERS = ("editor", "kernels")
"""Packages of PyPI with the names of ours; neither needs torch."""

BLOCK = "<<<<<<< SEARCH\nLIMIT = 10\n=======\nLIMIT = 20\n>>>>>>> REPLACE\n"


def run(*command: str | Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(  # not in the checkout, from which Python would import
        command, capture_output=True, text=True, timeout=600, check=False, env=clean | (environ or {}), cwd="/"
    )


def check(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    check(run(sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def python() -> Path:
    """Python of an environment with what the wheel depends on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *STRANGERS]
    pins = (ROOT / "constraints.txt").read_bytes()
    key = sha256(json.dumps([asked, sys.version]).encode() + pins).hexdigest()[:12]
    folder = ModelSettings.from_env(os.environ).cache_dir / "e2e" / f"wheel-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / ".made").exists():
            check(run(sys.executable, "-m", "venv", "--clear", folder))
            constraint = ("--constraint", ROOT / "constraints.txt")
            check(run(folder / "bin" / "python", *PIP, "install", *constraint, *asked))
            (folder / ".made").touch()
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def installed(wheel: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables with which the environment's Python has the wheel, too."""
    target = tmp_path_factory.mktemp("site")
    check(run(python, *PIP, "install", "--no-deps", "--target", target, wheel))
    return {"PYTHONPATH": str(target), "PATH": f"{target / 'bin'}:{os.environ['PATH']}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "limits.py"
    path.write_text("LIMIT = 10\n")
    (tmp_path / "edit").write_text(BLOCK)
    return path


def test_the_wheel_holds_one_package_and_says_what_it_is(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {name.partition("/")[0] for name in names} == {"hunk", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert not [name for name in names if name.startswith(("hunk/tests", "hunk/benchmarks")) or name.endswith(".pyc")]
    assert "Name: hunk-apply" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ") and "extra" not in line]
    assert not [line for line in required if line.split()[1].startswith(("torch", "triton", "gguf", "safetensors"))]


def test_the_packages_of_pypi_with_our_names_stay_whole(python: Path, installed: dict[str, str]) -> None:
    program = (
        "import editor, kernels, hunk, sys; hunk.apply, hunk.Client\n"
        "from hunk.editor.types import Check\n"
        "assert callable(editor.editor) and callable(kernels.get_kernel) and 'torch' not in sys.modules\n"
        "print(Check.__module__, hunk.__file__)"
    )
    module, file = check(run(python, "-c", program, environ=installed)).split()
    assert (module, Path(file).parents[1]) == ("hunk.editor.types", Path(installed["PYTHONPATH"]))


def test_an_edit_by_rule_from_the_command_and_from_python(python: Path, installed: dict[str, str], file: Path) -> None:
    command = ("-m", "hunk", "apply", file, "--edit", file.with_name("edit"))
    assert "+LIMIT = 20" in check(run(python, *command, environ=installed))
    assert file.read_text() == "LIMIT = 10\n"
    program = (
        f"import hunk; r = hunk.apply({str(file)!r}, {{'old_string': 'LIMIT = 10', 'new_string': 'LIMIT = 30'}},"
        " write=True); print(r.status, r.file.certainty)"
    )
    assert check(run(python, "-c", program, environ=installed)) == "merged certain\n"
    assert file.read_text() == "LIMIT = 30\n"
    script = Path(installed["PYTHONPATH"], "bin", "hunk")
    assert check(run(script, "--version", environ=installed)) == f"{script_version()}\n"


def script_version() -> str:
    from agent_runtime.version import __version__

    return __version__


def test_a_model_without_its_packages_is_one_line_that_says_what_to_install(
    python: Path, installed: dict[str, str], file: Path
) -> None:
    for command in (("serve",), ("apply", str(file), "--edit", str(file.with_name("edit")), "--mode", "model")):
        done = run(python, "-m", "hunk", *command, environ=installed)
        assert done.returncode == 4
        assert "pip install 'hunk-apply[model]'" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.fixture
def service(python: Path, installed: dict[str, str], tmp_path: Path) -> Iterator[str]:
    command = [python, "-m", "hunk", "serve", "--model", "none", "--port", "0", "--root", tmp_path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | installed, cwd="/") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "merging by rules only" in line, line
        yield line.split()[2].rstrip(",")
        process.terminate()
        process.communicate(timeout=30)


def test_a_service_merges_by_rules_and_is_ready(service: str, file: Path) -> None:
    assert httpx.get(f"{service}/readyz").json() == {"status": "ready", "model": "none"}
    assert "<code>/apply</code>" in httpx.get(f"{service}/docs").text
    body = {"path": file.name, "edit": {"old_string": "LIMIT = 10", "new_string": "LIMIT = 20"}, "write": True}
    answer = httpx.post(f"{service}/apply", json=body)
    assert (answer.status_code, answer.json()["certainty"]) == (200, "certain")
    assert file.read_text() == "LIMIT = 20\n"
    assert 'torch="none"' in httpx.get(f"{service}/metrics").text
    refused = httpx.post(f"{service}/apply", json={"path": file.name, "edit": "LIMIT = 1\nX = 2\n", "mode": "model"})
    assert refused.status_code == 503
    assert "rules only" in refused.json()["detail"]


def test_watch_models_mcp_and_the_local_client_work(python: Path, installed: dict[str, str], file: Path) -> None:
    listed = json.loads(check(run(python, "-m", "hunk", "models", "list", "--json", environ=installed)))
    names = {row["name"] for row in listed["models"]}
    assert "qwen2.5-coder-1.5b" in names
    command = ("-m", "hunk", "watch", file.parent, "--once", "--model", "smollm2-135m")
    watched = run(python, *command, environ=installed)
    assert "2 files" in check(watched)
    started = subprocess.run(
        [python, "-m", "hunk", "mcp", "--root", file.parent],
        input=json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | installed,
        cwd="/",
    )
    assert json.loads(started.stdout)["id"] == 1, started.stderr
    program = (
        "import hunk\n"
        "with hunk.LocalClient(model=None) as client:\n"
        "    request = hunk.ApplyRequest(b'a = 1\\n', {'old_string': 'a = 1', 'new_string': 'a = 2'}, 'x.py')\n"
        "    print(client.apply(request).merged, end='')\n"
    )
    assert check(run(python, "-c", program, environ=installed)) == "a = 2\n"

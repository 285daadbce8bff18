"""The example extension for VS Code: it is built, and its tests talk to a real service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.environments import npm_folder, tool
from tests.e2e.service import Running

pytestmark = pytest.mark.e2e

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "vscode"


def test_the_extension_is_built_and_its_tests_pass(service: Running, tmp_path: Path) -> None:
    modules = npm_folder(SOURCE) / "node_modules"
    place = tmp_path / "vscode"
    shutil.copytree(SOURCE, place, ignore=shutil.ignore_patterns("node_modules", "out"))
    (place / "node_modules").symlink_to(modules)
    environ = os.environ | {"HUNK_URL": service.url}
    done = subprocess.run(
        [tool("npm"), "test"], cwd=place, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\D*skipped 0$", done.stdout, re.MULTILINE), "the service was not asked"
    assert (place / "out" / "src" / "extension.js").is_file()

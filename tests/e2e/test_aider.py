"""aider, pointed at /v1 as at any service of OpenAI's shape, edits a file of a sample repository."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.environments import program
from tests.e2e.service import Running, scripted
from tests.scripted_model import Line

pytestmark = pytest.mark.e2e

PRICES = '''\
"""Prices in a shop."""

TAX = 0.19


def with_tax(price):
    return price * TAX
'''
FIXED = PRICES.replace("price * TAX", "price * (1 + TAX)")
TASK = "with_tax has to return the price with its tax: price * (1 + TAX). Change only that line of prices.py."

KNOWN_MODEL = {"openai/hunk": {"max_input_tokens": 4096, "max_output_tokens": 4096, "litellm_provider": "openai"}}
"""What aider would look up in the network."""

QUIET = (
    "--analytics-disable",
    "--no-auto-lint",
    "--no-check-update",
    "--no-detect-urls",
    "--no-fancy-input",
    "--no-git",
    "--no-pretty",
    "--no-show-model-warnings",
    "--no-show-release-notes",
    "--no-suggest-shell-commands",
    "--yes-always",
)


@pytest.fixture(scope="module")
def able(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a model that follows aider's prompt for whole files."""
    folder = tmp_path_factory.mktemp("root")
    answer = Line((TASK,), f"Here it is.\n\nprices.py\n```\n{FIXED}```\n")
    with scripted(folder, folder.with_suffix(".json"), answer, arguments=["--context", "8192"]) as served:
        yield served


@pytest.mark.parametrize("streaming", ["--stream", "--no-stream"])
def test_aider_edits_a_line(able: Running, tmp_path: Path, streaming: str) -> None:
    repository, home = tmp_path / "shop", tmp_path / "home"
    repository.mkdir()
    caches = home / ".aider" / "caches"
    caches.mkdir(parents=True)
    (caches / "model_prices_and_context_window.json").write_text(json.dumps(KNOWN_MODEL))
    (repository / "prices.py").write_text(PRICES)
    (repository / "README.md").write_text("A shop.\n")
    environ = os.environ | {
        "HOME": str(home),
        "OPENAI_API_BASE": f"{able.url}/v1",
        "OPENAI_API_KEY": "any",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices
    }
    aider = [program("aider", "aider"), "--model", "openai/hunk", "--edit-format", "whole", streaming, *QUIET]
    done = subprocess.run(
        [*aider, "--message", TASK, "prices.py"],
        cwd=repository,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Applied edit to prices.py" in said
    assert (repository / "prices.py").read_text() == FIXED, said
    assert (repository / "README.md").read_text() == "A shop.\n"
    assert "Error" not in said

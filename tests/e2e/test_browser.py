"""The page in headless Chromium, driven by playwright-core: what `browser/page.test.mjs` asks of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_runtime.models.config import ModelSettings
from tests.e2e.environments import npm_folder, tool
from tests.e2e.service import HUNK, Running, running, scripted
from tests.scripted_model import Line, merge_of

pytestmark = pytest.mark.e2e

TESTS = Path(__file__).parent / "browser"
EXAMPLES = Path(__file__).resolve().parents[2] / "agent_runtime" / "page" / "examples.js"
TWICE = "[first]\nretries = 3\n\n[second]\nretries = 3\n"
"""A file in which an edit of the examples' tests fits two places."""

SCREENSHOTS = "HUNK_SCREENSHOTS"
"""Environment variable with the folder that pictures of the page are kept in; without it they are in pytest's."""


def example_file() -> str:
    """The file that the page's examples are about."""
    found = re.search(r"^const FILE = `(.*?)`;$", EXAMPLES.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, "the page has no example"
    return found[1]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with files of all kinds."""
    root = tmp_path_factory.mktemp("workspace")
    text = example_file()
    (root / "deep" / "er").mkdir(parents=True)
    for name in ("limits.py", "deep/er/limits.py", "races.py"):
        (root / name).write_text(text)
    (root / "twice.ini").write_text(TWICE)
    for name in ("windows.py", "hunks.py"):
        (root / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    (root / "halves.py").write_text("first = 1\n" + '"line",\n' * 12 + "last = 2\n")
    (root / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0")
    (root / "big.py").write_text("".join(f"value_{number} = {number}\n" for number in range(10_000)))
    markup = '</textarea><script>window.pwned=1</script><svg onload="window.pwned=1">'
    (root / "<img src=x onerror='window.pwned=1'>.py").write_text(f"# one\n{markup}\n# two\n")
    return root


def answers() -> list[Line]:
    """What the model writes: the page's examples as they are meant, and one of two places where it is asked for one."""
    text = example_file()
    popped, costs = "        self.seen.pop(client, None)\n", "recent += [now] * cost"
    forgotten = text.replace(popped, "        return self.seen.pop(client, None) is not None\n")
    weighed = text.replace("len(recent) >= self", "len(recent) + cost > self").replace("recent.append(now)", costs)
    known, there = (
        merge_of(forgotten.replace("Start anew for a client.", f"Start anew for a client; {what}."), what)
        for what in ("whether it was known", "whether it was there")
    )
    first = merge_of(TWICE.replace("retries = 3", "retries = 5", 1), "retries = 5")
    return [known, there, merge_of(weighed, costs), first]


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The service with a model that gets the page's examples right; it keeps a history, in a cache of its own."""
    script, cache = tmp_path_factory.mktemp("script") / "script.json", tmp_path_factory.mktemp("cache")
    models = ModelSettings.from_env(os.environ).cache_dir / "models"
    models.mkdir(parents=True, exist_ok=True)
    (cache / "models").symlink_to(models)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUNK_CACHE", str(cache))
        patch.setenv("HUNK_HISTORY", "20")
        with scripted(root, script, *answers(), arguments=["--context", "8192"]) as service:
            yield service


@pytest.fixture(scope="module")
def guarded(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """A service that asks for a token, and one that it knows."""
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    made = subprocess.run(
        [HUNK, "token", "new", "browser", "--file", file, "--json"], capture_output=True, text=True, check=True
    )
    with running(root, "--model", "smollm2-135m", "--tokens", file) as service:
        yield service, json.loads(made.stdout)["token"]


def test_the_page_in_a_browser(served: Running, guarded: tuple[Running, str], tmp_path: Path) -> None:
    pictures = Path(os.environ.get(SCREENSHOTS, tmp_path)).absolute()
    environ = os.environ | {
        "URL_OPEN": served.url,
        "URL_WITH_TOKEN": guarded[0].url,
        "TOKEN": guarded[1],
        "ROOT": str(served.root),
        "SCREENSHOTS": str(pictures),
        "CHROMIUM": str(tool("chromium")),
        "MODULES": str(npm_folder(TESTS)),
        "NODE_NO_WARNINGS": "1",
    }
    done = subprocess.run(
        [tool("node"), "--test", "--test-reporter=spec", TESTS / "page.test.mjs"],
        env=environ, capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\npictures: {pictures}"
    assert re.search(r"pass (\d+)", done.stdout), done.stdout
    for name in ("light", "dark", "phone"):
        assert 10_000 < (pictures / f"page-{name}.png").stat().st_size <= 150_000

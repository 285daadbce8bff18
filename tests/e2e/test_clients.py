"""Coding agents edit a file through Hunk, each started and configured as its page in docs/clients/ says.

The model behind an agent is a script: it sends an edit that fits two places, is refused, and sends a better one.
Agents have a home folder of their own, and no way to another host. HUNK_TRANSCRIPTS=FOLDER keeps what they print.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from editor.diff import render_unified_diff
from tests.e2e.environments import CLIENTS, NotMade, npm_folder, program, tool
from tests.e2e.scripted_chat import Call, ScriptedChat, serving_chat
from tests.e2e.service import HUNK, ROOT, running, scripted
from tests.e2e.test_aider import QUIET
from tests.scripted_model import Line

pytestmark = pytest.mark.e2e

PAGES = ROOT / "docs" / "clients"

PRICES = '''\
"""Prices in a shop."""

TAX = 0.19


def with_tax(price):
    return price * TAX


def tax(price):
    return price * TAX
'''
FIXED = PRICES.replace("    return price * TAX\n\n\ndef tax", "    return price * (1 + TAX)\n\n\ndef tax")

OLD, NEW = "    return price * TAX\n", "    return price * (1 + TAX)\n"
HEAD = "def with_tax(price):\n"


def edit_of(old: str, new: str, text: str) -> Call:
    edit = f"<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"
    return Call("edit_file", {"path": "prices.py", "instruction": "Return the price with its tax.", "edit": edit}, text)


CALLS = (
    edit_of(OLD, NEW, "I change the line."),
    edit_of(HEAD + OLD, HEAD + NEW, "The line stands twice. I send the one above it, too."),
)
TASK = "with_tax has to return the price with its tax."
DONE = "with_tax returns the price with its tax."


def read_block(name: str, language: str, number: int = 0) -> str:
    """A code block of a client's page, as it stands there."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[number]


@dataclass
class Desk:
    """Where a client works: its page (empty: none), its home, a repository, and the script that is its model."""

    name: str
    home: Path
    shop: Path
    chat: ScriptedChat
    environ: dict[str, str]

    def write(self, path: str, text: str) -> None:
        """Write a file; `path` begins with `~/`, or is one of the repository."""
        file = self.home / path[2:] if path.startswith("~/") else self.shop / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, typed: str, *, shown: str = "") -> str:
        """What a shell that types this prints; it has to end well. A transcript has `shown` for what was typed."""
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=self.shop,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        self._keep(shown or typed, done.stdout)
        return done.stdout

    def _keep(self, typed: str, printed: str) -> None:
        folder = os.environ.get("HUNK_TRANSCRIPTS")
        if folder is None or not self.name:
            return
        after = (self.shop / "prices.py").read_text()
        diff = render_unified_diff(PRICES, after, "prices.py")
        parts = [f"$ {typed.strip()}\n{printed}"]
        for number, answer in enumerate(filter(None, self.chat.answers), start=1):
            parts.append(f"--- answer {number} of the tool, as the client sent it to its model ---\n{answer}")
        text = "\n\n".join([*(part.rstrip() for part in parts), f"--- the file ---\n{diff}"])
        text = re.sub(r"\x1b\[[\d;]*m", "", text).replace(str(self.shop), "~/shop").replace(str(self.home), "~")
        (Path(folder) / f"{self.name}.txt").write_text(re.sub(r"(127\.0\.0\.1):\d+", r"\1:PORT", text))


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Makes the desk of a client; its programs come first on the PATH, then hunk."""
    with serving_chat(ScriptedChat()) as chat:

        def make(name: str, *programs: Path) -> Desk:
            home, shop = tmp_path / "home", tmp_path / "shop"
            home.mkdir()
            shop.mkdir()
            (shop / "prices.py").write_text(PRICES)
            (shop / "README.md").write_text("A shop.\n")
            path = [*programs, HUNK.parent, tool("node").parent, tool("git").parent, Path("/usr/bin"), Path("/bin")]
            nowhere = "http://127.0.0.1:9"
            environ = {
                "HOME": str(home),
                "PATH": os.pathsep.join(map(str, path)),
                "HTTP_PROXY": nowhere,
                "HTTPS_PROXY": nowhere,
                "NO_PROXY": "127.0.0.1,localhost",
            }
            desk = Desk(name, home, shop, chat, environ)
            subprocess.run(["git", "init", "--quiet"], cwd=shop, env=environ, check=True)
            return desk

        yield make


def install(name: str) -> Path:
    """The node_modules of a client."""
    try:
        return npm_folder(CLIENTS / name) / "node_modules"
    except NotMade as error:
        pytest.fail(f"{name} cannot be had: {error}", pytrace=False)


def check_edited(desk: Desk, printed: str) -> None:
    """The file is right, nothing else has changed, and the model has read both answers of edit_file."""
    assert (desk.shop / "prices.py").read_text() == FIXED, printed
    assert (desk.shop / "README.md").read_text() == "A shop.\n"
    refused, merged = desk.chat.answers[-2:]
    assert "The SEARCH lines stand in 2 places: lines 7-7, 11-11." in refused
    assert "Add lines above or below to SEARCH" in refused
    assert "+    return price * (1 + TAX)" in merged
    assert "written" in merged
    assert DONE in printed


def test_claude_code(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("claude-code", install("claude-code") / ".bin")
    desk.chat.text, desk.chat.calls = DONE, [Call("ToolSearch", {"query": "select:mcp__hunk__edit_file"}), *CALLS]
    desk.write(".mcp.json", read_block("claude-code", "json"))
    desk.environ |= {
        "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_BASE_URL": desk.chat.url,
        "ANTHROPIC_MODEL": "scripted",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    check_edited(desk, desk.run(read_block("claude-code", "sh")))
    assert {path for path, _ in desk.chat.seen} >= {"POST /v1/messages"}


CODEX_MODEL = """\
model = "scripted"
model_provider = "script"
check_for_update_on_startup = false
analytics.enabled = false

[model_providers.script]
name = "script"
base_url = "{url}/v1"
env_key = "SCRIPT_KEY"
wire_api = "responses"

"""


def test_codex(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("codex", install("codex") / ".bin")
    desk.chat.text, desk.chat.calls = DONE, CALLS
    desk.write("~/.codex/config.toml", CODEX_MODEL.format(url=desk.chat.url) + read_block("codex", "toml"))
    desk.environ["SCRIPT_KEY"] = "any"
    check_edited(desk, desk.run(read_block("codex", "sh")))
    assert {path for path, _ in desk.chat.seen} >= {"POST /v1/responses"}


def test_opencode(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("opencode", install("opencode") / "opencode-linux-x64" / "bin")
    desk.chat.text, desk.chat.calls = DONE, CALLS
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{desk.chat.url}/v1", "apiKey": "any"},
        "models": {"scripted": {}},
    }
    configuration = {"model": "script/scripted", "provider": {"script": provider}}
    desk.write("~/.config/opencode/opencode.json", json.dumps(configuration))
    desk.write("opencode.json", read_block("opencode", "json"))
    desk.environ |= {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    check_edited(desk, desk.run(read_block("opencode", "sh")))


def test_cline(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("cline", install("cline") / ".bin")
    desk.chat.text, desk.chat.calls = DONE, CALLS
    provider = {"provider": "openai-compatible", "apiKey": "any", "model": "scripted", "baseUrl": f"{desk.chat.url}/v1"}
    providers = {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {"openai-compatible": {"settings": provider, "updatedAt": "2026-11-27T12:00:00.000Z"}},
    }
    desk.write("~/.cline/data/settings/providers.json", json.dumps(providers))
    desk.write("~/.cline/data/settings/cline_mcp_settings.json", read_block("cline", "json"))
    desk.environ |= {
        "CLINE_NO_AUTO_UPDATE": "1",
        "CLINE_SESSION_BACKEND_MODE": "local",  # else it leaves a process behind
    }
    check_edited(desk, desk.run(read_block("cline", "sh")))


CONTINUE_MODEL = """\
name: shop
version: 0.0.1
schema: v1
models:
  - name: script
    provider: openai
    model: scripted
    apiBase: {url}/v1
    apiKey: any
    roles: [chat]
"""


def test_continue(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("continue", install("continue") / ".bin")
    desk.chat.text, desk.chat.calls = DONE, CALLS
    configuration = CONTINUE_MODEL.format(url=desk.chat.url) + read_block("continue", "yaml")
    desk.write("~/.continue/config.yaml", configuration)
    desk.environ |= {"CONTINUE_CLI_AUTO_UPDATE": "false", "CONTINUE_TELEMETRY_ENABLED": "0"}
    check_edited(desk, desk.run(read_block("continue", "sh")))


APPLY = """\
import { constructLlmApi } from "@continuedev/openai-adapters";
const { provider, url, content, file } = JSON.parse(process.env.SENT);
const api = constructLlmApi({ provider, apiBase: `${url}/v1`, apiKey: "any" });
const prediction = { type: "content", content: file };
const body = { model: "hunk", stream: true, messages: [{ role: "user", content }], prediction };
let text = "";
for await (const chunk of api.chatCompletionStream(body, new AbortController().signal))
  text += chunk.choices[0]?.delta?.content ?? "";
process.stdout.write(text);
process.exit(0);
"""
"""What Continue's editor does with the template of the role `apply`; it takes the text that comes for the file."""


@pytest.mark.parametrize("provider", ["openai", "relace"])
def test_continues_role_apply(make_desk: Callable[..., Desk], provider: str) -> None:
    modules = install("continue")
    desk = make_desk("")
    snippet = "# ... existing code ...\n\nTAX = 0.2\n\n# ... existing code ...\n"
    (template,) = re.findall(r'^      apply: "(.*)"$', read_block("continue", "yaml", 1), re.MULTILINE)
    if provider == "relace":
        template = "{{{ new_code }}}"
    content = (
        template.replace("\\n", "\n").replace("{{{ original_code }}}", PRICES).replace("{{{ new_code }}}", snippet)
    )
    (desk.home / "node_modules").symlink_to(modules)
    desk.write("~/apply.mjs", APPLY)
    with running(desk.shop, "--model", "none") as service:
        sent = {"provider": provider, "url": service.url, "content": content, "file": PRICES}
        desk.environ["SENT"] = json.dumps(sent)
        assert desk.run("node ~/apply.mjs") == PRICES.replace("0.19", "0.2")


def test_aider_with_hunk_as_its_editor_model(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("aider", program("aider", "aider").parent)
    desk.chat.text = f"In prices.py, return the price with its tax in `with_tax`:\n\n```python\n{HEAD}{NEW}```\n"
    known = {"max_input_tokens": 8192, "max_output_tokens": 8192}
    models = {
        "openai/hunk": known | {"litellm_provider": "openai"},
        "anthropic/claude-sonnet-4-5": known | {"litellm_provider": "anthropic"},
    }
    desk.write("~/.aider/caches/model_prices_and_context_window.json", json.dumps(models))
    desk.environ |= {
        "ANTHROPIC_API_BASE": desk.chat.url,
        "ANTHROPIC_API_KEY": "any",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices
    }
    typed = read_block("aider", "sh").rstrip()
    answer = Line((f"{HEAD}{NEW}",), f"prices.py\n```\n{FIXED}```\n")
    with scripted(desk.shop, desk.home / "script.json", answer, arguments=["--context", "8192"]) as service:
        at = typed.replace("http://127.0.0.1:8311", service.url)
        message = f" --message '{TASK}'"
        printed = desk.run(f"{at} {' '.join(QUIET)}{message}", shown=f"{typed}{message}")
    assert "Applied edit to prices.py" in printed
    assert (desk.shop / "prices.py").read_text() == FIXED, printed
    assert [path for path, _ in desk.chat.seen] == ["POST /v1/messages"]

"""A small agent that mends a failing test: run the tests, ask the model, apply what it writes, run them again.

    python examples/agent_loop.py                                          with a model in this process
    python examples/agent_loop.py --url http://127.0.0.1:8311              with that of a running `hunk serve`
    python examples/agent_loop.py --base-url https://HOST/v1 --model NAME  with any endpoint in OpenAI's shape

It works on a copy of the folder, and runs there what the model wrote, with your rights. Ends with 0 when the tests
pass, with 1 when it gave up.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from editor.types import Check
from hunk import Client, LocalClient, Session
from hunk.errors import EditRefused, HunkError, NoConnection
from hunk.types import Usage, sum_usage

SAMPLE = Path(__file__).parent / "sample_repo"
TEST = (sys.executable, "-B", "-m", "unittest", "-q", "--failfast")
TEST_SECONDS = 60

QUESTION = """A test fails:

{output}

{suspect} Write that function again, mended so that the test passes, with its name and parameters.
Answer with this one function in a ```python block and nothing else."""

RAISED = "The function {function} of {path} raised this."
UNKNOWN = "One function of the project is wrong, not the test."

AGAIN = """That was not it. {why}

{question}"""

Ask = Callable[[str, int], tuple[str, Usage]]
"""Answers a question of a turn (from 1)."""


def main() -> int:
    """Copy the folder, begin a session, and loop."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repo", type=Path, default=SAMPLE, help="a folder with unittest tests; it stays as it is")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b", help="of the catalogue, or of the endpoint")
    parser.add_argument("--url", help="a Hunk service here, started with --allow-root for the temporary folder")
    parser.add_argument("--base-url", help="of an endpoint in OpenAI's shape, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="", help="for that endpoint")
    parser.add_argument("--turns", type=int, default=4)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="agent-loop-") as folder:
            root = Path(folder) / "repo"
            shutil.copytree(options.repo, root, ignore=shutil.ignore_patterns("__pycache__"))
            return work_on(root, options)
    except HunkError as fault:
        print(f"agent_loop: {fault}", file=sys.stderr)
        return fault.exit_code


def work_on(root: Path, options: argparse.Namespace) -> int:
    """Mend the folder with whichever model was asked for."""
    if options.url:
        with Client(options.url) as client:
            workspace = client.workspaces.register(str(root))
            try:
                with client.session(workspace=workspace.name) as session:
                    return mend(root, session, own_model(session), options.turns)
            finally:
                client.workspaces.remove(workspace.name)
    model = None if options.base_url else options.model
    with LocalClient(root, model=model) as local, local.session() as session:
        if not options.base_url:
            return mend(root, session, own_model(session), options.turns)
        with Endpoint(options.base_url, options.api_key, options.model, session) as endpoint:
            return mend(root, session, endpoint.ask, options.turns)


def mend(root: Path, session: Session, ask: Ask, num_turns: int) -> int:
    """The loop."""
    failure = failing_test(root)
    session.read(sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py")))
    why, used = "", list[Usage]()
    for turn in range(1, num_turns + 1):
        if not failure:
            break
        print(f"turn {turn}: {failure.splitlines()[0]}")
        question = QUESTION.format(output=failure, suspect=suspect_of(failure))
        answer, usage = ask(AGAIN.format(why=why, question=question) if why else question, turn)
        used.append(usage)
        print(f"  {told(usage)}")
        why = applied(session, root, answer)
        print(f"  {why}")
        failure = failing_test(root)
    print("all tests pass" if not failure else f"gave up after {num_turns} turns")
    print(f"in all: {told(sum_usage(used))}")
    return 1 if failure else 0


def applied(session: Session, root: Path, answer: str) -> str:
    """Put the function in an answer in the place of the old one; what to tell the model if the test still fails."""
    block = re.search(r"```\w*\n(.*?)```", answer, re.DOTALL)
    new = (block[1] if block else answer).strip("\n")
    name = re.search(r"^def (\w+)\(", new, re.MULTILINE)
    found = function_named(root, name[1]) if name else None
    if name is None or found is None:
        return f"The project has no function {name[1]}." if name else "There was no function in the answer."
    path, old = found
    edit = json.dumps({"path": path, "old_string": old, "new_string": new})
    try:
        result = session.apply(edit, path=path, write=True, mode="deterministic")
    except EditRefused as refused:
        return f"The edit does not apply: {refused}"
    print(result.file.diff.rstrip())
    if result.status == "merged":
        return f"{name[1]} in {path} was replaced."
    return f"{name[1]} in {path} stayed as it was: {failed_check(result.file.checks)}."


def function_named(root: Path, name: str) -> tuple[str, str] | None:
    """The file of the project, no test, that defines a function, and the function's text."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body if not path.name.startswith("test_") else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return path.relative_to(root).as_posix(), ast.get_source_segment(text, node) or ""
    return None


def failed_check(checks: Sequence[Check]) -> str:
    """The first check that the edit did not pass."""
    return next((check.detail for check in checks if not check.ok), "the answer was the same function")


def failing_test(root: Path) -> str:
    """What the first failing test prints, "" where all pass."""
    try:
        ran = subprocess.run(TEST, cwd=root, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"The tests did not end within {TEST_SECONDS} s."
    if ran.returncode == 0:
        return ""
    shown = re.search(r"^(?:FAIL|ERROR):.*?(?=^-{70}$\n\nRan|\Z|^Ran )", ran.stderr, re.DOTALL | re.MULTILINE)
    return (shown[0] if shown else ran.stderr).replace(f"{root}/", "").rstrip("-= \n")


def suspect_of(failure: str) -> str:
    """The innermost function of the project, no test, in a traceback."""
    frames = re.findall(r'File "((?!test_)[^"/]+)", line \d+, in (\w+)', failure)
    return RAISED.format(path=frames[-1][0], function=frames[-1][1]) if frames else UNKNOWN


def own_model(session: Session) -> Ask:
    """Ask the model behind the session; from the second turn on it samples, so as not to say the same again."""

    def ask(question: str, turn: int) -> tuple[str, Usage]:
        answer = session.ask(question, max_tokens=400, temperature=0.0 if turn == 1 else 0.7, seed=turn)
        return answer.text, answer.usage

    return ask


def told(usage: Usage) -> str:
    """What was reused, in a line."""
    return (
        f"{usage.prompt} tokens of prompt: {usage.cached} reused exactly, {usage.reused_approximate} approximately, "
        f"{usage.recomputed} computed; {usage.completion} written in {usage.forwards} passes"
    )


@dataclass
class Endpoint:
    """A model behind an endpoint in OpenAI's shape; the files travel with every question."""

    base_url: str
    api_key: str
    model: str
    session: Session
    messages: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> Endpoint:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        self.http = httpx.Client(headers=headers, timeout=httpx.Timeout(10.0, read=None))
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, question: str, turn: int) -> tuple[str, Usage]:
        """The answer to a question, with all files as they are now in front of it."""
        asked = {"role": "user", "content": f"{self.files()}\n{question}"}
        body = {
            "model": self.model,
            "messages": [*self.messages, asked],
            "max_tokens": 400,
            "temperature": 0.0 if turn == 1 else 0.7,
        }
        try:
            response = self.http.post(f"{self.base_url.rstrip('/')}/chat/completions", json=body)
            response.raise_for_status()
            answer = response.json()
            text = str(answer["choices"][0]["message"]["content"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise NoConnection(f"{self.base_url} gave no answer: {error}") from error
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
        return text, usage_of(answer.get("usage") or {})

    def files(self) -> str:
        """All files of the session as text."""
        paths = [file.path for file in self.session.state().files]
        files = self.session.read(paths, with_text=True)
        return "\n".join(f"{file.path}\n```\n{file.text}```\n" for file in files)


def usage_of(usage: dict[str, object]) -> Usage:
    """OpenAI's usage as ours."""
    details = usage.get("prompt_tokens_details") or {}
    cached = int(details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
    prompt, completion = int(str(usage.get("prompt_tokens", 0))), int(str(usage.get("completion_tokens", 0)))
    return Usage(prompt=prompt, cached=cached, recomputed=prompt - cached, completion=completion)


if __name__ == "__main__":
    sys.exit(main())

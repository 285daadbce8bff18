"""Draws docs/images/terminal.svg: the command line at work, `python examples/terminal_picture.py`.

Each command runs for real, from the root of the checkout, by the `hunk` beside this Python.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "terminal.svg"
WIDTH = 88
MAX_LINES = 12
"""Lines shown of what a command prints."""

COMMANDS = (
    "hunk apply examples/rate_limiter.py -e examples/rate_limiter.search_replace.txt",
    "hunk apply examples/shopping_cart.ts -e examples/shopping_cart.lazy.txt --check",
    """echo '{"old_string": "now", "new_string": "then"}' | hunk apply examples/rate_limiter.py -e -""",
)


def run(command: str) -> str:
    """Run a command of the shell on a terminal; return what it prints."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    above, below = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", command], stdout=below, stderr=below, stdin=subprocess.DEVNULL, cwd=ROOT, env=environ
    ):
        os.close(below)
        printed = b""
        try:
            while data := os.read(above, 65536):
                printed += data
        except OSError:  # the command has ended
            pass
    os.close(above)
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    """Run the commands, and write the picture."""
    console = Console(record=True, width=WIDTH, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
    for number, command in enumerate(COMMANDS):
        if number:
            console.print()
        console.print(Text("$ ", style="bold green") + Text(command, style="bold"))
        lines = run(command).rstrip("\n").split("\n")
        for line in lines[:MAX_LINES]:
            console.print(Text.from_ansi(line))
        if len(lines) > MAX_LINES:
            console.print(Text(f"... ({len(lines) - MAX_LINES} more lines)", style="dim"))
    console.save_svg(str(PICTURE), title="hunk")
    print(f"{PICTURE} is drawn")


if __name__ == "__main__":
    main()

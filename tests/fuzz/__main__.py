"""Coverage-guided fuzzing with atheris: `python -m tests.fuzz --seconds 300` (what `make fuzz` runs).

Every target of `targets.py` gets an equal share of the time, in a process of its own, beginning with the saved corpus.
A crash, an input that takes more than 10 seconds, or more than 2 GB ends it with status 1 and the path of the input.
`--keep` puts the smallest of the inputs that led to new code into the saved corpus.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
FINDINGS = Path("build") / "fuzz"
MAX_SAVED_BYTES = 45_000  # a target; all together stay below 200 KB
MAX_SAVED_FILES = 150
_LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=2048", "-len_control=20")


def main() -> None:
    """Run all targets, or with --target one of them inside this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--keep", action="store_true", help="put new inputs into the saved corpus")
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        _fuzz(options.target, options.inside)
        return
    names = [options.target] if options.target else ["parsing", "merging", "round_trips", "codec"]
    failed = [name for name in names if not _run(name, max(1, options.seconds // len(names)), options.keep)]
    if failed:
        sys.exit(f"found something in: {', '.join(failed)}")
    print("nothing found")


def _run(name: str, seconds: int, keep: bool) -> bool:
    FINDINGS.mkdir(parents=True, exist_ok=True)
    saved = CORPUS / name
    saved.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        flags = (work, str(saved), f"-max_total_time={seconds}", "-print_final_stats=1", *_LIMITS)
        command = _command(name, *flags, f"-artifact_prefix={FINDINGS}/{name}-")
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        finding = re.search(r"Test unit written to (\S+)", done.stderr)
        print(
            f"{name:<12} {executed[1] if executed else 'an unknown number of':>8} executions in {seconds} s", flush=True
        )
        if done.returncode:
            said = [line for line in done.stderr.split("\n") if not line.startswith(("#", "INFO", "WARNING"))]
            print("\n".join([done.stdout[-6000:], *said])[:9000])
            print(
                f"  reproduce: {sys.executable} -m tests.fuzz --target {name} --inside {finding[1] if finding else ''}"
            )
        elif keep:
            _keep(saved, Path(work))
    return done.returncode == 0


def _keep(saved: Path, work: Path) -> None:
    """Put the inputs that led to new places beside the saved ones, the smallest first, as far as there is room."""
    kept = {file.name for file in saved.iterdir()}
    size = sum(file.stat().st_size for file in saved.iterdir())
    for file in sorted(work.iterdir(), key=lambda file: (file.stat().st_size, file.name)):
        size += file.stat().st_size
        if size > MAX_SAVED_BYTES or len(kept) >= MAX_SAVED_FILES:
            break
        kept.add(file.name)
        shutil.copy(file, saved / file.name)


def _command(name: str, *flags: str) -> list[str]:
    return [sys.executable, "-m", "tests.fuzz", "--target", name, "--inside", *flags]


def _fuzz(name: str, flags: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["editor"]):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *flags], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()

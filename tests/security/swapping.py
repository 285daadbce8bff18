"""A program that swaps a name between its old target and a link out of the root, in a tight loop, until it is killed.

swapping.py NAME INSTEAD    NAME and INSTEAD (a link beside it) exchange their places, again and again
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(name: str, instead: str) -> None:
    """Three renames a turn: for moments there is nothing at NAME, as with any program that does this."""
    here, there, aside = Path(name), Path(instead), Path(f"{name}.aside")
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while True:
        here.rename(aside)
        there.rename(here)
        here.rename(there)
        aside.rename(here)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Loads the programs of examples/, whose folders are no packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load_program(name: str) -> ModuleType:
    """Return the module of `python examples/NAME`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / name / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

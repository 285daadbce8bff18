"""What was computed for one owner is found by that owner only."""

from __future__ import annotations

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError, ModelUnavailable
from agent_runtime.types import ApplyRequest, PatchRequest
from editor.execution import cache_results, clear_caches, stop_when, use_cache_of

PYTHON = "".join(f"def f{n}(x):\n    y = x + {n}\n    return y\n\n\n" for n in range(60))
EDIT = "# ... existing code ...\ndef g2(x):\n    y = x - 2\n# ... existing code ...\n"
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@ def f2(x):\n-    y = x + 2\n+    y = x - 2\n*** End Patch\n"


def no_model() -> None:
    raise ModelUnavailable("there is none")


def num_looks(kind: str, salt: str) -> int:
    """How much work an edit is: how often it looks whether it is still waited for."""
    applier = Applier(no_model)  # type: ignore[arg-type]
    options = {"mode": "deterministic", "salt": salt}
    request = ApplyRequest(PYTHON.encode(), EDIT, "a.py", **options)  # type: ignore[arg-type]
    patch = PatchRequest(PATCH, **options)  # type: ignore[arg-type]
    count = 0

    def verdict() -> None:
        nonlocal count
        count += 1

    with stop_when(verdict):
        try:
            if kind == "apply":
                applier.apply(request)
            elif kind == "apply_each":
                applier.apply_each([request])
            else:
                applier.apply_patch(patch, {"a.py": PYTHON.encode()}.get)
        except HunkError:
            pass
    return count


@pytest.mark.parametrize("kind", ["apply", "apply_each", "apply_patch"])
def test_what_one_tenant_sent_makes_nothing_faster_for_another(kind: str) -> None:
    clear_caches()
    first, again, of_another = num_looks(kind, "ann"), num_looks(kind, "ann"), num_looks(kind, "bob")
    assert again < first
    assert of_another == first


def test_a_result_is_found_by_its_owner_until_it_is_forgotten() -> None:
    calls = []
    double = cache_results(2)(lambda number: calls.append(number) or 2 * number)
    for owner in ("ann", "ann", "bob", "ann"):
        with use_cache_of(owner):
            assert double(4) == 8
    assert calls == [4, 4]
    clear_caches()
    with use_cache_of("ann"):
        assert double(4) == 8
    assert calls == [4, 4, 4]

"""The map by path: as a dict, whatever is put in and taken out, and its copies share what did not change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repo_cache.snapshot import NUM_BUCKETS, PathMap

paths = st.sampled_from([f"{folder}/{name}.py" for folder in ("a", "b/c", "d") for name in range(40)])
changes = st.lists(st.tuples(st.dictionaries(paths, st.integers()), st.frozensets(paths)), max_size=6)


@given(changes)
def test_it_is_a_dict_and_the_older_ones_stay_as_they_were(
    changes: list[tuple[dict[str, int], frozenset[str]]],
) -> None:
    expected: list[dict[str, int]] = [{}]
    made: list[PathMap[int]] = [PathMap()]
    for entries, removed in changes:
        kept = {path: value for path, value in expected[-1].items() if path not in removed}
        expected.append(kept | entries)
        made.append(made[-1].copy_with(entries, removed))
    for one, plain in zip(made, expected, strict=True):
        assert one == plain
        assert list(one) == sorted(plain)
        assert len(one) == len(plain)
        assert all(path in one and one[path] == plain[path] for path in plain)


@given(changes, changes)
def test_the_different_paths_are_those_of_a_whole_comparison(
    first: list[tuple[dict[str, int], frozenset[str]]], second: list[tuple[dict[str, int], frozenset[str]]]
) -> None:
    old: PathMap[int] = PathMap()
    for entries, removed in first:
        old = old.copy_with(entries, removed)
    new = old
    for entries, removed in second:
        new = new.copy_with(entries, removed)
    differ = [path for path in sorted({*old, *new}) if old.get(path) is not new.get(path)]
    assert new.find_different_paths(old) == old.find_different_paths(new) == differ


def test_a_copy_shares_the_buckets_that_did_not_change() -> None:
    old = PathMap({f"{number}.py": number for number in range(10_000)})
    new = old.copy_with({"7.py": -1}, frozenset({"8.py"}))
    changed = sum(mine is not yours for mine, yours in zip(new._buckets, old._buckets, strict=True))
    assert 1 <= changed <= 2 < NUM_BUCKETS
    assert new.copy_with({"7.py": new["7.py"]}, frozenset({"no.py"}))._buckets == new._buckets

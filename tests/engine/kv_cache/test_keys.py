"""Equal keys mean equal prefixes under equal roots."""

from __future__ import annotations

from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache.prefix_cache import page_key, root_key

SHORT = st.text(st.sampled_from("\0\1a\ud800"), max_size=3)
FIELDS = st.tuples(SHORT.map(lambda text: text.encode("utf-8", "surrogatepass")), SHORT, st.none() | SHORT)


@given(st.lists(FIELDS, unique=True, min_size=2, max_size=20))
def test_roots_are_equal_for_equal_fields_only(fields: list[tuple[bytes, str, str | None]]) -> None:
    roots = [root_key(*each) for each in fields]
    assert len(set(roots)) == len(fields)
    assert not any(a.startswith(b) for a in roots for b in roots if a != b)
    assert roots == [root_key(*each) for each in fields]


def test_a_page_key_hashes_its_parent_and_its_ids_as_little_endian_uint32() -> None:
    expected = blake2b(b"parent" + bytes([1, 0, 0, 0, 0, 2, 0, 0]), digest_size=16).digest()
    assert page_key(b"parent", [1, 512]) == expected

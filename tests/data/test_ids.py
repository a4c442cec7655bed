"""The join of many ids by their digests equals a join by Python sets."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.data.id_keys import ID_DIGEST, id_digests, id_keys, shared_rows

HELD = st.lists(st.integers(0, 40), min_size=1, unique=True)


@given(st.tuples(HELD, HELD, HELD), st.sampled_from([0, 1, 2]))
def test_shared_rows(id_lists: tuple[list[int], ...], lead: int) -> None:
    names = ("bank", "shop", "telco")
    ids_of = dict(zip(names, id_lists, strict=True))
    kinds = {"bank": int, "shop": str, "telco": float}
    keys = {name: id_keys(name, [map(kinds[name], ids[:3]), map(kinds[name], ids[3:])]) for name, ids in ids_of.items()}
    rows, lacking = shared_rows(keys, names[lead])
    shared = [row_id for row_id in ids_of[names[lead]] if all(row_id in ids for ids in id_lists)]
    for name, ids in ids_of.items():
        assert [ids[row] for row in rows[name]] == shared
        others = dict.fromkeys(row_id for ids in id_lists for row_id in ids)
        assert sorted(ids_of[who][row] for who, row in lacking[name]) == sorted(set(others) - set(ids))
        for who, row in lacking[name]:
            assert not any(ids_of[who][row] in ids_of[before] for before in names[: names.index(who)])


@pytest.mark.slow
def test_digests_take_little_more_memory_than_their_bytes() -> None:
    """Whether the ids come in one piece or in several."""
    count, digests = 200_000, list[bytes]()
    for pieces in ([range(count)], [range(count // 2), range(count // 2, count)]):
        tracemalloc.start()
        digests.append(id_digests("bank", pieces).tobytes())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * ID_DIGEST * count + 8_000_000
    assert digests[0] == digests[1]

"""The join of many ids by digests, against one by sets."""

from hypothesis import given
from hypothesis import strategies as st

from securevfl.data.id_keys import id_keys, shared_rows

HELD = st.lists(st.integers(0, 40), min_size=1, unique=True)


@given(st.tuples(HELD, HELD, HELD), st.sampled_from([0, 1, 2]))
def test_shared_rows(held: tuple[list[int], ...], lead: int) -> None:
    names = ("bank", "shop", "telco")
    own = dict(zip(names, held, strict=True))
    kinds = {"bank": int, "shop": str, "telco": float}
    keys = {name: id_keys(name, [map(kinds[name], ids[:3]), map(kinds[name], ids[3:])]) for name, ids in own.items()}
    rows, lacking = shared_rows(keys, names[lead])
    shared = [each for each in own[names[lead]] if all(each in ids for ids in held)]
    for name, ids in own.items():
        assert [ids[row] for row in rows[name]] == shared
        others = dict.fromkeys(each for ids in held for each in ids)
        assert sorted(own[who][row] for who, row in lacking[name]) == sorted(set(others) - set(ids))
        for who, row in lacking[name]:
            assert not any(own[who][row] in own[before] for before in names[: names.index(who)])

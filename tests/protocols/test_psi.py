"""Private alignment against plain sets, its checks, and resuming after an interruption."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from builders import raises_code
from hypothesis import given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.crypto.transfers import okvs, vole_pieces
from securevfl.data.party import check_parties
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import IdError, PartiesError
from securevfl.organisations.align import align_privately
from securevfl.protocols.alignment import psi, psi_many, psi_points, psi_transfers, psi_work
from securevfl.protocols.alignment.journal_folder import FolderJournal
from securevfl.runtime.abort import Abort
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosurePermit
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads

Twist = Callable[[Message], Message]
NAMES = ["bank", "shop", "telco", "clinic"]


class Stop(Exception):
    """The error of a party that is interrupted."""


def ledger_of(journals: Path, party: str) -> DisclosureLedger:
    """Return the ledger of a party whose journals are in this folder."""
    return DisclosureLedger(journals.with_name(f"{journals.name}.ledgers") / party, party)


def journal_of(journals: Path, party: str) -> FolderJournal:
    """Return the journal of a party in this folder."""
    return FolderJournal(journals / party, ledger_of(journals, party).database)


def play(
    sets: Sequence[Sequence[object]],
    *,
    twist: dict[str, Twist] | None = None,
    observe: Callable[[Event], None] | None = None,
    journals: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    transfers: bool = False,
    granted: int | None = None,
) -> list[list[int]]:
    """Align ids and return the rows of each party.

    Args:
        sets: ids of each party.
        twist: changes the messages of a party.
        transfers: True for the protocol of large sets.
        granted: number of ids that the first party may query, as in `align_privately`.
    """
    names = NAMES[: len(sets)]

    def role(channel: Channel, *, ids: Sequence[object]) -> np.ndarray:
        change = (twist or {}).get(channel.me)
        if change is not None:
            send = channel.send

            def twisted(
                to: str, message: Message, subchannel: str = "", permit: DisclosurePermit | None = None
            ) -> None:
                send(to, message if isinstance(message, Abort) else change(message), subchannel, permit=permit)

            channel.send = twisted  # type: ignore[method-assign]
        journal = None if journals is None else journal_of(journals, channel.me)
        rows = align_privately(
            channel.me,
            ids,
            channel,
            active=names[0],
            passives=names[1:],
            on_progress=on_progress if channel.me == names[0] else None,
            ledger=None if journals is None else ledger_of(journals, channel.me),
            journal=journal,
            granted=granted,
        )
        if journal is not None:
            journal.clear()
        return rows

    roles = {name: partial(role, ids=ids) for name, ids in zip(names, sets, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psi_work, "MIN_ROWS_FOR_TRANSFERS", 1 if transfers else 1 << 40)
        return [rows.tolist() for rows in run_threads(roles, WallClock, timeout=20, observe=observe).values()]


flows = pytest.mark.parametrize("transfers", [False, True], ids=["points", "transfers"])


def cut_small(patch: pytest.MonkeyPatch, size: int) -> None:
    for module in (psi_work, psi_many, psi_points, psi_transfers):
        patch.setattr(module, "ITEMS_PER_MESSAGE", size)
    patch.setattr(vole_pieces, "MAX_PIECE_OUTCOMES", 10 * size)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, 8)


SPELLINGS: list[Callable[[int], object]] = [int, str, float, lambda n: f" {n} ", lambda n: str(n).encode(), np.int64]


@st.composite
def id_sets(draw: st.DrawFn) -> list[list[int]]:
    parties = draw(st.integers(2, 4))
    span = draw(st.integers(1, 260))
    numbers = st.integers(0, span)
    size = min(200, span)
    return [draw(st.lists(numbers, unique=True, min_size=1, max_size=size)) for _ in range(parties)]


@pytest.mark.long
@settings(max_examples=20)
@given(id_sets(), st.randoms(use_true_random=False), st.sampled_from([False, False, True]))
def test_every_party_gets_the_rows_of_the_plain_intersection(
    sets: list[list[int]], random: object, transfers: bool
) -> None:
    spelled = [[random.choice(SPELLINGS)(n) for n in ids] for ids in sets]  # type: ignore[attr-defined]
    common = set(sets[0]).intersection(*sets[1:])
    if not common:
        with raises_code(IdError, "SVFL-ID-NO-MATCH"):
            play(spelled, transfers=transfers)
        return
    rows = play(spelled, transfers=transfers)
    aligned = [[ids[row] for row in indices] for ids, indices in zip(sets, rows, strict=True)]
    assert sorted(aligned[0]) == sorted(common)
    assert all(ids == aligned[0] for ids in aligned)


@flows
@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("size", [1, 8, 9, 33])
def test_lists_of_several_messages(parties: int, size: int, transfers: bool, small_chunks: None) -> None:
    sets = [[*range(size), *range(1000 * k, 1000 * k + 3 * k)] for k in range(1, parties + 1)]
    rows = play([ids[::-1] for ids in sets], transfers=transfers)
    common = [[ids[::-1][row] for row in indices] for ids, indices in zip(sets, rows, strict=True)]
    assert sorted(common[0]) == list(range(size))
    assert all(ids == common[0] for ids in common)


@flows
@pytest.mark.parametrize("parties", [2, 3])
def test_the_same_ids_everywhere(parties: int, transfers: bool) -> None:
    rows = play([list(range(50)), *[list(range(49, -1, -1))] * (parties - 1)], transfers=transfers)
    assert sorted(rows[0]) == list(range(50))
    assert rows[1] == [49 - row for row in rows[0]]


def aligned_here(
    parties: Sequence[vfl.Party],
    *,
    executor: ThreadPoolExecutor | None = None,
    observe: Callable[[Event], None] | None = None,
) -> list[vfl.Party]:
    """Return each party with the common rows in the common order."""
    lead, *others = (party.name for party in parties)

    def role(party: vfl.Party) -> Callable[[Channel], np.ndarray]:
        return lambda channel: align_privately(
            party.name, party.ids, channel, active=lead, passives=others, ledger=None, executor=executor
        )

    rows = run_threads({party.name: role(party) for party in parties}, WallClock, observe=observe)
    return [party.take(rows[party.name]) for party in parties]


def flow_of(ids: Sequence[int]) -> set[str]:
    """Return the messages of an alignment of these ids with fewer ids."""
    events: list[Event] = []
    parties = parties_with_ids([ids, range(20)])
    aligned_here(parties, observe=events.append)
    return {type(event.message).__name__ for event in events}


def test_large_sets_go_by_transfers() -> None:
    assert "Points" in flow_of(range(psi_work.MIN_ROWS_FOR_TRANSFERS - 1))
    assert "MaskedStore" in flow_of(range(psi_work.MIN_ROWS_FOR_TRANSFERS))


@flows
@pytest.mark.parametrize("parties", [2, 3])
def test_large_sets_against_small(parties: int, transfers: bool) -> None:
    rows = play([[5000], *[list(range(k, 6000)) for k in range(1, parties)]], transfers=transfers)
    assert rows == [[0], *[[5000 - k] for k in range(1, parties)]]


def test_ids_of_other_types() -> None:
    people = [UUID(int=n) for n in range(20)]
    rows = play([people, [str(person) for person in people[10:]]])
    assert [people[row] for row in rows[0]] == [people[10:][row] for row in rows[1]]
    assert len(rows[0]) == 10


@pytest.mark.parametrize("parties", [2, 3])
def test_rows_that_are_no_ids_are_named(parties: int) -> None:
    others = [[1, 2]] * (parties - 1)
    with raises_code(IdError, "SVFL-ID-DUPLICATE"):
        play([[91234, 2, "91234"], *others])
    with raises_code(IdError, "SVFL-ID-MISSING"):
        play([[1, None], *others])
    with raises_code(IdError, "SVFL-TABLE-EMPTY"):
        play([[], *others])


def test_roles_that_do_not_fit() -> None:
    def role(channel: Channel) -> np.ndarray:
        return align_privately("shop", [1], channel, active="bank", passives=["telco"], ledger=None)

    with raises_code(PartiesError, "SVFL-PARTIES-NAME"):
        run_threads({"shop": role, "bank": role}, WallClock)


def test_an_executor_changes_nothing() -> None:
    parties = parties_with_ids([list(range(40)), list(range(20, 60)), list(range(10, 50))])
    with ThreadPoolExecutor(2) as pool:
        aligned = aligned_here(parties, executor=pool)
    assert sorted(aligned[0].ids) == list(range(20, 40))


def parties_with_ids(sets: Sequence[Sequence[object]]) -> list[vfl.Party]:
    return [
        vfl.Party(
            name,
            np.arange(2.0 * len(ids)).reshape(-1, 2),
            y=np.arange(len(ids)) % 2 if name == "bank" else None,
            ids=list(ids),
        )
        for name, ids in zip(NAMES, sets, strict=False)
    ]


@pytest.mark.parametrize("parties", [2, 3])
def test_tables_in_one_process_agree_with_the_plain_join(parties: int) -> None:
    rng = np.random.default_rng(1)
    before = parties_with_ids([rng.permutation(300)[:150].astype(kind) for kind in (int, float, str)[:parties]])
    aligned = aligned_here(before)
    plain = vfl.align(before)
    check_parties(aligned)
    position = {int(float(key)): row for row, key in enumerate(aligned[0].ids)}
    order = [position[int(float(key))] for key in plain[0].ids]
    for one, other in zip(aligned, plain, strict=True):
        np.testing.assert_array_equal(one.X[order], other.X)


def test_the_plain_join_accepts_other_spellings_of_ids() -> None:
    bank, shop = parties_with_ids([[1, 2, 3, 10], [" 3", "2", "caf\u00e9 "]])
    aligned = vfl.align([bank, shop])
    (one, other), missing = aligned, aligned.missing
    assert one.ids.tolist() == [2, 3]
    assert other.ids.tolist() == ["2", " 3"]
    assert missing == {"bank": ["caf\u00e9 "], "shop": ["1", "10"]}
    check_parties([one, other])
    with raises_code(IdError, "SVFL-ID-ORDER"):
        check_parties([one, other.take(np.array([1, 0]))])


@flows
@pytest.mark.parametrize("parties", [2, 3, 4])
def test_every_message_is_declared(parties: int, transfers: bool) -> None:
    events: list[Event] = []
    play([list(range(30))] * parties, observe=events.append, transfers=transfers)
    role = dict.fromkeys(NAMES, "passive") | {"bank": "active"}
    seen = {(type(e.message), role[e.me], role[e.peer]) for e in events if e.direction == "send"}
    declared = {
        (item.message, item.sender, item.receiver) for item in psi.declares(NAMES[1:parties], transfers=transfers)
    }
    assert seen == declared


@pytest.mark.parametrize(
    ("parties", "transfers", "products"),
    [
        (2, False, 30 + 30),
        (3, False, 30 + 2 * 30),
        (2, True, 30 + okvs.table_rows(30)),
        (3, True, 2 * (30 + okvs.table_rows(30))),
    ],
)
def test_progress_is_shown(parties: int, transfers: bool, products: int) -> None:
    seen: list[tuple[int, int]] = []
    sets = [list(range(30)), *[list(range(40))] * (parties - 1)]
    play(sets, on_progress=lambda *at: seen.append(at), transfers=transfers)
    assert seen == sorted(seen)
    assert seen[-1] == (products, products)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True, max_size=16), st.integers(0, 16))
def test_blocks_rise_and_meet_whatever_words_they_share(blocks: list[tuple[int, int]], cut: int) -> None:
    table = np.array(blocks, np.uint64).reshape(-1, 2)
    assert table[psi_work.ascending_order(table)].tolist() == [list(block) for block in sorted(blocks)]
    blocks, others = (
        table,
        np.concatenate([table[cut:][::-1], np.full((3, 2), 9, np.uint64) + np.arange(3)[:, None].astype(np.uint64)]),
    )
    assert psi_work.intersect(blocks, others).tolist() == list(range(cut, len(blocks)))

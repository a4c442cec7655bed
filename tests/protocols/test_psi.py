"""Private alignment against plain sets, what it refuses, and going on after a break."""

import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.crypto.transfers import okvs, ot_extension
from securevfl.data.party import check_parties
from securevfl.data.row_order import read_rows, rows_path, write_rows
from securevfl.errors import CryptoError, DataError, IdError, PartiesError, ProtocolError, TransportError
from securevfl.organisations.align import FolderJournal, align_privately, simulate_alignment
from securevfl.protocols.alignment import psi, psi_many, psi_points, psi_transfers, psi_work
from securevfl.protocols.alignment.psi_many import Common, Slots, Store, Tags
from securevfl.protocols.alignment.psi_transfers import Choices, Corrections, Offer, Question
from securevfl.protocols.alignment.psi_work import AlignmentHello, Begin, Points, TwiceBlinded
from securevfl.runtime.channel import Abort, Channel, Event
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.door import Leave
from securevfl.runtime.threads import run_threads

Twist = Callable[[Message], Message]
NAMES = ["bank", "shop", "telco", "clinic"]


class Stop(Exception):
    """A party that is cut off in mid-sentence."""


def play(
    sets: Sequence[Sequence[object]],
    *,
    twist: dict[str, Twist] | None = None,
    observe: Callable[[Event], None] | None = None,
    journals: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    transfers: bool = False,
) -> list[list[int]]:
    """Each party's rows; `twist` changes what a party sends. transfers: the flow of large sets."""
    names = NAMES[: len(sets)]

    def role(channel: Channel, *, ids: Sequence[object]) -> np.ndarray:
        change = (twist or {}).get(channel.me)
        if change is not None:
            send = channel.send

            def twisted(to: str, message: Message, lane: str = "", told: Leave | None = None) -> None:
                send(to, message if isinstance(message, Abort) else change(message), lane, told=told)

            channel.send = twisted  # type: ignore[method-assign]
        return align_privately(
            channel.me,
            ids,
            channel,
            active=names[0],
            passives=names[1:],
            on_progress=on_progress if channel.me == names[0] else None,
            journal=None if journals is None else journals / channel.me,
        )

    roles = {name: partial(role, ids=ids) for name, ids in zip(names, sets, strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psi, "MANY", 1 if transfers else 1 << 40)
        return [rows.tolist() for rows in run_threads(roles, WallClock, timeout=20, observe=observe).values()]


flows = pytest.mark.parametrize("transfers", [False, True], ids=["points", "transfers"])


def cut_small(patch: pytest.MonkeyPatch, size: int) -> None:
    for module in (psi_work, psi_many, psi_points):
        patch.setattr(module, "CHUNK", size)
    for module in (psi_transfers, ot_extension):
        patch.setattr(module, "BLOCK", 4 * size)


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
@settings(max_examples=40)
@given(id_sets(), st.randoms(use_true_random=False), st.sampled_from([False, False, True]))
def test_every_party_gets_the_rows_of_the_plain_intersection(
    sets: list[list[int]], random: object, transfers: bool
) -> None:
    spelled = [[random.choice(SPELLINGS)(n) for n in own] for own in sets]  # type: ignore[attr-defined]
    common = set(sets[0]).intersection(*sets[1:])
    if not common:
        with pytest.raises(IdError, match="there is none"):
            play(spelled, transfers=transfers)
        return
    rows = play(spelled, transfers=transfers)
    found = [[own[row] for row in taken] for own, taken in zip(sets, rows, strict=True)]
    assert sorted(found[0]) == sorted(common)
    assert all(ids == found[0] for ids in found)


@flows
@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("size", [1, 8, 9, 33])
def test_lists_of_several_messages(parties: int, size: int, transfers: bool, small_chunks: None) -> None:
    sets = [[*range(size), *range(1000 * k, 1000 * k + 3 * k)] for k in range(1, parties + 1)]
    rows = play([own[::-1] for own in sets], transfers=transfers)
    found = [[own[::-1][row] for row in taken] for own, taken in zip(sets, rows, strict=True)]
    assert sorted(found[0]) == list(range(size))
    assert all(ids == found[0] for ids in found)


@flows
@pytest.mark.parametrize("parties", [2, 3])
def test_the_same_ids_everywhere(parties: int, transfers: bool) -> None:
    rows = play([list(range(50)), *[list(range(49, -1, -1))] * (parties - 1)], transfers=transfers)
    assert sorted(rows[0]) == list(range(50))
    assert rows[1] == [49 - row for row in rows[0]]


def flow_of(ids: Sequence[int]) -> set[str]:
    """The messages of an alignment of these ids with fewer."""
    events: list[Event] = []
    parties = tables([ids, range(20)])
    simulate_alignment(parties, observe=events.append)
    return {type(event.message).__name__ for event in events}


def test_large_sets_go_by_transfers() -> None:
    assert "Points" in flow_of(range(psi.MANY - 1))
    assert "Corrections" in flow_of(range(psi.MANY))


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
    with pytest.raises(IdError, match="bank: rows 0 and 2 have the same id"):
        play([[91234, 2, "91234"], *others])
    with pytest.raises(IdError, match="bank: row 1"):
        play([[1, None], *others])
    with pytest.raises(IdError, match="bank: at least one row"):
        play([[], *others])


def test_roles_that_do_not_fit() -> None:
    def role(channel: Channel) -> np.ndarray:
        return align_privately("shop", [1], channel, active="bank", passives=["telco"])

    with pytest.raises(PartiesError, match="line of shop"):
        run_threads({"shop": role, "bank": role}, WallClock)


def test_an_executor_changes_nothing() -> None:
    parties = tables([list(range(40)), list(range(20, 60)), list(range(10, 50))])
    with ThreadPoolExecutor(2) as pool:
        aligned = simulate_alignment(parties, executor=pool)
    assert sorted(aligned[0].ids) == list(range(20, 40))


def tables(sets: Sequence[Sequence[object]]) -> list[vfl.Party]:
    return [
        vfl.Party(
            name,
            np.arange(2.0 * len(own)).reshape(-1, 2),
            y=np.arange(len(own)) % 2 if name == "bank" else None,
            ids=list(own),
        )
        for name, own in zip(NAMES, sets, strict=False)
    ]


@pytest.mark.parametrize("parties", [2, 3])
def test_tables_in_one_process_agree_with_the_plain_join(parties: int) -> None:
    rng = np.random.default_rng(1)
    before = tables([rng.permutation(300)[:150].astype(kind) for kind in (int, float, str)[:parties]])
    aligned = simulate_alignment(before)
    plain, _ = vfl.align(before)
    check_parties(aligned)
    position = {int(float(key)): row for row, key in enumerate(aligned[0].ids)}
    order = [position[int(float(key))] for key in plain[0].ids]
    for one, other in zip(aligned, plain, strict=True):
        np.testing.assert_array_equal(one.X[order], other.X)


def test_the_plain_join_meets_other_spellings_and_shows_ids_as_written() -> None:
    bank, shop = tables([[1, 2, 3, 10], [" 3", "2", "caf\u00e9 "]])
    (one, other), missing = vfl.align([bank, shop])
    assert one.ids.tolist() == [2, 3]
    assert other.ids.tolist() == ["2", " 3"]
    assert missing == {"bank": ["caf\u00e9 "], "shop": ["1", "10"]}
    check_parties([one, other])
    with pytest.raises(IdError, match="shop differs"):
        check_parties([one, other.take(np.array([1, 0]))])


def test_tables_that_cannot_be_aligned() -> None:
    bank, shop = tables([[1, 2], [2, 3]])
    with pytest.raises(PartiesError, match="two or more"):
        simulate_alignment([bank])
    shop.ids = None
    with pytest.raises(IdError, match="shop: ids were expected"):
        simulate_alignment([bank, shop])


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
        (2, False, 30 + 40),
        (3, False, 30 + 2 * 30),
        (2, True, 30 + okvs.slots(30)),
        (3, True, 2 * (30 + okvs.slots(30))),
    ],
)
def test_progress_is_shown(parties: int, transfers: bool, products: int) -> None:
    seen: list[tuple[int, int]] = []
    sets = [list(range(30)), *[list(range(40))] * (parties - 1)]
    play(sets, on_progress=lambda *at: seen.append(at), transfers=transfers)
    assert seen == sorted(seen)
    assert seen[-1] == (products, products)


def once(kind: type[Message], change: Callable[[Message], Message]) -> Twist:
    return lambda message: change(message) if isinstance(message, kind) else message


def points_with(tail: bytes, kind: type[Message] = Points) -> Twist:
    return once(kind, lambda m: kind(m.points[: -len(tail)] + tail))  # type: ignore[attr-defined, call-arg]


NO_POINT = b"\xff" * 32
TAMPERED = [
    (2, "bank", points_with(NO_POINT)),
    (2, "shop", points_with(NO_POINT)),
    (3, "bank", points_with(NO_POINT)),
    (3, "shop", points_with(NO_POINT, TwiceBlinded)),
    (3, "shop", points_with(bytes(32), TwiceBlinded)),
    (3, "telco", once(psi_work.PairKey, lambda m: psi_work.PairKey(bytes(32)))),
    (3, "telco", once(psi_work.PairKey, lambda m: psi_work.PairKey(b"short"))),
]


@pytest.mark.parametrize(("parties", "cheat", "twist"), TAMPERED)
def test_points_that_are_none_are_refused(parties: int, cheat: str, twist: Twist) -> None:
    with pytest.raises(CryptoError):
        play([list(range(20))] * parties, twist={cheat: twist})


@pytest.mark.parametrize(
    ("cheat", "twist"),
    [
        ("bank", once(Offer, lambda m: Offer(bytes(32)))),
        ("bank", once(Offer, lambda m: Offer(m.public[:-1]))),
        ("shop", points_with(NO_POINT, Choices)),
        ("shop", points_with(b"\x01" + bytes(31), Choices)),
    ],
)
def test_base_transfers_without_points_are_refused(cheat: str, twist: Twist) -> None:
    with pytest.raises(CryptoError, match="base transfers"):
        play([list(range(20))] * 2, twist={cheat: twist}, transfers=True)


def shorter(kind: type[Message]) -> Twist:
    return once(kind, lambda m: kind(next(iter(msgspec.structs.astuple(m)))[:-1]))


def other(kind: type[Message], **changes: object) -> Twist:
    return once(kind, lambda m: msgspec.structs.replace(m, **changes))


BROKEN = [
    *[(2, cheat, shorter(Points)) for cheat in ("bank", "shop")],
    *[(2, cheat, once(Points, lambda m: Points(m.points + b"\xff" * 32))) for cheat in ("bank", "shop")],
    *[(2, cheat, once(Points, lambda m: Points(m.points[::-1]))) for cheat in ("bank", "shop")],
    (2, "shop", once(TwiceBlinded, lambda m: TwiceBlinded(m.points[:-32]))),
    (2, "shop", once(TwiceBlinded, lambda m: TwiceBlinded(m.points[:32] * 20))),
    (2, "bank", shorter(psi.Matches)),
    (2, "bank", once(psi.Matches, lambda m: psi.Matches(m.bits + b"\x00"))),
    (2, "shop", other(AlignmentHello, rows=0)),
    (2, "shop", other(AlignmentHello, rows=-5)),
    (2, "bank", other(Begin, rows=0)),
    (2, "bank", other(Begin, nonce=b"")),
    (2, "bank", other(Begin, resumes=True)),
    (2, "bank", other(Begin, first=2)),
    (2, "bank", other(Begin, second=-1)),
    (3, "bank", other(Begin, first=2)),
    (3, "bank", other(Begin, second=-1)),
    (3, "shop", shorter(TwiceBlinded)),
    (3, "shop", shorter(Slots)),
    (3, "shop", other(Store, slots=3)),
    (3, "shop", other(Store, seed=b"")),
    (3, "bank", other(Common, rows=21)),
    (3, "bank", other(Common, rows=-1)),
    (3, "bank", shorter(Tags)),
    (3, "bank", once(Tags, lambda m: Tags(m.tags[:-16] + b"\xff" * 16))),
    (3, "bank", once(Tags, lambda m: Tags(m.tags[:16] * 20))),
]


BROKEN_TRANSFERS = [
    ("shop", shorter(Choices)),
    ("bank", shorter(Corrections)),
    ("bank", other(Question, slots=3)),
    ("bank", other(Question, seed=b"")),
    ("bank", other(Begin, second=-1)),
    ("bank", other(Begin, nonce=b"")),
    ("bank", other(Common, rows=21)),
    ("shop", other(AlignmentHello, rows=0)),
    ("shop", other(Store, slots=3)),
    ("shop", shorter(Slots)),
    ("bank", once(Tags, lambda m: Tags(m.tags[:-16] + b"\xff" * 16))),
]


@pytest.mark.parametrize(("cheat", "twist"), BROKEN_TRANSFERS)
def test_what_breaks_the_flow_of_large_sets_is_refused(cheat: str, twist: Twist) -> None:
    with pytest.raises(ProtocolError):
        play([list(range(20))] * 2, twist={cheat: twist}, transfers=True)


@pytest.mark.parametrize(("parties", "cheat", "twist"), BROKEN)
def test_what_breaks_the_protocol_is_refused(parties: int, cheat: str, twist: Twist) -> None:
    with pytest.raises(ProtocolError):
        play([list(range(20))] * parties, twist={cheat: twist})


class Cut:
    """Lets a party send `messages` messages, then cuts it off."""

    def __init__(self, messages: int) -> None:
        self.left = messages

    def __call__(self, message: Message) -> Message:
        if not self.left:
            raise Stop
        self.left -= 1
        return message


@pytest.mark.parametrize(
    ("parties", "transfers"), [(2, False), (3, False), (2, True), pytest.param(3, True, marks=pytest.mark.slow)]
)
def test_going_on_after_a_break_at_any_message(
    parties: int, transfers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch, 16)
    sets = [list(range(k, 20 + k)) for k in range(parties)]
    common = list(range(parties - 1, 20))
    for cut in NAMES[:parties]:
        for messages in range(0, 100, (parties - 1) * (2 if transfers else 1)):
            folder = tmp_path / f"{parties}-{cut}-{messages}"
            try:
                play(sets, journals=folder, twist={cut: Cut(messages)}, transfers=transfers)
                break
            except (Stop, TransportError):
                rows = play(sets, journals=folder, transfers=transfers)
            assert [sorted(own[r] for r in taken) for own, taken in zip(sets, rows, strict=True)] == [common] * parties
            assert not list(folder.iterdir())
        assert messages >= 4


def sent(events: list[Event], kind: type[Message]) -> list[Message]:
    return [event.message for event in events if event.direction == "send" and isinstance(event.message, kind)]


@pytest.mark.parametrize("parties", [2, 3])
def test_what_has_been_done_is_not_done_again(
    parties: int, small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [list(range(k, 40 + k)) for k in range(parties)]
    first: list[Event] = []
    last = psi.Matches if parties == 2 else Common

    def stop(message: Message) -> Message:
        if isinstance(message, last):
            raise Stop
        return message

    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"bank": stop}, observe=first.append)
    for file in tmp_path.glob("*/*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(okvs, "encode", None)
    monkeypatch.setattr(psi_work.Blinder, "blind", None)
    again: list[Event] = []
    play(sets, journals=tmp_path, observe=again.append)
    assert len(sent(first, Points)) == 2 * 5
    assert not sent(again, Points) + sent(again, TwiceBlinded) + sent(again, Slots)
    assert {m.seed for m in sent(again, Store)} == {m.seed for m in sent(first, Store)}  # type: ignore[attr-defined]


def test_transfers_that_were_done_are_not_done_again(
    small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [list(range(k, 40 + k)) for k in range(3)]
    first: list[Event] = []

    def stop(message: Message) -> Message:
        if isinstance(message, Common):
            raise Stop
        return message

    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"bank": stop}, observe=first.append, transfers=True)
    monkeypatch.setattr(okvs, "encode", None)
    monkeypatch.setattr(psi_transfers, "choose", None)
    again: list[Event] = []
    rows = play(sets, journals=tmp_path, observe=again.append, transfers=True)
    assert sorted(sets[0][row] for row in rows[0]) == list(range(2, 40))
    assert len(sent(first, Corrections)) == 2 * -(-okvs.slots(40) // 32)
    assert not sent(again, Corrections) + sent(again, Slots) + sent(again, Offer)
    assert {m.seed for m in sent(again, Question)} == {m.seed for m in sent(first, Question)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("who", ["bank", "shop"])
def test_other_ids_after_a_break_take_fresh_transfers(who: str, small_chunks: None, tmp_path: Path) -> None:
    sets = [list(range(k, 20 + k)) for k in range(2)]
    first: list[Event] = []
    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"shop": Cut(3)}, observe=first.append, transfers=True)
    sets[NAMES.index(who)] = list(range(5, 25))
    again: list[Event] = []
    rows = play(sets, journals=tmp_path, observe=again.append, transfers=True)
    assert [sets[0][row] for row in rows[0]] == [sets[1][row] for row in rows[1]]
    before = {m.rows for m in sent(first, Corrections)}  # type: ignore[attr-defined]
    assert before
    assert not before & {m.rows for m in sent(again, Corrections)}  # type: ignore[attr-defined]
    assert sent(again, Offer)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize("who", ["bank", "shop"])
def test_other_ids_after_a_break_start_afresh(who: str, parties: int, small_chunks: None, tmp_path: Path) -> None:
    sets = [list(range(k, 20 + k)) for k in range(parties)]
    first: list[Event] = []
    with pytest.raises((Stop, TransportError)):
        play(sets, journals=tmp_path, twist={"shop": Cut(3)}, observe=first.append)
    sets[NAMES.index(who)] = list(range(5, 25))
    again: list[Event] = []
    rows = play(sets, journals=tmp_path, observe=again.append)
    assert [sets[0][row] for row in rows[0]] == [sets[1][row] for row in rows[1]]
    before = {m.points for m in sent(first, Points)}  # type: ignore[attr-defined]
    assert before
    assert not before & {m.points for m in sent(again, Points)}  # type: ignore[attr-defined]


def test_a_folder_that_others_may_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(DataError, match="chmod 700"):
        FolderJournal(folder)


def test_a_journal_leaves_other_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    (folder / "notes.txt").write_text("mine")
    journal = FolderJournal(folder)
    journal.append("secrets", b"one")
    journal.append("mine", b"two")
    journal.append("mine", b"three")
    assert FolderJournal(folder).whole("mine") == b"twothree"
    journal.clear()
    assert [file.name for file in folder.iterdir()] == ["notes.txt"]


def test_the_row_order_is_kept_beside_the_data(tmp_path: Path) -> None:
    data = tmp_path / "shop.csv"
    rows = np.array([3, 0, 2])
    assert write_rows(data, rows) == rows_path(data) == tmp_path / "shop.csv.rows.npy"
    np.testing.assert_array_equal(read_rows(data, of=4), rows)
    with pytest.raises(DataError, match="has changed"):
        read_rows(data, of=3)
    write_rows(data, np.array([1, 1]))
    with pytest.raises(DataError, match="different row numbers"):
        read_rows(data, of=3)
    rows_path(data).write_bytes(b"no numpy file")
    with pytest.raises(DataError, match="align again"):
        read_rows(data, of=3)
    with pytest.raises(DataError, match="align first"):
        read_rows(tmp_path / "none.csv", of=3)


def test_kept_secrets_show_nothing() -> None:
    kept = psi_work.Secrets(b"n" * 16, False, b"s" * 32, b"scalar" * 5, {"shop": b"pair key" * 4})
    assert repr(kept) == str(kept) == "<Secrets, secret>"

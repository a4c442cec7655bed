"""Alignments in which a message was altered in transit, and the error with which each ends."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from builders import raises_code

from securevfl.errors import CryptoError, ProtocolError
from securevfl.protocols.alignment import psi_work
from securevfl.protocols.alignment.psi_many import (
    IntersectionSize,
    IntersectionTags,
    PrfValues,
    StoreHeader,
    StoreSlots,
)
from securevfl.protocols.alignment.psi_transfers import (
    BaseOtChoices,
    BaseOtOffer,
    MaskedStore,
    VoleDigests,
    VoleRequest,
    VoleRows,
    VoleSums,
    VoleTrees,
)
from securevfl.protocols.alignment.psi_work import (
    ITEMS_PER_MESSAGE,
    AlignmentHello,
    AlignmentStart,
    Points,
    TwiceBlinded,
    check_ascending,
    check_ascending_blocks,
    check_size,
    chunks,
)
from securevfl.runtime.codec import Message
from tests.protocols.test_psi import Twist, play


def once(kind: type[Message], change: Callable[[Message], Message]) -> Twist:
    return lambda message: change(message) if isinstance(message, kind) else message


def points_with(tail: bytes, kind: type[Message] = Points) -> Twist:
    return once(kind, lambda m: kind(m.points[: -len(tail)] + tail))  # type: ignore[attr-defined, call-arg]


NO_POINT = b"\xff" * 32
TAMPERED = [
    (2, "bank", points_with(NO_POINT)),
    (2, "shop", points_with(NO_POINT, TwiceBlinded)),
    (3, "bank", points_with(NO_POINT)),
    (3, "shop", points_with(NO_POINT, TwiceBlinded)),
    (3, "shop", points_with(bytes(32), TwiceBlinded)),
    (3, "telco", once(psi_work.PairKey, lambda m: psi_work.PairKey(bytes(32)))),
    (3, "telco", once(psi_work.PairKey, lambda m: psi_work.PairKey(b"short"))),
]


@pytest.mark.parametrize(("parties", "cheat", "twist"), TAMPERED)
def test_invalid_points_are_rejected(parties: int, cheat: str, twist: Twist) -> None:
    with pytest.raises(CryptoError):
        play([list(range(20))] * parties, twist={cheat: twist})


@pytest.mark.parametrize(
    ("cheat", "twist"),
    [
        ("bank", once(BaseOtOffer, lambda m: BaseOtOffer(bytes(32)))),
        ("bank", once(BaseOtOffer, lambda m: BaseOtOffer(m.public[:-1]))),
        ("shop", points_with(NO_POINT, BaseOtChoices)),
        ("shop", points_with(b"\x01" + bytes(31), BaseOtChoices)),
    ],
)
def test_base_transfers_without_points_are_refused(cheat: str, twist: Twist) -> None:
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        play([list(range(20))] * 2, twist={cheat: twist}, transfers=True)


def shorter(kind: type[Message]) -> Twist:
    return once(kind, lambda m: kind(next(iter(msgspec.structs.astuple(m)))[:-1]))


def other(kind: type[Message], **changes: object) -> Twist:
    return once(kind, lambda m: msgspec.structs.replace(m, **changes))


def spoilt(kind: type[Message]) -> Twist:
    """Change the first byte."""

    def change(message: Message) -> Message:
        (octets,) = msgspec.structs.astuple(message)
        return kind(bytes([octets[0] ^ 1]) + octets[1:])

    return once(kind, change)


@pytest.mark.parametrize("parties", [2, 3])
@pytest.mark.parametrize(
    ("cheat", "kind"),
    [
        ("bank", VoleRows),
        ("bank", VoleSums),
        ("shop", VoleDigests),
    ],
)
def test_a_cheating_peer_is_detected_and_the_journal_deleted(
    cheat: str, kind: type[Message], parties: int, tmp_path: Path
) -> None:
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        play([list(range(20))] * parties, twist={cheat: spoilt(kind)}, transfers=True, journals=tmp_path)
    caught = tmp_path / ("shop" if kind is VoleRows else "bank")
    assert not caught.exists()


def test_trees_that_were_altered_are_caught() -> None:
    """Change the sum of a tree's leaves, which every receiver reads; the last bytes of the message."""
    last = once(VoleTrees, lambda m: VoleTrees(m.sums[:-1] + bytes([m.sums[-1] ^ 1])))  # type: ignore[attr-defined]
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        play([list(range(20))] * 2, twist={"shop": last}, transfers=True)


BROKEN = [
    (2, "bank", shorter(Points)),
    (2, "bank", once(Points, lambda m: Points(m.points + b"\xff" * 32))),
    (2, "bank", once(Points, lambda m: Points(m.points[::-1]))),
    (2, "shop", once(TwiceBlinded, lambda m: TwiceBlinded(m.points[:-32]))),
    (2, "shop", other(AlignmentHello, rows=0)),
    (2, "shop", other(AlignmentHello, rows=-5)),
    (2, "bank", other(AlignmentStart, rows=0)),
    (2, "bank", other(AlignmentStart, nonce=b"")),
    (2, "bank", other(AlignmentStart, resumes=True)),
    (2, "bank", other(AlignmentStart, first=2)),
    (2, "bank", other(AlignmentStart, second=-1)),
    (3, "bank", other(AlignmentStart, first=2)),
    (3, "bank", other(AlignmentStart, second=-1)),
    (3, "shop", shorter(TwiceBlinded)),
    (3, "shop", shorter(StoreSlots)),
    (3, "shop", other(StoreHeader, slots=3)),
    (3, "shop", other(StoreHeader, seed=b"")),
    (3, "bank", other(IntersectionSize, rows=21)),
    (3, "bank", other(IntersectionSize, rows=-1)),
    (3, "bank", shorter(IntersectionTags)),
    (3, "bank", once(IntersectionTags, lambda m: IntersectionTags(m.tags[:-16] + b"\xff" * 16))),
    (3, "bank", once(IntersectionTags, lambda m: IntersectionTags(m.tags[:16] * 20))),
]


BROKEN_TRANSFERS = [
    ("shop", shorter(BaseOtChoices)),
    ("bank", shorter(VoleSums)),
    ("bank", other(AlignmentStart, first=9)),
    ("bank", shorter(MaskedStore)),
    ("bank", other(VoleRequest, slots=3)),
    ("bank", other(VoleRequest, seed=b"")),
    ("bank", other(AlignmentStart, second=-1)),
    ("bank", other(AlignmentStart, nonce=b"")),
    ("bank", other(IntersectionSize, rows=21)),
    ("shop", other(AlignmentHello, rows=0)),
    ("shop", shorter(PrfValues)),
    ("shop", once(PrfValues, lambda m: PrfValues(m.values[16:] + m.values[:16]))),
    ("shop", once(PrfValues, lambda m: PrfValues(m.values[:16] * 20))),
    ("bank", once(IntersectionTags, lambda m: IntersectionTags(m.tags[:-16] + b"\xff" * 16))),
]


@pytest.mark.parametrize(("cheat", "twist"), BROKEN_TRANSFERS)
def test_invalid_messages_by_transfers_are_rejected(cheat: str, twist: Twist) -> None:
    with pytest.raises(ProtocolError):
        play([list(range(20))] * 2, twist={cheat: twist}, transfers=True)


@pytest.mark.parametrize(("parties", "cheat", "twist"), BROKEN)
def test_invalid_messages_are_rejected(parties: int, cheat: str, twist: Twist) -> None:
    with pytest.raises(ProtocolError):
        play([list(range(20))] * parties, twist={cheat: twist})


def is_refused(check: Callable[[], object]) -> bool:
    try:
        check()
    except ProtocolError:
        return True
    return False


@pytest.mark.parametrize("width", [2, 32])
@pytest.mark.parametrize("encoded", [(0, 1, 256), (1, 255, 257), (254, 255, 256)], ids=str)
def test_items_ascend_within_and_between_messages(width: int, encoded: tuple[int, ...]) -> None:
    """Every list of three items, in one message or two, is refused unless it ascends without repetition."""

    def receive(*messages: Sequence[int]) -> None:
        previous = b""
        for message in messages:
            raw = b"".join(encoded[item].to_bytes(width, "big") for item in message)
            previous = check_ascending("shop", "points", raw, width, previous)

    for items in product(range(len(encoded)), repeat=3):
        expected = items != (0, 1, 2)
        for first in (1, 2):
            assert is_refused(partial(receive, items[:first], items[first:])) == expected
        assert is_refused(partial(receive, items)) == expected


def test_blocks_ascend_by_their_first_word_and_then_their_second() -> None:
    blocks = [(0, 0), (0, 2**64 - 1), (1, 0), (2**63, 1), (2**64 - 1, 2**64 - 1)]
    for first, second in product(blocks, repeat=2):
        refused = is_refused(partial(check_ascending_blocks, "shop", "slots", np.array([first, second], np.uint64)))
        assert refused == (first >= second)
    check_ascending_blocks("shop", "slots", np.array(blocks, np.uint64))


@pytest.mark.parametrize("rows", [1, ITEMS_PER_MESSAGE, ITEMS_PER_MESSAGE + 1, 2 * ITEMS_PER_MESSAGE + 5])
def test_each_chunk_of_a_list_has_exactly_its_size(rows: int) -> None:
    """The sizes of all messages of a list add up to the list; another number of items or bytes is refused."""
    width, sizes = 2, list[int]()
    for number in range(chunks(rows)):
        sizes.append(min(ITEMS_PER_MESSAGE, rows - sum(sizes)))
        for change in (-width, -1, 0, 1, width):
            raw = bytes(sizes[-1] * width + change)
            assert is_refused(partial(check_size, "shop", "points", raw, width, number, rows)) == bool(change)
    assert sum(sizes) == rows

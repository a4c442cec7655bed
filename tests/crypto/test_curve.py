"""Canonical ids, and blinded ids as points of Curve25519, compared with arithmetic in plain integers."""

import hashlib
import pickle
import secrets
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto import curve
from securevfl.crypto.curve import Blinder, check_points, hash_to_group, sort_points
from securevfl.crypto.identifiers import canonical_id, canonical_ids, canonical_ids_in_bulk, id_keys
from securevfl.data.id_keys import id_digests
from securevfl.errors import CryptoError, IdError
from tests.builders import raises_code

FIELD_PRIME = 2**255 - 19


def split(points: bytes) -> list[bytes]:
    return [points[i : i + 32] for i in range(0, len(points), 32)]


def slow_on_curve(x: int) -> bool:
    """Return whether x belongs to a point of the curve, by Euler's criterion for x^3 + 486662 x^2 + x."""
    return pow(x**3 + 486662 * x**2 + x, (FIELD_PRIME - 1) // 2, FIELD_PRIME) == 1


def slow_product(scalar: bytes, point: bytes) -> bytes:
    """Multiply by the ladder of RFC 7748 section 5, with plain integers."""
    k = int.from_bytes(scalar, "little")
    k = k & ~7 & ~(1 << 255) | (1 << 254)
    x1 = int.from_bytes(point, "little")
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in f"{k:0255b}":
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
        s, d = x2 + z2, x2 - z2
        cross, other = (x3 + z3) * d, (x3 - z3) * s
        x3, z3 = (cross + other) ** 2 % FIELD_PRIME, x1 * (cross - other) ** 2 % FIELD_PRIME
        e = s * s - d * d
        x2, z2 = s * s * d * d % FIELD_PRIME, e * (s * s + 121665 * e) % FIELD_PRIME
        if bit == "1":
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, FIELD_PRIME - 2, FIELD_PRIME) % FIELD_PRIME).to_bytes(32, "little")


class Kind(IntEnum):
    SEVEN = 7


SEVENS = [7, Kind.SEVEN, np.int8(7), np.uint64(7), 7.0, np.float16(7), np.float32(7), Decimal("7.00"), Decimal("7")]
SEVENS_AS_TEXT = ["7", " 7 ", "\t7\n", "\u00a07", np.str_("7"), b"7", b" 7", np.bytes_(b"7")]


@pytest.mark.parametrize("value", [*SEVENS, *SEVENS_AS_TEXT])
def test_seven_is_seven(value: object) -> None:
    assert canonical_id(value) == b"7"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (-0.0, 0),
        ("caf\u00e9", "cafe\u0301"),
        ("caf\u00e9", "caf\u00e9".encode()),
        (UUID(int=0xABCDEF), "00000000-0000-0000-0000-000000abcdef"),
        (2.0**53 - 1, 2**53 - 1),
        (np.float32(2**24 - 1), 2**24 - 1),
        (-12, "-12"),
    ],
)
def test_same_id(one: object, other: object) -> None:
    assert canonical_id(one) == canonical_id(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("007", 7),
        ("7.0", 7),
        ("+7", 7),
        ("a", "A"),
        ("a b", "ab"),
        (b"\xff", "\u00ff"),
        (b"\xff7", 7),
        ("\ufb01", "fi"),
    ],
)
def test_different_ids(one: object, other: object) -> None:
    assert canonical_id(one) != canonical_id(other)


MISSING = [None, float("nan"), np.float32("nan"), Decimal("nan"), Decimal("sNaN"), "", "  ", b"", b" "]
INEXACT = [7.5, Decimal("7.5"), float("inf"), -np.inf, Decimal("inf"), 2.0**53 + 2, np.float32(2**24 + 2)]
# 2^k itself may be 2^k + 1, rounded
INEXACT += [
    sign * kind(2.0**bits) for kind, bits in ((float, 53), (np.float32, 24), (np.float16, 11)) for sign in (1, -1)
]
TOO_LONG = [10**100, -(10**100), Decimal("1e5000")]
OTHER_TYPES = [True, np.bool_(True), "\ud800", 1j, (7,), np.datetime64("2020-01-01", "ns"), np.timedelta64(7, "D")]


@pytest.mark.parametrize("value", [*MISSING, *INEXACT, *TOO_LONG, *OTHER_TYPES])
def test_no_id(value: object) -> None:
    with pytest.raises(IdError):
        canonical_id(value)


@given(st.text())
def test_canonical_text_is_a_fixed_point(text: str) -> None:
    try:
        once = canonical_id(text)
    except IdError:
        return
    assert canonical_id(once) == canonical_id(once.decode()) == once


def test_integers_are_plain_decimals() -> None:
    numbers = [*range(-50, 50), 2**63, -(2**70)]
    assert canonical_ids(numbers) == [str(n).encode() for n in numbers]


def test_a_column_with_gaps_meets_one_without() -> None:
    assert canonical_ids(np.array([3.0, 1.0])) == canonical_ids(np.array([3, 1])) == canonical_ids(["3", "1 "])


def test_a_bad_row_is_named_and_not_shown() -> None:
    with raises_code(IdError, "SVFL-ID-INVALID") as caught:
        canonical_ids([90001, 90002, 90003.5])
    assert "90003" not in str(caught.value)


def test_a_repeated_id_is_refused_and_not_shown() -> None:
    with raises_code(IdError, "SVFL-ID-DUPLICATE") as caught:
        canonical_ids([90001, 90002, "90001"])
    assert "90001" not in str(caught.value)


def test_rfc7748_vector() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    product = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    assert slow_product(scalar, point) == product
    assert curve._multiply_chunk(scalar, point) == product


def test_products_match_plain_integers() -> None:
    points = hash_to_group(canonical_ids(range(20)))
    blinder = Blinder()
    expected = b"".join(slow_product(blinder._scalar, point) for point in split(points))
    assert blinder.blind(points) == expected


def test_unblinding_takes_off_one_scalar() -> None:
    points = hash_to_group(canonical_ids(range(20)))
    a, b = Blinder(), Blinder()
    assert a.unblind(b.blind(a.blind(points))) == b.blind(points)
    assert a.blind(a.unblind(b.blind(points))) == b.blind(points)
    assert b.unblind(b.blind(a.blind(points))) == a.blind(points)
    assert b.unblind(a.blind(points)) != points


@given(st.binary(min_size=32, max_size=32))
def test_an_inverse_is_what_x25519_takes_unchanged(scalar: bytes) -> None:
    inverse = int.from_bytes(curve._inverse(scalar), "little")
    clamped = int.from_bytes(scalar, "little") & ~7 & ~(1 << 255) | (1 << 254)
    order = 2**252 + 27742317777372353535851937790883648493
    assert inverse * clamped % order in (1, order - 1)
    assert inverse % 8 == 0
    assert inverse >> 254 == 1


def test_hash_matches_a_slow_one() -> None:
    def slow(canonical: bytes) -> bytes:
        for attempt in range(1000):
            block = b"securevfl id to curve25519 v1\x00" + bytes([attempt, 0]) + canonical
            x = int.from_bytes(hashlib.sha512(block).digest(), "little") % FIELD_PRIME
            if slow_on_curve(x):
                return x.to_bytes(32, "little")
        raise AssertionError

    ids = canonical_ids(range(100))
    assert split(hash_to_group(ids)) == [slow(canonical) for canonical in ids]
    assert len(set(split(hash_to_group(ids)))) == 100


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 30), unique=True, max_size=12),
    st.lists(st.integers(0, 30), unique=True, max_size=12),
    st.integers(2, 4),
)
def test_common_ids_meet_after_all_have_blinded(mine: list[int], theirs: list[int], parties: int) -> None:
    blinders = [Blinder() for _ in range(parties)]
    first, other = hash_to_group(canonical_ids(mine)), hash_to_group(canonical_ids(map(str, theirs)))
    for blinder in blinders:
        first = blinder.blind(first)
    for blinder in reversed(blinders):
        other, _ = sort_points(blinder.blind(other))
    met = set(split(other))
    assert [i for i, point in zip(mine, split(first), strict=True) if point in met] == [
        i for i in mine if i in set(theirs)
    ]


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_changes_nothing(
    pool: Callable[[int], ProcessPoolExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve, "_CHUNK", 16)
    ids = canonical_ids(range(100))
    blinder = Blinder()
    alone = blinder.blind(hash_to_group(ids))
    with pool(2) as executor:
        assert blinder.blind(hash_to_group(ids, executor), executor) == alone
        assert check_points(alone, executor) == 100
        with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
            blinder.blind(alone[:-32] + bytes(32), executor)


def test_nothing_in_nothing_out() -> None:
    assert hash_to_group([]) == Blinder().blind(b"") == b""
    assert check_points(b"") == 0
    assert sort_points(b"")[0] == b""


def test_sorting_gives_back_positions() -> None:
    points = b"".join([b"\x02" * 31 + b"\x00", b"\x02" * 30 + b"\x00\x00", b"\xff" * 32, bytes(32)])
    in_order, positions = sort_points(points)
    assert split(in_order) == sorted(split(points))
    assert [split(points)[i] for i in positions] == split(in_order)


def test_sorted_points_depend_on_the_set_alone() -> None:
    points = split(Blinder().blind(hash_to_group(canonical_ids(range(50)))))
    shuffled = list(points)
    secrets.SystemRandom().shuffle(shuffled)
    assert sort_points(b"".join(points))[0] == sort_points(b"".join(shuffled))[0]


SMALL_ORDER = [0, 1, *sorted(curve._SMALL_ORDER)[2:], FIELD_PRIME - 1]
TWIST = next(x for x in range(2, 100) if not slow_on_curve(x))
ON_CURVE = next(x for x in range(2, 100) if slow_on_curve(x))


@pytest.mark.parametrize(
    "x",
    [*SMALL_ORDER, TWIST, FIELD_PRIME, FIELD_PRIME + 1, FIELD_PRIME + 9, ON_CURVE + 2**255, 2**256 - 1],
    ids=lambda x: f"{x:x}"[:8],
)
def test_a_point_that_cannot_be_a_blinded_id_is_refused(x: int) -> None:
    good = hash_to_group([b"7"])
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        Blinder().blind(good + x.to_bytes(32, "little"))


def test_the_small_orders_are_all_there() -> None:
    """Doubling three times leads to the point at infinity, and a product with a multiple of 8 is zero."""

    def double(x: int) -> int | None:
        below = 4 * x * (x * x + 486662 * x + 1) % FIELD_PRIME
        return (x * x - 1) ** 2 * pow(below, FIELD_PRIME - 2, FIELD_PRIME) % FIELD_PRIME if below else None

    for x in SMALL_ORDER:
        seen: int | None = x
        for _ in range(3):
            seen = None if seen is None else double(seen)
        assert seen is None
        assert slow_product(secrets.token_bytes(32), x.to_bytes(32, "little")) == bytes(32)
    # The points of small order form a cyclic group of order 8. Those of order 2, 4 and 8 have 1 + 1 + 2 values of x.
    assert len(curve._SMALL_ORDER) == 4
    assert all(slow_on_curve(x) for x in curve._SMALL_ORDER - {0})


def test_a_cut_message_is_refused() -> None:
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        Blinder().blind(hash_to_group([b"7"])[:-1])


def guesses_of_a_peer(blinder_type: type[Blinder]) -> int:
    """Count the blinded ids that a peer recognises if it knows every id and chooses its scalar."""
    points = hash_to_group(canonical_ids(range(16)))
    received = split(blinder_type().blind(points))
    dictionary = set(split(points)) | set(split(blinder_type().blind(points)))
    return sum(point in dictionary for point in received)


class FixedScalar(Blinder):
    def __init__(self) -> None:
        self._scalar = b"\x07" * 32


class NoScalar(Blinder):
    def blind(self, points: bytes, executor: object = None) -> bytes:
        return points


def test_a_peer_that_knows_all_ids_recognises_none() -> None:
    assert guesses_of_a_peer(Blinder) == 0


@pytest.mark.parametrize("mutant", [FixedScalar, NoScalar])
def test_that_check_catches_a_scalar_that_is_not_fresh(mutant: type[Blinder]) -> None:
    assert guesses_of_a_peer(mutant) == 16


def twist_bits() -> int:
    """Count the blinded ids of 64 that are not on the curve. Blinding keeps this bit, so it
    would reveal a bit of the id.
    """
    blinder = Blinder()
    blinded = curve._multiply_chunk(blinder._scalar, hash_to_group(canonical_ids(range(64))))
    return sum(not slow_on_curve(int.from_bytes(point, "little")) for point in split(blinded))


def test_blinded_points_keep_no_bit_of_the_id() -> None:
    assert twist_bits() == 0


def test_that_check_catches_hashing_straight_to_x(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "_on_curve", lambda x: True)
    assert twist_bits() > 0


def test_a_blinder_shows_nothing() -> None:
    blinder = Blinder()
    assert blinder._scalar.hex() not in repr(blinder) + str(blinder)
    assert not hasattr(blinder, "__dict__")
    with pytest.raises(TypeError):
        pickle.dumps(blinder)


@pytest.mark.parametrize(
    "values",
    [
        ["7", "007", "a7", "7" * 64, "~"],
        np.array(["12", "3"], object),
        np.array([7, -3, 0], np.int64),
        np.array([7, 2**64 - 1], np.uint64),
    ],
)
def test_plain_ids_are_the_canonical_ones(values: Any) -> None:
    plain = canonical_ids_in_bulk(values)
    assert plain is not None
    assert plain.tolist() == canonical_ids(values)
    np.testing.assert_array_equal(id_keys(plain), id_keys(canonical_ids(values)))


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b "],
        ["a b"],
        ["a\0"],
        ["\0"],
        ["a", ""],
        [""],
        ["a", "a"],
        ["\u00e9"],
        ["a", 1],
        ["a", None],
        ["7" * 65],
        [b"a"],
        [1.0],
        np.array([1.0, 2.0]),
        np.array([True]),
        np.array([1, 1]),
        range(3),
    ],
)
def test_ids_that_are_not_plain_are_left_to_the_rule(values: Any) -> None:
    assert canonical_ids_in_bulk(values) is None


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=30))
def test_whatever_is_plain_is_canonical(texts: list[str]) -> None:
    plain = canonical_ids_in_bulk(texts)
    if plain is not None:
        assert plain.tolist() == canonical_ids(texts)


def test_keys_of_ids_are_blocks_that_differ() -> None:
    ids = [b"1", b"1\0", b"1\0\0", b"x" * 14, b"x" * 15, b"x" * 16, b"x" * 17, b"\xff" * 15, b"\xff" * 40]
    keys = id_keys(ids)
    assert len({key.tobytes() for key in keys}) == len(ids)
    assert all(key.tobytes()[15] < 128 for key in keys)
    assert keys[0].tobytes() == b"1" + bytes(14) + b"\1"
    digest = hashlib.blake2b(b"x" * 16, digest_size=15, person=b"securevfl id").digest()
    assert keys[5].tobytes() == digest + b"\x7e"
    np.testing.assert_array_equal(id_keys(ids[:5]), keys[:5])


FUNCTIONS_OF_IDS: dict[str, Callable[[list[bytes]], bytes]] = {
    "keys": lambda ids: id_keys(ids).tobytes(),
    "digests": lambda ids: id_digests("shop", [ids]).tobytes(),
    "points": hash_to_group,
}
"""Functions that replace each id by a fixed number of bytes."""


@pytest.mark.parametrize("name", FUNCTIONS_OF_IDS)
def test_no_byte_and_no_length_of_an_id_is_lost(name: str) -> None:
    """Each length is the longest of its table once, and the value of an id does not depend on the other ids."""
    replaced, value_of = FUNCTIONS_OF_IDS[name], dict[bytes, bytes]()
    for longest in (*range(1, 20), 31, 32, 33, 63, 64, 65):
        full = b"x" * longest
        ids = [full[:k] + b"y" + full[k + 1 :] for k in range(longest)] + [full]
        values = replaced(ids)
        size = len(values) // len(ids)
        value_of |= {row_id: values[size * k : size * (k + 1)] for k, row_id in enumerate(ids)}
    assert len(set(value_of.values())) == len(value_of)
    assert b"".join(value_of.values()) == replaced(list(value_of))


@pytest.mark.parametrize("empty", [[], np.array([], int), np.array([], np.uint8), np.array([], "U3"), np.array([])])
def test_no_ids_have_no_keys(empty: Any) -> None:
    assert canonical_ids(empty) == []
    assert canonical_ids_in_bulk(empty) is None
    assert id_keys(canonical_ids(empty)).shape == (0, 2)
    assert id_keys(np.array([], "S4")).shape == (0, 2)

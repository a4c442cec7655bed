"""Base oblivious transfers: a receiver gets one key of two, and the sender does not learn which."""

import os

import pytest
from nacl.bindings import (
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)

from securevfl.crypto.transfers import base_transfers
from securevfl.crypto.transfers.base_transfers import BaseSender, receive_keys
from securevfl.errors import CryptoError
from tests.builders import raises_code

CHOICE_BITS = [bit == "1" for bit in "0110100110010110"]


def test_each_choice_gives_its_key_and_no_other() -> None:
    offerer = BaseSender()
    points, keys = receive_keys(offerer.offer, CHOICE_BITS)
    pairs = offerer.pairs(points)
    for bit, key, pair in zip(CHOICE_BITS, keys, pairs, strict=True):
        assert key == pair[bit]
        assert key != pair[not bit]
    assert len({key for pair in pairs for key in pair}) == 2 * len(CHOICE_BITS)


def test_the_key_not_chosen_needs_the_scalar_of_the_offer() -> None:
    """The sender's key for the message not chosen is a (B - m A) as in the paper, by plain group operations."""
    offerer = BaseSender()
    points, _ = receive_keys(offerer.offer, CHOICE_BITS)
    scalar = offerer._scalar
    assert crypto_scalarmult_ed25519_base_noclamp(scalar) == offerer.offer
    for start in range(0, len(points), 32):
        point = points[start : start + 32]
        by_difference = crypto_scalarmult_ed25519_noclamp(scalar, crypto_core_ed25519_sub(point, offerer.offer))
        by_products = crypto_core_ed25519_sub(
            crypto_scalarmult_ed25519_noclamp(scalar, point), crypto_scalarmult_ed25519_noclamp(scalar, offerer.offer)
        )
        assert by_difference == by_products


def test_nothing_serves_twice() -> None:
    offerer = BaseSender()
    assert offerer.offer != BaseSender().offer
    assert receive_keys(offerer.offer, CHOICE_BITS)[0] != receive_keys(offerer.offer, CHOICE_BITS)[0]


FIELD_PRIME = 2**255 - 19
D = -121665 * pow(121666, -1, FIELD_PRIME) % FIELD_PRIME
ORDER = 2**252 + 27742317777372353535851937790883648493
Place = tuple[int, int]


def plus(one: Place, other: Place) -> Place:
    (x, y), (u, v) = one, other
    cross = D * x * u * y * v % FIELD_PRIME
    return (x * v + y * u) * pow(1 + cross, -1, FIELD_PRIME) % FIELD_PRIME, (y * v + x * u) * pow(
        1 - cross, -1, FIELD_PRIME
    ) % FIELD_PRIME


def times(scalar: int, point: Place) -> Place:
    result = (0, 1)
    for bit in f"{scalar:b}":
        result = plus(result, result)
        if bit == "1":
            result = plus(result, point)
    return result


def place(point: bytes) -> Place:
    """Decode a point (RFC 8032, section 5.1.3). Raise StopIteration if no x fits."""
    number = int.from_bytes(point, "little")
    y = number & (2**255 - 1)
    square = (y * y - 1) * pow(D * y * y + 1, -1, FIELD_PRIME) % FIELD_PRIME
    root = pow(square, (FIELD_PRIME + 3) // 8, FIELD_PRIME)
    x = next(
        x
        for x in (root, root * pow(2, (FIELD_PRIME - 1) // 4, FIELD_PRIME) % FIELD_PRIME)
        if x * x % FIELD_PRIME == square
    )
    return (x if x % 2 == number >> 255 else -x % FIELD_PRIME), y


def packed(point: Place) -> bytes:
    return (point[1] | (point[0] % 2) << 255).to_bytes(32, "little")


# l times a point of the curve has small order. For y = 6 the order is 8, so its multiples are all such points.
SMALL = [times(k, times(ORDER, place((6).to_bytes(32, "little")))) for k in range(8)]
GROUP = place(BaseSender().offer)
OUTSIDE = {
    "not canonical": b"\xff" * 32,
    "neutral, not canonical": (FIELD_PRIME + 1).to_bytes(32, "little"),
    "of order four, other sign": bytes(31) + b"\x80",
    "off the curve": (2).to_bytes(32, "little"),
    "short": os.urandom(31),
    "empty": b"",
    **{f"{k} of 8 of small order": packed(SMALL[k]) for k in range(8)},
    **{f"of the group and {k} of 8": packed(plus(GROUP, SMALL[k])) for k in range(1, 8)},
}


def test_small_orders_are_all_there() -> None:
    assert len(set(SMALL)) == 8
    assert all(times(8, point) == (0, 1) for point in SMALL)


@pytest.fixture
def unchecked_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the library's functions by ones without checks, so that only this package's checks refuse points."""
    monkeypatch.setattr(base_transfers, "crypto_core_ed25519_is_valid_point", lambda point: True)
    monkeypatch.setattr(
        base_transfers,
        "crypto_scalarmult_ed25519_noclamp",
        lambda scalar, point: packed(times(int.from_bytes(scalar, "little"), place(point))),
    )


@pytest.mark.parametrize("library", ["as it is", "unchecked"])
@pytest.mark.parametrize("kind", OUTSIDE)
def test_points_outside_the_group_are_refused(kind: str, library: str, request: pytest.FixtureRequest) -> None:
    if library == "unchecked":
        request.getfixturevalue("unchecked_library")
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        receive_keys(OUTSIDE[kind], CHOICE_BITS)
    if kind != "empty":
        with pytest.raises(CryptoError):
            BaseSender().pairs(OUTSIDE[kind])


def choices_read(small: Place) -> list[bool]:
    """Return what an offerer learns about 16 choices if its offer has a part of small
    order: the points with such a part.
    """
    points, _ = receive_keys(packed(plus(GROUP, small)), CHOICE_BITS)
    return [times(ORDER, place(points[start : start + 32])) != (0, 1) for start in range(0, len(points), 32)]


def test_an_offer_of_small_order_reads_no_choice(unchecked_library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        choices_read(SMALL[4])
    monkeypatch.setattr(base_transfers, "_of_prime_order", lambda point: True)
    assert choices_read(SMALL[4]) == CHOICE_BITS


def test_a_sender_shows_no_secret() -> None:
    assert repr(BaseSender()) == "<BaseSender, secret>"

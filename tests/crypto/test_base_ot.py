import os

import pytest
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)

from securevfl.crypto.transfers.base_ot import Offerer, choose
from securevfl.errors import CryptoError

BITS = [bit == "1" for bit in "0110100110010110"]


def test_each_choice_gives_its_key_and_no_other() -> None:
    offerer = Offerer()
    points, keys = choose(offerer.offer, BITS)
    pairs = offerer.pairs(points)
    for bit, key, pair in zip(BITS, keys, pairs, strict=True):
        assert key == pair[bit]
        assert key != pair[not bit]
    assert len({key for pair in pairs for key in pair}) == 2 * len(BITS)


def test_the_key_not_chosen_needs_the_scalar_of_the_offer() -> None:
    """What the offerer derives for the other message is the paper's a (B - m A), by plain group operations."""
    offerer = Offerer()
    points, _ = choose(offerer.offer, BITS)
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
    offerer = Offerer()
    assert offerer.offer != Offerer().offer
    assert choose(offerer.offer, BITS)[0] != choose(offerer.offer, BITS)[0]


def with_cofactor() -> bytes:
    """A point of the group plus one of order four: on the curve, outside the group of prime order."""
    return crypto_core_ed25519_add(Offerer().offer, bytes(32))


OUTSIDE = {
    "of order four": bytes(32),
    "neutral": b"\x01" + bytes(31),
    "of order two": (2**255 - 20).to_bytes(32, "little"),
    "not canonical": b"\xff" * 32,
    "short": os.urandom(31),
    "empty": b"",
    "of composite order": with_cofactor(),
}


@pytest.mark.parametrize("kind", OUTSIDE)
def test_points_outside_the_group_are_refused(kind: str) -> None:
    with pytest.raises(CryptoError, match="base transfers"):
        choose(OUTSIDE[kind], BITS)
    if kind != "empty":
        with pytest.raises(CryptoError, match="base transfers"):
            Offerer().pairs(OUTSIDE[kind])


def test_an_offerer_shows_nothing() -> None:
    assert repr(Offerer()) == "<Offerer, secret>"

"""Vector OLE and the PRF that is built on it agree with slow oracles, and attacks of either party are detected."""

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.prg import Prg
from securevfl.crypto.transfers import okvs, row_hash, vole_pieces, vole_prf, vole_public, vole_trees
from securevfl.crypto.transfers.binary_field import Multiplier, combine_powers, ghash, take_rows
from securevfl.crypto.transfers.ot_extension import fresh_secret
from securevfl.crypto.transfers.vole import VoleReceiver, VoleSender
from securevfl.crypto.transfers.vole_pieces import VoleSize, choice_bytes, split_outcomes
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.errors import CryptoError
from tests.builders import raises_code

X7 = 1 << 7 | 1 << 2 | 1 << 1 | 1  # x^128 in the field
elements = st.binary(min_size=16, max_size=16)


def polynomial(octets: bytes) -> int:
    """Return the element as a polynomial: bit i is the coefficient of x^i."""
    return int.from_bytes(bytes(int(f"{octet:08b}"[::-1], 2) for octet in octets), "little")


def words(*octets: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(octets), np.uint64).reshape(-1, 2)


def slow_product(one: bytes, other: bytes) -> int:
    """Multiply in GF(2^128), bit by bit."""
    total, power = 0, polynomial(one)
    for bit in range(128):
        if polynomial(other) >> bit & 1:
            total ^= power
        power = power << 1 ^ (power >> 127) * (1 << 128 | X7)
    return total


@settings(max_examples=50)
@given(elements, elements)
def test_products_are_those_of_polynomials(one: bytes, other: bytes) -> None:
    (product,) = Multiplier(one)(words(other))
    assert polynomial(product.tobytes()) == slow_product(one, other)


def test_128_elements_are_packed_by_powers_of_x() -> None:
    parts = [os.urandom(16) for _ in range(128)]
    powers = [words(sum(1 << 8 * (k // 8) + 7 - k % 8 for k in [bit]).to_bytes(16, "little")) for bit in range(128)]
    total = np.zeros((1, 2), np.uint64)
    for part, power in zip(parts, powers, strict=True):
        total ^= Multiplier(part)(power)
    np.testing.assert_array_equal(combine_powers(words(*parts)[None]), total)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_ghash_is_that_of_its_standard(count: int) -> None:
    """As in the standard of GHASH: H is the AES encryption of zeros, and after each block is
    added, the sum times H is taken.
    """
    challenge, blocks = os.urandom(32), [os.urandom(16) for _ in range(count)]
    cipher = Cipher(algorithms.AES(challenge[:16]), modes.ECB()).encryptor()
    times, total = Multiplier(cipher.update(bytes(16))), np.zeros((1, 2), np.uint64)
    for block in blocks:
        total = times(total ^ words(block))
    # without the block that contains the length
    np.testing.assert_array_equal(ghash(challenge, words(*blocks)), times(total)[0])


def ends(secret: bytes | None = None) -> tuple[VoleSender, VoleReceiver, bytes]:
    """Return a sender and a receiver without a base transfer protocol."""
    delta = fresh_secret()[0] if secret is None else secret
    chosen = np.unpackbits(np.frombuffer(delta, np.uint8), bitorder="little").tolist()
    pairs, coin = [(os.urandom(32), os.urandom(32)) for _ in range(128)], os.urandom(32)
    sender = VoleSender(delta, [pair[bit] for pair, bit in zip(pairs, chosen, strict=True)], os.urandom(32), coin)
    return sender, VoleReceiver(pairs, coin), delta


@pytest.mark.parametrize("outcomes", [1, 900, 5000])
def test_both_ends_have_shares_of_products(outcomes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vole_pieces, "MAX_PIECE_OUTCOMES", 3000)
    sender, receiver, delta = ends()
    a_parts = []
    for number, size in enumerate(split_outcomes(outcomes)):
        answered, given_piece = sender.answer(number, size, receiver.ask(number, size, os.urandom(choice_bytes(size))))
        received = receiver.take(number, size, answered)
        received.check(given_piece.confirm(received.response))
        (a, c), b = received.outcome(), given_piece.outcome()
        np.testing.assert_array_equal(c, b ^ Multiplier(delta)(a))
        a_parts.append(a)
    a = np.concatenate(a_parts)
    assert a.shape == (outcomes, 2)
    assert len(np.unique(a[:, 0])) == outcomes
    bits = np.unpackbits(a.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 3.1 / np.sqrt(bits.size)  # 6.2 standard errors


def test_no_number_of_a_row_serves_in_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under one key of the hash, rows of transfers have different numbers at both parties and in all pieces."""
    monkeypatch.setattr(vole_pieces, "MAX_PIECE_OUTCOMES", 300)
    numbered, before = list[tuple[int, int]](), set[tuple[int, int]]()
    make = row_hash.tweaks

    def noting(first: int, count: int, purpose: int) -> np.ndarray:
        numbered.extend((purpose, row) for row in range(first, first + count))
        return make(first, count, purpose)

    monkeypatch.setattr(vole_public, "tweaks", noting)
    sender, receiver, _ = ends()
    for number, size in enumerate(split_outcomes(900)):
        ends_of_piece = []
        for work in ("giver", "taker"):
            numbered.clear()
            if work == "giver":
                answered, _piece = sender.answer(
                    number, size, receiver.ask(number, size, os.urandom(choice_bytes(size)))
                )
            else:
                receiver.take(number, size, answered)
            ends_of_piece.append(set(numbered))
        assert ends_of_piece[0] == ends_of_piece[1]
        assert ends_of_piece[0]
        assert not ends_of_piece[0] & before
        before |= ends_of_piece[0]
    assert number >= 2


def test_no_other_confirmation_passes_however_long() -> None:
    sender, receiver, _ = ends()
    answered, piece = sender.answer(0, SMALL_SIZE, receiver.ask(0, SMALL_SIZE, os.urandom(choice_bytes(SMALL_SIZE))))
    received = receiver.take(0, SMALL_SIZE, answered)
    right = piece.confirm(received.response)
    for wrong in (
        b"",
        *(right[:length] for length in range(1, len(right))),
        right + b"\0",
        bytes(len(right)),
        right * 2,
    ):
        with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
            received.check(wrong)
    received.check(right)


@given(st.integers(1, 1 << 26))
def test_sizes_hold_to_the_parameters(outcomes: int) -> None:
    pieces = split_outcomes(outcomes)
    assert sum(piece.outcomes for piece in pieces) == outcomes
    for piece in pieces:
        assert piece.trees >= vole_pieces.MIN_TREES
        assert piece.places >= vole_pieces.INVERSE_RATE * piece.outcomes
        assert piece.outcomes <= vole_pieces.MAX_PIECE_OUTCOMES
        assert piece.places <= 1.25 * vole_pieces.INVERSE_RATE * piece.outcomes + 2 * vole_pieces.MIN_TREES


def test_the_minimum_of_trees_defeats_linear_tests() -> None:
    assert (1 - 0.1) ** vole_pieces.MIN_TREES <= 2.0**-128
    assert vole_pieces.MIN_TREES % vole_pieces.TREES_PER_GROUP == 0


SMALL_SIZE = VoleSize(60, 16, 3)  # far below any security


def test_trees_and_their_map_are_those_of_the_docstring() -> None:
    """Trees are compared with a slow version: node by node from the roots, and position by position."""
    public = ends()[0]._public
    roots = Prg(os.urandom(32), "roots").array((16, 2), np.uint64)
    leaves, levels = vole_trees.grow_trees(public, roots, 3)
    leaves = leaves.reshape(8, 16, 2)

    def child(node: bytes, side: int) -> bytes:
        out = public._sides[side].update(node)
        return bytes(x ^ y for x, y in zip(out, node, strict=True))

    for tree in range(16):
        nodes = [roots[tree].tobytes()]
        for level in range(3):
            sides = [[child(node, side) for node in nodes] for side in (0, 1)]
            for side in (0, 1):
                np.testing.assert_array_equal(np.bitwise_xor.reduce(words(*sides[side])), levels[side, level, tree])
            nodes = sides[0] + sides[1]
        np.testing.assert_array_equal(words(*nodes), leaves[:, tree])
    flat = leaves.reshape(-1, 2)
    (mapped,) = public.map(0, SMALL_SIZE, flat.copy())
    ((_, places),) = public._places(0, SMALL_SIZE)
    for row in range(60):
        total = np.zeros(2, np.uint64)
        for place in places[:, row].tolist():
            total ^= np.bitwise_xor.reduce(flat[: place + 1])
        np.testing.assert_array_equal(mapped[row], total)


def passes(
    ends: tuple[VoleSender, VoleReceiver, bytes], number: int, altered: int | None = None, *, heard: bool = True
) -> bool:
    """Return whether a sender that alters one byte of its answer and knows the effect passes the receiver's check."""
    sender, receiver, _ = ends
    request = receiver.ask(number, SMALL_SIZE, os.urandom(choice_bytes(SMALL_SIZE)))
    answered, piece = sender.answer(number, SMALL_SIZE, request)
    if altered is not None:
        octets = bytearray(answered)
        octets[altered] ^= 1
        answered = bytes(octets)
        piece._challenge = sender._public.challenge(number, request, answered)
    received = receiver.take(number, SMALL_SIZE, answered)
    try:
        received.check(piece.confirm(received.response if heard else bytes(16)))
    except CryptoError:
        return False
    return True


def test_an_altered_sum_passes_only_if_it_is_not_used() -> None:
    """Of each level, the receiver uses one of two sums, by a random bit, so that one
    alteration passes half of the times.
    """
    both = ends()
    assert 5 < sum(passes(both, number, 0) for number in range(60)) < 55  # 6.4 standard errors
    last = SMALL_SIZE.answer_bytes - 1  # the last byte of the sums of leaves, which are always used
    assert not any(passes(both, number, last) for number in range(60, 70))
    assert passes(both, 70)
    assert not passes(both, 71, heard=False)


def test_rows_that_carry_two_choices_are_refused() -> None:
    sender, receiver, _ = ends()
    request = bytearray(receiver.ask(0, SMALL_SIZE, os.urandom(choice_bytes(SMALL_SIZE))))
    request[5] ^= 1
    with raises_code(CryptoError, "SVFL-PROTOCOL-CHEATING"):
        sender.answer(0, SMALL_SIZE, bytes(request))


def test_messages_of_another_length_are_refused() -> None:
    sender, receiver, _ = ends()
    request = receiver.ask(0, SMALL_SIZE, os.urandom(choice_bytes(SMALL_SIZE)))
    with raises_code(CryptoError, "SVFL-PROTOCOL-SIZE"):
        sender.answer(0, SMALL_SIZE, request[:-1])
    with raises_code(CryptoError, "SVFL-PROTOCOL-SIZE"):
        receiver.take(0, SMALL_SIZE, bytes(SMALL_SIZE.answer_bytes - 1))


def keys_of(count: int) -> np.ndarray:
    keys = np.frombuffer(os.urandom(16 * count), np.uint64).reshape(-1, 2).copy()
    keys[:, 1] &= np.uint64(2**63 - 1)
    return keys


def meet(keys: np.ndarray, request: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return F of the queried keys at the evaluator, who has stored `keys`, and at the holder."""
    delta, hashing = os.urandom(16), PrfHash(os.urandom(32))
    seed, P = okvs.encode(keys, hashing.target(keys))
    a, b = words(os.urandom(16 * len(P))), words(os.urandom(16 * len(P)))
    c = b ^ Multiplier(delta)(a)
    return (
        vole_prf.evaluate_stored(hashing, seed, c, request),
        vole_prf.evaluate_any(hashing, seed, b, P ^ a, Multiplier(delta), request),
    )


def test_both_ends_agree_on_stored_keys_and_on_no_other() -> None:
    keys, others = keys_of(300), keys_of(300)
    mine, theirs = meet(keys, np.concatenate([keys, others]))
    np.testing.assert_array_equal(mine[:300], theirs[:300])
    assert not (mine[300:] == theirs[300:]).any()
    assert len(np.unique(np.concatenate([theirs[:, :2], theirs[:, 2:]])[:, 0])) == 1200


def test_rows_are_moved_whole() -> None:
    table, at = keys_of(50), np.array([3, 49, 0, 3])
    np.testing.assert_array_equal(take_rows(table, at), table[at])
    assert take_rows(table, at[:0]).shape == (0, 2)


def test_nothing_of_either_end_shows() -> None:
    sender, receiver, delta = ends()
    assert delta.hex() not in repr(sender) + repr(receiver) + repr(sender.times)
    assert repr(receiver) == str(receiver)

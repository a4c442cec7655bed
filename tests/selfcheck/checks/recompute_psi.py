"""Messages of a private alignment (points, zero shares, stores, transfers) are recomputed from the recorded entropy.

derived     a point, share, key or value of the PRF differs from the specified one for the recorded entropy
bits        a bit of a message is biased, or depends on another one
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor
from functools import reduce
from typing import Any

import numpy as np
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_sub,
    crypto_scalarmult,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
)
from numpy.typing import NDArray

from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.statistics import Battery
from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto import curve
from securevfl.crypto.curve import hash_to_group
from securevfl.crypto.identifiers import canonical_ids, id_keys
from securevfl.crypto.share_ring import Words
from securevfl.crypto.transfers import base_transfers, okvs, ot_extension, vole, vole_pieces, vole_prf
from securevfl.crypto.transfers.binary_field import Multiplier
from securevfl.protocols.alignment import psi_transfers
from securevfl.protocols.alignment.psi import ALIGNMENT_NONCE_BYTES
from securevfl.protocols.alignment.psi_many import StoreHeader, StoreSlots
from securevfl.protocols.alignment.psi_work import AlignmentStart, Points
from selfcheck.bits import bits_of, bitwise
from selfcheck.checks import slow_reference
from selfcheck.checks.alignment_checks import record_alignment
from selfcheck.checks.two_runs import WAYS
from selfcheck.entropy import Drawn, recorded

_ROWS = 40
_TRANSFERS = 64  # the transfers, of 128, that are recomputed
_OUTCOMES = 2000  # of a vector OLE; with fewer, the noise has too few bits to look uniform
_ORDER = base_transfers._ORDER
_USED: Any = psi_transfers  # functions that the protocol calls, by its names for them


def _split(data: bytes, size: int = 32) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def alignment(parties: int) -> Outcome:
    """Check points and stores of an alignment by points: each is computed from a scalar of 32 bytes and agreed keys."""
    return reduce(Outcome.merge, (_alignment(parties, executor) for executor in WAYS))


def _alignment(parties: int, executor: Executor | None) -> Outcome:
    outcome = Outcome()
    ids = {f"P{k}": [str(500 + 7 * k + i) for i in range(_ROWS)] for k in range(parties)}
    with recorded() as drawn:
        transcript, _ = record_alignment(ids, executor)
    hashed = {name: _split(hash_to_group(canonical_ids(party_ids))) for name, party_ids in ids.items()}
    keys = {name: id_keys(canonical_ids(party_ids)) for name, party_ids in ids.items()}
    scalars = {name: drawn.of_size(name, 32) for name in ids}
    if any(len(draws) != 1 for draws in scalars.values()):
        outcome.add("derived", "all", "a party's scalar is something else than 32 bytes drawn for this alignment")
        return outcome
    for event in transcript.received:
        if isinstance(event.message, Points):
            known = sorted(crypto_scalarmult(scalars[event.peer][0], point) for point in hashed[event.peer])
            if _split(event.message.points) != known:
                outcome.add("derived", event.peer, "points are not its ids times the scalar that was drawn")
    if parties > 2:
        _stores(outcome, transcript, drawn, hashed, keys)
    return outcome


def _stores(
    outcome: Outcome, transcript: Transcript, drawn: Drawn, hashed: dict[str, list[bytes]], keys: dict[str, Words]
) -> None:
    """Check that each store answers F_i'(y) ^ s_i(y), and that its free positions are random."""
    (nonce,) = {event.message.nonce for event in transcript.received if isinstance(event.message, AlignmentStart)}
    if nonce not in drawn.of_size("P0", ALIGNMENT_NONCE_BYTES):
        outcome.add("derived", "P0", "the nonce of the alignment is not 16 bytes drawn for it")
    seeds: dict[str, bytes] = {}
    tables: dict[str, Words] = {}
    for event in transcript.received:
        if isinstance(event.message, StoreHeader):
            seeds[event.peer] = event.message.seed
        elif isinstance(event.message, StoreSlots):
            tables[event.peer] = np.frombuffer(event.message.slots, "<u8").reshape(-1, 2).astype(np.uint64)
    for party, points in hashed.items():
        if party == "P0":
            continue
        share = np.zeros((len(points), 2), np.uint64)
        for peer in hashed:
            if peer != party:
                public = drawn.keys[peer][0].public_key().public_bytes_raw()
                key = slow_reference.agreed(
                    drawn.keys[party][0],
                    public,
                    session=nonce.hex(),
                    party=party,
                    peer=peer,
                    domain="alignment zero sharing",
                )
                share ^= slow_reference.blocks(key, keys[party])
        (scalar,) = drawn.of_size(party, 32)
        rows = [point + crypto_scalarmult(scalar, point) for point in points]
        values = slow_reference.blakes(rows, size=32, purpose=b"oblivious prf")[:, :2] ^ share
        if not np.array_equal(okvs.decode(seeds[party], keys[party], tables[party])[0], values):
            outcome.add("derived", party, "its store holds other values than F ^ s of its scalar and its agreed keys")
        fill = [draw for draw in drawn.of_size(party, tables[party].nbytes) if _fills(draw, tables[party], len(points))]
        if seeds[party] not in drawn.of_size(party, okvs.OKVS_SEED_BYTES) or not fill:
            outcome.add("derived", party, "the seed of its store, or a free position, does not equal the draw")


def _fills(draw: bytes, table: Words, keys: int) -> bool:
    """Return whether all slots of a store, but one for each key, equal the drawn random numbers."""
    slots = np.frombuffer(draw, "<u8").reshape(-1, 2)
    return bool((slots == table).all(axis=1).sum() >= len(table) - keys)


def transfers() -> Outcome:
    """Check each value of base transfers, trees and rows of a vector OLE and of the PRF against its draw."""
    outcome = Outcome()
    with recorded() as drawn:
        secret, bits = _USED.fresh_secret()
    chosen = np.unpackbits(np.frombuffer(secret, np.uint8), bitorder="little").astype(bool).tolist()
    if drawn.here() != [secret] or len(secret) != ot_extension.SECRET_BYTES or bits != chosen:
        outcome.add("derived", "holder", "its secret is something else than the 16 bytes drawn for it")
    pairs, seeds = _base(outcome, bits)
    _vole(outcome, secret, pairs, seeds)
    _prf(outcome, secret)
    return outcome


def _base(outcome: Outcome, bits: list[bool]) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Check the base transfers: A = a G, B_j = b_j G + c_j A, and keys that are hashes of j, A, B_j and the shared
    point."""
    with recorded() as drawn:
        offerer = base_transfers.BaseSender()
        points, seeds = _USED.receive_keys(offerer.offer, bits)
    pairs, draws = offerer.pairs(points), iter(drawn.here())
    scalars = [1 + slow_reference.below(draws, _ORDER - 1) for _ in range(1 + len(bits))]
    if not all(scalars):
        outcome.add("derived", "base transfers", "a scalar is something else than a number drawn below the order")
        return pairs, seeds
    a, *bs = [scalar.to_bytes(32, "little") for scalar in scalars]
    A = crypto_scalarmult_ed25519_base_noclamp(a)
    shift = crypto_scalarmult_ed25519_noclamp(a, A)
    right = offerer.offer == A
    some = [*zip(bits, bs, _split(points), seeds, pairs, strict=True)][:_TRANSFERS]
    for j, (bit, b, point, seed, pair) in enumerate(some):
        B = crypto_scalarmult_ed25519_base_noclamp(b)
        B = crypto_core_ed25519_add(B, A) if bit else B
        shared = crypto_scalarmult_ed25519_noclamp(a, B)
        known = [
            slow_reference.blake(j.to_bytes(4, "little") + A + B + one, size=32, purpose=b"securevfl ot")
            for one in (shared, crypto_core_ed25519_sub(shared, shift))
        ]
        right &= point == B and list(pair) == known and seed == known[bit]
    if not right:
        outcome.add("derived", "base transfers", "points or keys are not those of the scalars drawn for each transfer")
    return pairs, seeds


def _vole(outcome: Outcome, secret: bytes, pairs: list[tuple[bytes, bytes]], seeds: list[bytes]) -> None:
    """Check that trees grow from the roots drawn, and rows from both streams, and that c = b + a Delta."""
    (size,), coin, roots = vole_pieces.split_outcomes(_OUTCOMES), os.urandom(32), os.urandom(32)
    giver, taker = vole.VoleSender(secret, seeds, roots, coin), vole.VoleReceiver(pairs, coin)
    choices = os.urandom(vole_pieces.choice_bytes(size))
    request = taker.ask(0, size, choices)
    T, other = (_matrix([pair[which] for pair in pairs], len(choices)) for which in (0, 1))
    U = np.frombuffer(request, np.uint8)[: T.size].reshape(T.shape)
    if not np.array_equal(U, T ^ other ^ np.frombuffer(choices, np.uint8)):
        outcome.add("derived", "transfers", "rows that are asked for are not T ^ T' ^ r of the streams of both keys")
    answered, sender_output = giver.answer(0, size, request)
    nodes = [slow_reference.stream(roots, "vector OLE trees", 0, np.empty((size.trees, 2), np.uint64))]
    sides = [slow_reference.derived(coin, "vector OLE trees", side)[:16] for side in range(2)]
    for _ in range(size.depth):
        nodes = [node ^ slow_reference.blocks(key, node) for key in sides for node in nodes]
    leaves = np.stack(nodes).reshape(len(nodes), -1, 16, 2).transpose(1, 0, 2, 3)  # trees in groups of 16
    if not np.array_equal(leaves.reshape(-1, 2), sender_output._leaves):
        outcome.add("derived", "transfers", "leaves are not those of the roots that were drawn")
    output = taker.take(0, size, answered)
    (a, c), b = output.outcome(), sender_output.outcome()
    if not np.array_equal(c, b ^ Multiplier(secret)(a)):
        outcome.add("derived", "transfers", "the ends of a vector OLE do not differ by a Delta")
    battery = Battery()
    for name, item in (("a", a), ("b", b), ("c", c)):
        bitwise(battery, name, bits_of(item).reshape(len(item), -1))
    bitwise(battery, "trees", bits_of(np.frombuffer(answered, np.uint64)).reshape(-1, 128))
    outcome.statistics("bits", "transfers", battery)


def _prf(outcome: Outcome, secret: bytes) -> None:
    """Check h(x) = pi(x) ^ x and F(x), the hash of a sum and x, at both ends."""
    keys, coin = id_keys([b"%d" % i for i in range(300)]), os.urandom(32)
    hashing = _USED.PrfHash(coin)
    target = slow_reference.blocks(slow_reference.derived(coin, "vector OLE PRF", "target")[:16], keys) ^ keys
    if not np.array_equal(hashing.target(keys), target):
        outcome.add("derived", "transfers", "h(x) is not AES of x, and x")
    seed, P = okvs.encode(keys, target)
    a, b = (np.frombuffer(os.urandom(P.nbytes), np.uint64).reshape(-1, 2) for _ in range(2))
    times = Multiplier(secret)
    c = b ^ times(a)
    (sums,) = okvs.decode(seed, keys, c)
    key, last = slow_reference.derived(coin, "vector OLE PRF", "hash")[:16], np.array([0, 1 << 63], np.uint64)
    inner = slow_reference.blocks(key, sums)
    known = np.concatenate(
        [slow_reference.blocks(key, inner ^ keys ^ np.uint64(half) * last) ^ inner for half in (0, 1)], axis=1
    )
    at_evaluator = vole_prf.evaluate_stored(hashing, seed, c, keys)
    at_holder = vole_prf.evaluate_any(hashing, seed, b, P ^ a, times, keys)
    if not np.array_equal(at_evaluator, known) or not np.array_equal(at_holder, known):
        outcome.add("derived", "transfers", "F(x) is not the hash of x and its sum")
    battery = Battery()
    bitwise(battery, "stores", bits_of(P).reshape(len(P), -1))
    outcome.statistics("bits", "transfers", battery)


def _matrix(keys: list[bytes], octets: int) -> NDArray[np.uint8]:
    """Return bytes (128, k): row j is the stream of key j."""
    streams = [slow_reference.keystream(key, "transfers by rows", 0, octets) for key in keys]
    return np.array([np.frombuffer(stream, np.uint8) for stream in streams])


def points() -> Outcome:
    """Check that ids as points, and their multiples by a fresh scalar, use every bit of the x coordinate equally."""
    outcome, battery = Outcome(), Battery()
    hashed = hash_to_group([b"%d" % i for i in range(1000)])
    blinder = curve.Blinder()
    points_by_kind: dict[str, list[bytes]] = defaultdict(list)
    points_by_kind["hashed ids"] = _split(hashed)
    points_by_kind["blinded ids"] = _split(blinder.blind(hashed))
    points_by_kind["one id under many scalars"] = [curve.Blinder().blind(hashed[:32]) for _ in range(200)]
    for name, item in points_by_kind.items():
        rows = np.frombuffer(b"".join(item), np.uint8).reshape(-1, 32)
        bitwise(battery, name, np.unpackbits(rows, axis=1, count=255, bitorder="little"))
    outcome.statistics("bits", "curve", battery)
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "alignment recomputed": lambda: alignment(2).merge(alignment(3)),
    "transfers are known answers": transfers,
    "bits of points": points,
}

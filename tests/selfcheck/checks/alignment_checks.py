"""Checks of private alignment: declarations, repeated values, and the row order, curve
points and masks that hide ids.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from hashlib import sha256

import numpy as np

from securevfl.audit.message_bytes import byte_fields
from securevfl.audit.recording.protocol_record import ProtocolRecord
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.transcript_checks import Outcome, check_transcript
from securevfl.base.roles import Roles
from securevfl.crypto import curve
from securevfl.crypto.curve import POINT_BYTES, hash_to_group
from securevfl.crypto.identifiers import canonical_ids, id_keys
from securevfl.crypto.transfers import base_transfers, okvs, ot_extension, vole_pieces
from securevfl.crypto.transfers.vole import VoleReceiver, VoleSender
from securevfl.crypto.transfers.vole_pieces import VoleSize
from securevfl.crypto.transfers.vole_prf import PrfHash
from securevfl.errors import CryptoError, LeakageError, PeerLost, ProtocolError
from securevfl.protocols.alignment import psi, psi_work
from securevfl.protocols.alignment.psi_work import AlignmentHello, Points
from securevfl.runtime.abort import Abort
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import encode_message
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from selfcheck.checks.draws import watched
from selfcheck.checks.two_runs import WAYS

_MANY = 400  # rows


def record_alignment(
    ids: Mapping[str, Sequence[str]],
    executor: Executor | None = None,
    min_transfer_rows: int = psi_work.MIN_ROWS_FOR_TRANSFERS,
) -> tuple[Transcript, dict[str, list[str]]]:
    """Align these ids with the first party active. Return the transcript, and the ids of each party's aligned rows."""
    active, *passives = ids
    aligned: dict[str, list[str]] = {}

    def play(channel: Channel) -> None:
        me = channel.me
        work = psi_work.AlignmentWork(
            channel,
            canonical_ids(ids[me]),
            active=active,
            passives=passives,
            executor=executor,
        )
        work.min_transfer_rows = min_transfer_rows
        rows = psi.align_active(work) if me == active else psi.align_passive(work)
        aligned[me] = [ids[me][row] for row in rows.tolist()]

    events: list[Event] = []
    run_threads(dict.fromkeys(ids, play), WallClock, timeout=60.0, observe=events.append)
    roles = Roles.labelled(active, passives)
    transfers = max(map(len, ids.values())) >= min_transfer_rows
    return Transcript(events, roles, psi.declares(passives, transfers=transfers), ProtocolRecord()), aligned


def _ids(parties: int, rows: int) -> dict[str, list[str]]:
    return {f"P{k}": [str(1000 + i) for i in range(20 * k, 20 * k + rows)] for k in range(parties)}


def alignment(parties: int, rows: int, min_transfer_rows: int = psi_work.MIN_ROWS_FOR_TRANSFERS) -> Outcome:
    """Check two alignments of the same ids: the result, the order of points, ids in messages, and repeated values."""
    ids = _ids(parties, rows)
    with watched() as draws:
        runs = [record_alignment(ids, executor, min_transfer_rows) for executor in WAYS]
    outcome = check_transcript(*(transcript for transcript, _ in runs)).merge(draws.outcome())
    common = set.intersection(*map(set, ids.values()))
    for transcript, aligned in runs:
        if any(set(rows) != common or rows != aligned["P0"] for rows in aligned.values()):
            outcome.add("output", "all", "the aligned rows are not the common ids in one order")
        _order(transcript, outcome)
        _on_the_wire(transcript, ids, outcome)
    return outcome


def many_ids(parties: int) -> Outcome:
    """Check the alignment of large sets on the smallest sets for which its algorithm can be called."""
    return alignment(parties, _MANY, min_transfer_rows=_MANY)


def _order(transcript: Transcript, outcome: Outcome) -> None:
    for event in transcript.received:
        if isinstance(event.message, Points):
            points = _split(event.message.points)
            if points != sorted(points):
                outcome.add("hidden", event.me, f"points of {event.peer} come in the order of its rows")


def _on_the_wire(transcript: Transcript, ids: dict[str, list[str]], outcome: Outcome) -> None:
    """Check that messages contain neither ids nor values that follow from an id without a secret."""
    for name, party_ids in ids.items():
        canonical = canonical_ids(party_ids)
        known = set(_split(hash_to_group(canonical))) | {sha256(item).digest() for item in canonical}
        keys = set(_split(id_keys(canonical).tobytes(), 16))
        spelled = re.compile(b"\xa4(?:" + b"|".join(map(re.escape, canonical)) + b")")
        for event in transcript.received:
            if event.me == name:
                continue
            pieces = {piece for data in byte_fields(event.message) for size in (32, 16) for piece in _split(data, size)}
            text = encode_message(event.message)
            if pieces & (known | keys) or spelled.search(text):
                outcome.add("hidden", event.me, f"{type(event.message).__name__} holds ids of {name} without a blind")
                return


def _split(data: bytes, size: int = POINT_BYTES) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data) - size + 1, size)]


def granted() -> Outcome:
    """Check that a party that queries more ids than it was granted, or uses a larger store, learns nothing."""
    outcome = Outcome()
    for request, many in ((10, psi_work.MIN_ROWS_FOR_TRANSFERS), (3, 1)):
        ids = {"P0": [str(i) for i in range(request)], "P1": ["1", "2", "40"]}
        events: list[Event] = []

        def play(channel: Channel, ids: Mapping[str, Sequence[str]] = ids, many: int = many) -> None:
            canonical, leads = canonical_ids(ids[channel.me]), channel.me == "P0"
            work = psi_work.AlignmentWork(
                channel,
                canonical,
                active="P0",
                passives=["P1"],
                granted=None if leads else 3,
            )
            work.min_transfer_rows = many
            (psi.align_active if leads else psi.align_passive)(work)

        with suppress(LeakageError, PeerLost, ProtocolError):
            run_threads(dict.fromkeys(ids, play), WallClock, timeout=60.0, observe=events.append)
        sent = [event for event in events if event.me == "P1" and event.direction == "send"]
        if any(not isinstance(event.message, AlignmentHello | Abort) for event in sent):
            outcome.add("refusal", "P1", f"{request} ids are asked about where 3 were granted, and answered")
    return outcome


def points() -> Outcome:
    """Check that ids are hashed to points of the curve, and that other, non-canonical or
    small-order points are refused.
    """
    outcome = Outcome()
    try:
        curve.check_points(hash_to_group([b"%d" % i for i in range(64)]))
    except CryptoError:
        outcome.add("hidden", "curve", "hashed ids lie off the curve: each shows a bit that blinding keeps")
    twist = next(
        x.to_bytes(32, "little")
        for x in range(9, 99)
        if pow(x * (x * (x + curve._A) + 1), (curve._P - 1) // 2, curve._P) != 1
    )
    for what, point in (
        ("a point of the twist", twist),
        ("the point of order two", bytes(32)),
        ("a point that is not canonical", (curve._P + 9).to_bytes(32, "little")),
    ):
        try:
            curve.Blinder().blind(point)
        except (CryptoError, RuntimeError):
            continue
        outcome.add("refusal", "curve", f"{what} is blinded")
    return outcome


def blinders() -> Outcome:
    """Check that every blinder has a different scalar."""
    outcome = Outcome()
    base = hash_to_group([b"7"])
    if len({curve.Blinder().blind(base) for _ in range(8)}) < 8:
        outcome.add("fresh", "curve", "two blinders hold one scalar: alignments can be linked")
    order, _ = curve.sort_points(hash_to_group([b"%d" % i for i in range(32)]))
    other, _ = curve.sort_points(hash_to_group([b"%d" % i for i in reversed(range(32))]))
    if not np.array_equal(order, other):
        outcome.add("hidden", "curve", "the order of sorted points follows the order of rows")
    return outcome


def base_transfers_hide() -> Outcome:
    """Check that the chooser has the key it chose and no other, that its points are fresh, and that points outside the
    group are refused."""
    outcome = Outcome()
    offerer = base_transfers.BaseSender()
    secrets = [ot_extension.fresh_secret()[1] for _ in range(2)]
    if secrets[0] == secrets[1] or not 24 < sum(secrets[0]) < 104:  # tolerance of 7 standard errors
        outcome.add("fresh", "transfers", "the holder's choices are not random bits")
    points, keys = base_transfers.receive_keys(offerer.offer, secrets[0][:32])
    pairs = offerer.pairs(points)
    for choice, key, pair in zip(secrets[0], keys, pairs, strict=False):
        if key != pair[choice] or key == pair[not choice]:
            outcome.add("output", "transfers", "a choice did not give its key and that alone")
            break
    if len(set(_split(points))) < len(keys):
        outcome.add("hidden", "transfers", "equal choices send equal points, so the reply reveals them")
    for what, point in (("a point of small order", bytes(32)), ("the neutral point", b"\x01" + bytes(31))):
        try:
            base_transfers.receive_keys(point, [True])
        except CryptoError:
            continue
        except RuntimeError:  # the refusal of libsodium comes too late to name the sender
            pass
        outcome.add("refusal", "transfers", f"{what} passes as an offer")
    return outcome


def masks() -> Outcome:
    """Check that what asks is hidden, as without the masks of a vector OLE it would answer a stored id with its h, and
    that the taker lacks one leaf of each tree."""
    outcome = Outcome()
    keys, (giver, taker), hashing = id_keys([b"%d" % i for i in range(600)]), ends(), PrfHash(bytes(32))
    seed, store = okvs.encode(keys, hashing.target(keys))
    size = VoleSize(len(store), 16, 8)
    request = taker.ask(0, size, os.urandom(vole_pieces.choice_bytes(size)))
    answered, seeds = giver.answer(0, size, request)
    output = taker.take(0, size, answered)
    try:
        output.check(seeds.confirm(output.response))
    except CryptoError:
        outcome.add("output", "transfers", "a giver that keeps to the protocol is taken for one that does not")
    unknown = set(_split(seeds._leaves.tobytes(), 16)) - set(_split(output._leaves.tobytes(), 16))
    if len(unknown) != size.trees or unknown & set(_split(answered, 16)):
        outcome.add("hidden", "transfers", "the taker has every leaf of a tree")
    a, _ = output.outcome()
    if (okvs.decode(seed, keys, a ^ store)[0] == hashing.target(keys)).any():
        outcome.add("hidden", "transfers", "queries contain hashes of ids, which reveal the stored ids")
    return outcome


def strays() -> Outcome:
    """Check that trees with an altered sum are refused, and so is a confirmation of other trees."""
    outcome = Outcome()
    size = VoleSize(60, 16, 3)
    for at in (-1, -16 * size.trees):  # sums of leaves, which every receiver uses
        giver, taker = ends()
        request = taker.ask(0, size, os.urandom(vole_pieces.choice_bytes(size)))
        answered, seeds = giver.answer(0, size, request)
        altered = bytearray(answered)
        altered[at] ^= 1
        output = taker.take(0, size, bytes(altered))
        seeds._challenge = giver._public.challenge(0, request, bytes(altered))
        try:
            output.check(seeds.confirm(output.response))
        except CryptoError:
            continue
        outcome.add("refusal", "taker", "accepts trees with an altered sum")
    return outcome


def ends() -> tuple[VoleSender, VoleReceiver]:
    """Return both ends of a vector OLE, set up by base transfers."""
    offerer, coin = base_transfers.BaseSender(), os.urandom(32)
    secret, bits = ot_extension.fresh_secret()
    points, seeds = base_transfers.receive_keys(offerer.offer, bits)
    return VoleSender(secret, seeds, os.urandom(32), coin), VoleReceiver(offerer.pairs(points), coin)


CHECKS: dict[str, Callable[[], Outcome]] = {
    "alignment of two": lambda: alignment(2, 150),
    "alignment of three": lambda: alignment(3, 150),
    "alignment of two, many ids": lambda: many_ids(2),
    "alignment of three, many ids": lambda: many_ids(3),
    "transfers hide the other key": base_transfers_hide,
    "what asks is masked": masks,
    "altered trees are refused": strays,
    "granted ids are held to": granted,
    "points are on the curve": points,
    "blinders are fresh": blinders,
}

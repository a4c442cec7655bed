"""Checks on private alignment (protocols/psi.py): what is declared, what repeats, what order and points give away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import numpy as np

from securevfl.audit.checker import Outcome, check_transcript
from securevfl.audit.entropy import watched
from securevfl.audit.transcript import Transcript, Witness
from securevfl.audit.wire import byte_fields
from securevfl.channel import Channel, Event
from securevfl.clock import WallClock
from securevfl.codec import encode_message
from securevfl.crypto import curve
from securevfl.crypto.curve import POINT_BYTES, canonical_ids, hash_to_group
from securevfl.errors import CryptoError
from securevfl.protocols import psi
from securevfl.protocols.psi_work import Points
from securevfl.transport.threads import run_threads


def record_alignment(ids: Mapping[str, Sequence[str]]) -> tuple[Transcript, dict[str, list[str]]]:
    """Aligns these ids, the first party active; the transcript, and the rows each party ends with, as ids."""
    active, *passives = ids
    aligned: dict[str, list[str]] = {}

    def play(channel: Channel) -> None:
        me = channel.me
        work = psi.Work(channel, canonical_ids(ids[me]), active=active, passives=passives)
        rows = psi.align_active(work) if me == active else psi.align_passive(work)
        aligned[me] = [ids[me][row] for row in rows.tolist()]

    events: list[Event] = []
    run_threads(dict.fromkeys(ids, play), WallClock, timeout=60.0, observe=events.append)
    roles = {active: "active"} | dict.fromkeys(passives, "passive")
    return Transcript(events, roles, psi.declares(passives), Witness()), aligned


def _ids(parties: int) -> dict[str, list[str]]:
    return {f"P{k}": [str(1000 + i) for i in range(20 * k, 20 * k + 150)] for k in range(parties)}


def alignment(parties: int) -> Outcome:
    """Two alignments of the same ids: the result, the order of points, ids on the wire, and what repeats."""
    ids = _ids(parties)
    with watched() as draws:
        runs = [record_alignment(ids) for _ in range(2)]
    outcome = check_transcript(*(transcript for transcript, _ in runs)).merge(draws.outcome())
    common = set.intersection(*map(set, ids.values()))
    for transcript, aligned in runs:
        if any(set(rows) != common or rows != aligned["P0"] for rows in aligned.values()):
            outcome.add("output", "all", "the aligned rows are not the common ids in one order")
        _order(transcript, outcome)
        _on_the_wire(transcript, ids, outcome)
    return outcome


def _order(transcript: Transcript, outcome: Outcome) -> None:
    for event in transcript.received:
        if isinstance(event.message, Points):
            points = _split(event.message.points)
            if points != sorted(points):
                outcome.add("hidden", event.me, f"points of {event.peer} come in the order of its rows")


def _on_the_wire(transcript: Transcript, ids: dict[str, list[str]], outcome: Outcome) -> None:
    """Neither ids nor anything that can be made of an id without a secret."""
    for name, own in ids.items():
        canonical = canonical_ids(own)
        known = set(_split(hash_to_group(canonical))) | {sha256(item).digest() for item in canonical}
        for event in transcript.received:
            if event.me == name:
                continue
            pieces = {piece for data in byte_fields(event.message) for piece in _split(data)}
            text = encode_message(event.message)
            if pieces & known or any(b"\xa4" + item in text for item in canonical if len(item) == 4):
                outcome.add("hidden", event.me, f"{type(event.message).__name__} holds ids of {name} without a blind")
                return


def _split(data: bytes) -> list[bytes]:
    return [data[i : i + POINT_BYTES] for i in range(0, len(data) - POINT_BYTES + 1, POINT_BYTES)]


def points() -> Outcome:
    """Ids are hashed to points on the curve; points off it, not canonical or of small order are refused."""
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
    """Every blinder has a scalar of its own."""
    outcome = Outcome()
    base = hash_to_group([b"7"])
    if len({curve.Blinder().blind(base) for _ in range(8)}) < 8:
        outcome.add("fresh", "curve", "two blinders hold one scalar: alignments can be linked")
    order, _ = curve.sort_points(hash_to_group([b"%d" % i for i in range(32)]))
    other, _ = curve.sort_points(hash_to_group([b"%d" % i for i in reversed(range(32))]))
    if not np.array_equal(order, other):
        outcome.add("hidden", "curve", "the order of sorted points follows the order of rows")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "alignment of two": lambda: alignment(2),
    "alignment of three": lambda: alignment(3),
    "points are on the curve": points,
    "blinders are fresh": blinders,
}

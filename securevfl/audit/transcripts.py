"""The transcript checker: what each role received, held against what is declared.

A finding names the check that made it:

    declared    a message whose type is not declared from that role to that role
    plain       a plain value that is not what the sender put in; a handshake that says something else
    hidden      a value of someone's own inside a message that is not declared plain
    bare        a ciphertext that opens without a key
    fresh       randomness, a ciphertext, a mask or a key that occurs twice: in messages, parties or sessions
    uniform     bytes declared uniform or encrypted that are not
    difference  two masked messages of which the difference is not uniform: a mask was reused
    output      a sum or gradient other than declared, or an opening of more numbers than the party has parameters
    keys        a key that should have changed with the epoch and has not
    repeat      what should be the same in another job or try and is not
    count       something told that a ledger does not have
    shape       sizes or headers that differ between runs on other data
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.audit.findings import Finding
from securevfl.audit.message_bytes import (
    NO_BYTES,
    Body,
    array_fields,
    bodies,
    byte_fields,
    opened_numbers,
    public_moduli,
    raw,
)
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.statistics import Battery, uniform
from securevfl.protocols.bin_classes import LANE
from securevfl.protocols.declared import Circle, Declared, Reveal
from securevfl.protocols.seat import Meeting
from securevfl.runtime.channel import Event
from securevfl.runtime.codec import Message, encode_message

_TOLERANCE = 2e-3  # of a gradient, relative to its size; engines as their docstrings say
_WORD = 0.8  # of a count of rows that lie in a bin less those that do not, of which a word says every second one


_SUM_TOLERANCE = 2e-3


_TURN = 2.0**-20  # of a sum of phases: encrypted sums are rounded; less than the finest step of 16 bits


@dataclass
class Outcome:
    """What a check found, and how many p-values it looked at."""

    findings: list[Finding] = field(default_factory=list)
    tests: int = 0

    def add(self, check: str, who: str, what: str) -> None:
        self.findings.append(Finding(check, who, what))

    def statistics(self, check: str, who: str, battery: Battery) -> None:
        self.tests += len(battery)
        self.findings += [Finding(check, who, failure) for failure in battery.failures()]

    def merge(self, other: Outcome) -> Outcome:
        return Outcome(self.findings + other.findings, self.tests + other.tests)

    @property
    def clean(self) -> bool:
        return not self.findings


class ReceivedMessages:
    """A transcript's messages with their declarations and their bytes taken apart, each once."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        moduli = public_moduli(transcript.messages())
        self.items: list[tuple[Event, Reveal | None, list[Body]]] = []
        self._declared: dict[type[Message], Declared] = {}
        for event in transcript.received:
            declared = transcript.declaration(event)
            if declared is not None:
                self._declared[type(event.message)] = declared
            self.items.append(
                (event, declared.reveals if declared is not None else None, bodies(event.message, moduli))
            )

    def says(self, event: Event, fact: str) -> bool:
        """Whether a message is declared to be `structured`, to be one that `relays`, or one that is `renewed`."""
        declared = self._declared.get(type(event.message))
        return declared is not None and bool(getattr(declared, fact))


def check_transcript(*runs: Transcript) -> Outcome:
    """All checks on one or more runs of the same job; several runs show what is reused between sessions."""
    outcome = Outcome()
    everything = [ReceivedMessages(run) for run in runs]
    for received in everything:
        for check in CHECKS:
            check(received, outcome)
    fresh(everything, outcome)
    return outcome


def declared(received: ReceivedMessages, outcome: Outcome) -> None:
    for name, sender, receiver in dict.fromkeys(
        (type(event.message).__name__, event.peer, event.me) for event, reveals, _ in received.items if reveals is None
    ):
        outcome.add("declared", receiver, f"{name} from {sender} is not declared between these roles")


def plain(received: ReceivedMessages, outcome: Outcome) -> None:
    witness, parts = received.transcript.witness, received.transcript.witness.parts
    for event, reveals, _ in received.items:
        if reveals is None:
            continue
        kind = type(event.message).__name__
        own = [*parts[event.peer], *(g for g, _ in witness.residuals[event.peer])]
        own += [shown for what, shown in received.transcript.secrets.items() if what == f"the labels of {event.peer}"]
        if not own and event.peer in witness.sums:  # a party that puts nothing in itself: what it was told
            own = witness.sums[event.peer].totals
        for values in array_fields(event.message):
            if reveals.kind != "plain":
                outcome.add("plain", event.me, f"{kind} from {event.peer} holds numbers and is declared {reveals.kind}")
            elif not any(_same(values, value) for value in own):
                outcome.add("plain", event.me, f"{kind} from {event.peer} holds other numbers than {reveals.what}")
    # each `Meeting` says the same digest and rows at all, and no order that is not keyed by the session
    hellos = [event for event, *_ in received.items if isinstance(event.message, Meeting)]
    if len({(event.message.job, event.message.rows) for event in hellos if event.message.rows}) > 1:  # type: ignore[attr-defined]
        outcome.add("plain", "all", "parties of one run say different jobs or numbers of rows")


def _same(values: NDArray[Any], value: NDArray[Any]) -> bool:
    """Whether numbers in the clear are a value that went in, or a list of them the end of a longer column that did."""
    if values.ndim == 1 and value.ndim == 2 and value.shape[1] == 1 and len(value) > len(values) > 0:
        return np.array_equal(values, value[-len(values) :, 0])
    return values.shape == value.shape and np.array_equal(values, value)


def hidden(received: ReceivedMessages, outcome: Outcome) -> None:
    """No value that is someone's own inside what is not declared plain: as float64, float32 or fixed point."""
    patterns = _patterns(received.transcript)
    for event, reveals, _ in received.items:
        if reveals is None or reveals.kind == "plain":
            continue
        frame = encode_message(event.message)
        for what, owner, sought in patterns:
            if event.me != owner and any(pattern in frame for pattern in sought):
                name = type(event.message).__name__
                outcome.add("hidden", event.me, f"{name} from {event.peer}, declared {reveals.kind}, holds {what}")


def _patterns(transcript: Transcript) -> list[tuple[str, str, list[bytes]]]:
    witness, found = transcript.witness, []
    for name, parts in witness.parts.items():
        found.append((f"forward outputs of {name}", name, _pieces(parts)))
    for name, published in witness.residuals.items():
        found.append((f"residuals of {name}", name, _pieces([g for g, _ in published])))
    for name, clear in witness.clear.items():
        found.append((f"residuals of {name} before their defence", name, _pieces(clear)))
    for name, gradients in witness.gradients.items():
        found.append((f"the gradient of {name}", name, _pieces([learned.gradient for learned in gradients])))
    for what, values in transcript.secrets.items():
        found.append((what, what.rsplit(" ", 1)[-1], _pieces([values])))
    return found


def _pieces(arrays: Iterable[NDArray[Any]]) -> list[bytes]:
    found = []
    for array in arrays:
        flat = np.ascontiguousarray(array).ravel()
        for start in range(0, max(1, len(flat) - 3), max(3, len(flat) // 4)):
            piece = flat[start : start + 3]
            if len(piece) == 3 and len(np.unique(piece)) == 3:
                found += [piece.tobytes()] + ([piece.astype(np.float32).tobytes()] if piece.dtype.kind == "f" else [])
    return found


def bare(received: ReceivedMessages, outcome: Outcome) -> None:
    for event, reveals, parts in received.items:
        name = type(event.message).__name__
        if any(part.bare for part in parts):
            outcome.add("bare", event.me, f"{name} from {event.peer} holds ciphertexts 1 + mN, open to anyone")
        if reveals is not None and reveals.kind == "ciphertext" and any(part.form == "raw" for part in parts):
            engines = any(part.form in ("ciphertext", "key") for _, _, others in received.items for part in others)
            if engines and not received.says(event, "structured"):
                outcome.add("bare", event.me, f"{name} from {event.peer} is declared encrypted and has no such format")


def fresh(runs: Sequence[ReceivedMessages], outcome: Outcome) -> None:
    """One sender may send the same bytes to several receivers, once to each; nothing else occurs twice, in any run."""
    seen: dict[bytes, tuple[int, str, str, bool]] = {}
    for number, received in enumerate(runs):
        told: set[tuple[bytes, str]] = set()
        reported: set[tuple[str, str]] = set()
        for event, reveals, parts in received.items:
            if reveals is None or reveals.kind == "plain" or (reveals.kind == "public" and not parts):
                continue
            name = type(event.message).__name__
            for piece in (piece for part in parts for piece in part.fresh):
                relays = received.says(event, "relays")
                first = seen.setdefault(piece, (number, event.peer, name, relays))
                again = (piece, event.me) in told
                told.add((piece, event.me))
                relayed = first[0] == number and (relays or first[3])  # keys and shares on their second way
                if (first[:2] != (number, event.peer) and not relayed) or again:
                    if (name, event.me) not in reported:
                        where = "in another session" if first[0] != number else f"in a {first[2]} of {first[1]}"
                        outcome.add("fresh", event.me, f"{name} from {event.peer} repeats bytes that occur {where}")
                    reported.add((name, event.me))


def uniformity(received: ReceivedMessages, outcome: Outcome) -> None:
    grouped: dict[tuple[str, str], list[Body]] = defaultdict(list)
    counted: set[bytes] = set()  # one ciphertext may go to several parties
    for event, reveals, parts in received.items:
        frame = encode_message(event.message)
        if frame in counted:
            continue
        counted.add(frame)
        for part in () if received.says(event, "structured") else parts:  # the simulators take these
            covered = reveals is not None and reveals.kind in ("uniform", "ciphertext")
            if covered or part.form in ("ciphertext", "opened"):
                grouped[type(event.message).__name__, received.transcript.role(event.me, event.lane)].append(part)
    battery = Battery()
    for (name, role), parts in grouped.items():
        uniform(
            battery,
            f"{name} at the {role} party",
            np.concatenate([part.fractions for part in parts]),
            np.concatenate([part.low for part in parts]) if parts else NO_BYTES,
        )
    outcome.statistics("uniform", "all", battery)


def differences(received: ReceivedMessages, outcome: Outcome) -> None:
    """Masked messages minus one another: of one sender in turn, and of two that reach one receiver."""
    spaces = received.transcript.witness.spaces
    word = spaces[0].bits // 8 if spaces and isinstance(spaces[0], Circle) else 8
    streams: dict[tuple[str, str, str, str], list[NDArray[Any]]] = defaultdict(list)
    received_by: dict[str, list[NDArray[Any]]] = defaultdict(list)
    masked: set[tuple[str, str, str]] = set()
    for event, reveals, parts in received.items:
        data = [item for item in byte_fields(event.message) if len(item) % word == 0 and item]
        uniform_or_total = reveals is not None and reveals.kind in ("uniform", "output")
        if not uniform_or_total or not parts or any(part.form != "raw" for part in parts) or len(data) != 1:
            continue
        values = np.frombuffer(data[0], f"<u{word}")
        name = type(event.message).__name__
        streams[name, event.peer, event.me, event.lane].append(values)
        if reveals is not None and reveals.kind == "uniform":
            masked.add((name, event.me, event.lane))
            received_by[event.me].append(values)
    battery = Battery()

    def compare(name: str, pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        chunks = [a - b for a, b in pairs if a.shape == b.shape]
        if chunks:
            body = raw(np.concatenate(chunks).astype(f"<u{word}").tobytes(), word)
            uniform(battery, name, body.fractions, body.low)

    for (name, sender, receiver, lane), arrays in streams.items():
        several = sum(1 for key in streams if (key[0], *key[2:]) == (name, receiver, lane)) > 1
        if (name, receiver, lane) in masked or several:
            compare(f"{name} of {sender} in turn", pairwise(arrays))
    for receiver, arrays in received_by.items():
        compare(f"messages to {receiver}", ((a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 : i + 6]))
    outcome.statistics("difference", "all", battery)


def outputs(received: ReceivedMessages, outcome: Outcome) -> None:
    transcript = received.transcript
    witness = transcript.witness
    for collector, summed in witness.sums.items():
        for number, (total, space) in enumerate(zip(summed.totals, summed.spaces, strict=True)):
            parts = [own[number] for own in summed.parts.values() if len(own) > number]
            if _wrong_total(parts, total, space):
                outcome.add("output", collector, "collected another sum than that of the parts")
                break
    for name, published in witness.residuals.items():
        if transcript.defended and len(witness.clear[name]) < len(published):
            outcome.add("output", name, "publishes residuals that no defence has blurred")
    for name in transcript.roles.others(transcript.roles.lead):
        for learned, miss in transcript.missed(name):
            J = learned.J.dense
            within = _TOLERANCE * max(1.0, np.abs(J).max()) * max(1.0, len(J) / 100)
            if np.abs(miss).max() > (_WORD if learned.lane == LANE else within):
                outcome.add("output", name, "learned another gradient than J^T g")
                break
    _openings(received, outcome)


def _wrong_total(parts: Sequence[NDArray[Any]], total: NDArray[Any], space: Any) -> bool:
    if isinstance(space, Circle):
        exact = np.sum([part.astype(np.uint64) for part in parts], axis=0)
        apart = (exact - total.astype(np.uint64)) % np.uint64(2**space.bits)
        return bool(np.minimum(apart, (~apart + np.uint64(1)) % np.uint64(2**space.bits)).max() > _TURN * 2**space.bits)
    exact = np.sum(parts, axis=0)
    return bool(exact.shape != total.shape or np.abs(exact - total).max() > _SUM_TOLERANCE)


def _openings(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that a party has opened no more numbers than its p a residual, once each."""
    told: dict[str, list[int]] = defaultdict(list)
    for event, _, parts in received.items:
        told[event.me] += [count for count in map(opened_numbers, parts) if count is not None]
    for name, counts in told.items():
        allowed = [learned.gradient.size for learned in received.transcript.witness.gradients[name]]
        if sum(counts) > sum(allowed):
            outcome.add("output", name, f"{sum(counts)} numbers were opened where {sum(allowed)} are declared")


def keys(received: ReceivedMessages, outcome: Outcome) -> None:
    transcript = received.transcript
    epochs = len(transcript.witness.epochs)
    if not transcript.rotates or epochs < 2:
        return
    for name in transcript.roles.others(transcript.roles.lead):
        got = {
            byte_fields(event.message)[0]
            for event, *_ in received.items
            if event.me == name and received.says(event, "renewed")
        }
        if got and len(got) < epochs:
            outcome.add("keys", name, f"{len(got)} keys in {epochs} epochs; the engine asks for one an epoch")


def same_shape(a: Transcript, b: Transcript) -> Outcome:
    """Two runs of one job on tables of one shape: every message the same size, every header the same."""
    outcome = Outcome()
    shapes = []
    for run in (a, b):
        received = ReceivedMessages(run)
        by_receiver: dict[tuple[str, str, str], list[Any]] = defaultdict(list)
        for event, _, parts in received.items:
            headers = tuple(part.header for part in parts)
            by_receiver[event.me, event.peer, event.lane].append((type(event.message).__name__, event.nbytes, headers))
        shapes.append(by_receiver)
    for place in shapes[0] | shapes[1]:
        for first, second in zip(shapes[0].get(place, []), shapes[1].get(place, []), strict=False):
            if first != second:
                outcome.add("shape", place[0], f"the size or the header of {first[0]} from {place[1]} follows the data")
                break
        if len(shapes[0].get(place, [])) != len(shapes[1].get(place, [])):
            outcome.add("shape", place[0], f"the number of messages from {place[1]} follows the data")
    return outcome


CHECKS: list[Callable[[ReceivedMessages, Outcome], None]] = [
    declared,
    plain,
    hidden,
    bare,
    uniformity,
    differences,
    outputs,
    keys,
]

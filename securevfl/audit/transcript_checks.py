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
from securevfl.audit.message_bytes import Body, array_fields, bodies, byte_fields, opened_numbers, public_moduli, raw
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.statistics import Battery, add_uniformity_tests
from securevfl.protocols.bin_classes import EVIDENCE_SUBCHANNEL
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.handshake import RunHello
from securevfl.protocols.number_spaces import Circle
from securevfl.runtime.codec import encode_message
from securevfl.runtime.observer import Event

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


@dataclass(frozen=True)
class ReadMessage:
    """A message that came, what is declared of it, if anything, and its bytes taken apart."""

    event: Event
    declared: MessageDeclaration | None
    parts: list[Body]

    @property
    def name(self) -> str:
        return type(self.event.message).__name__

    @property
    def kind(self) -> str:
        """What kind of thing it is declared to reveal; empty if nothing is declared."""
        return "" if self.declared is None else self.declared.reveals.kind

    @property
    def said(self) -> str:
        """The message and its sender, for a finding."""
        return f"{self.name} from {self.event.peer}"


class ReceivedMessages:
    """A transcript's messages with their declarations and their bytes taken apart, each once."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript, self.protocol_record = transcript, transcript.protocol_record
        moduli = public_moduli(transcript.messages())
        self.items = [
            ReadMessage(event, transcript.declaration(event), bodies(event.message, moduli))
            for event in transcript.received
        ]


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
    for said, receiver in dict.fromkeys((item.said, item.event.me) for item in received.items if not item.kind):
        outcome.add("declared", receiver, f"{said} is not declared between these roles")


def plain(received: ReceivedMessages, outcome: Outcome) -> None:
    witness, parts = received.protocol_record, received.protocol_record.parts
    for item in received.items:
        if item.declared is None:
            continue
        peer, me = item.event.peer, item.event.me
        own = [*parts[peer], *(g for g, _ in witness.residuals[peer])]
        own += [shown for what, shown in received.transcript.secrets.items() if what == f"the labels of {peer}"]
        if not own and peer in witness.sums:  # a party that puts nothing in itself: what it was told
            own = witness.sums[peer].totals
        for values in array_fields(item.event.message):
            if item.kind != "plain":
                outcome.add("plain", me, f"{item.said} holds numbers and is declared {item.kind}")
            elif not any(_same(values, value) for value in own):
                outcome.add("plain", me, f"{item.said} holds other numbers than {item.declared.reveals.what}")
    # each `RunHello` says the same digest and rows at all, and no order that is not keyed by the session
    hellos = [item.event.message for item in received.items if isinstance(item.event.message, RunHello)]
    if len({(hello.job, hello.rows) for hello in hellos if hello.rows}) > 1:
        outcome.add("plain", "all", "parties of one run say different jobs or numbers of rows")


def _same(values: NDArray[Any], value: NDArray[Any]) -> bool:
    """Whether numbers in the clear are a value that went in, or a list of them the end of a longer column that did."""
    if values.ndim == 1 and value.ndim == 2 and value.shape[1] == 1 and len(value) > len(values) > 0:
        return np.array_equal(values, value[-len(values) :, 0])
    return values.shape == value.shape and np.array_equal(values, value)


def hidden(received: ReceivedMessages, outcome: Outcome) -> None:
    """No value that is someone's own inside what is not declared plain: as float64, float32 or fixed point."""
    witness = received.protocol_record
    arrays: dict[tuple[str, str], list[NDArray[Any]]] = {
        **{(f"forward outputs of {name}", name): parts for name, parts in witness.parts.items()},
        **{(f"residuals of {name}", name): [g for g, _ in told] for name, told in witness.residuals.items()},
        **{(f"residuals of {name} before their defence", name): [*clear] for name, clear in witness.clear.items()},
        **{
            (f"the gradient of {name}", name): [learned.gradient for learned in gradients]
            for name, gradients in witness.gradients.items()
        },
        **{(what, what.rsplit(" ", 1)[-1]): [values] for what, values in received.transcript.secrets.items()},
    }
    patterns = [(what, owner, _pieces(values)) for (what, owner), values in arrays.items()]
    for item in received.items:
        if item.kind in ("", "plain"):
            continue
        frame = encode_message(item.event.message)
        for what, owner, sought in patterns:
            if item.event.me != owner and any(pattern in frame for pattern in sought):
                outcome.add("hidden", item.event.me, f"{item.said}, declared {item.kind}, holds {what}")


def _pieces(arrays: Iterable[NDArray[Any]]) -> list[bytes]:
    pieces = []
    for array in arrays:
        flat = np.ascontiguousarray(array).ravel()
        for start in range(0, max(1, len(flat) - 3), max(3, len(flat) // 4)):
            piece = flat[start : start + 3]
            if len(piece) == 3 and len(np.unique(piece)) == 3:
                pieces += [piece.tobytes()] + ([piece.astype(np.float32).tobytes()] if piece.dtype.kind == "f" else [])
    return pieces


def bare(received: ReceivedMessages, outcome: Outcome) -> None:
    engines = any(part.form in ("ciphertext", "key") for item in received.items for part in item.parts)
    for item in received.items:
        if any(part.bare for part in item.parts):
            outcome.add("bare", item.event.me, f"{item.said} holds ciphertexts 1 + mN, open to anyone")
        raw_parts = item.kind == "ciphertext" and any(part.form == "raw" for part in item.parts)
        if raw_parts and engines and item.declared is not None and not item.declared.structured:
            outcome.add("bare", item.event.me, f"{item.said} is declared encrypted and has no such format")


def fresh(runs: Sequence[ReceivedMessages], outcome: Outcome) -> None:
    """One sender may send the same bytes to several receivers, once to each; nothing else occurs twice, in any run."""
    seen: dict[bytes, tuple[int, str, str, bool]] = {}
    for number, received in enumerate(runs):
        told: set[tuple[bytes, str]] = set()
        reported: set[tuple[str, str]] = set()
        for item in received.items:
            if item.declared is None or item.kind == "plain" or (item.kind == "public" and not item.parts):
                continue
            peer, me, relays = item.event.peer, item.event.me, item.declared.relays
            for piece in (piece for part in item.parts for piece in part.fresh):
                first = seen.setdefault(piece, (number, peer, item.name, relays))
                again = (piece, me) in told
                told.add((piece, me))
                relayed = first[0] == number and (relays or first[3])  # keys and shares on their second way
                if (first[:2] != (number, peer) and not relayed) or again:
                    if (item.name, me) not in reported:
                        where = "in another session" if first[0] != number else f"in a {first[2]} of {first[1]}"
                        outcome.add("fresh", me, f"{item.said} repeats bytes that occur {where}")
                    reported.add((item.name, me))


def uniformity(received: ReceivedMessages, outcome: Outcome) -> None:
    grouped: dict[tuple[str, str], list[Body]] = defaultdict(list)
    counted: set[bytes] = set()  # one ciphertext may go to several parties
    for item in received.items:
        frame = encode_message(item.event.message)
        if frame in counted:
            continue
        counted.add(frame)
        if item.declared is None or not item.declared.structured:  # the simulators take these
            role = received.transcript.role(item.event.me, item.event.subchannel)
            covered = item.kind in ("uniform", "ciphertext")
            grouped[item.name, role] += [
                part for part in item.parts if covered or part.form in ("ciphertext", "opened")
            ]
    battery = Battery()
    for (name, role), parts in grouped.items():
        if parts:
            fractions = np.concatenate([part.fractions for part in parts])
            add_uniformity_tests(
                battery, f"{name} at the {role} party", fractions, np.concatenate([part.low for part in parts])
            )
    outcome.statistics("uniform", "all", battery)


def differences(received: ReceivedMessages, outcome: Outcome) -> None:
    """Masked messages minus one another: of one sender in turn, and of two that reach one receiver."""
    word = word_bytes(received.transcript)
    streams: dict[tuple[str, str, str, str], list[NDArray[Any]]] = defaultdict(list)
    received_by: dict[str, list[NDArray[Any]]] = defaultdict(list)
    masked: set[tuple[str, str, str]] = set()
    for item in received.items:
        event, parts = item.event, item.parts
        data = [field for field in byte_fields(event.message) if len(field) % word == 0 and field]
        raw_alone = bool(parts) and len(data) == 1 and all(part.form == "raw" for part in parts)
        if not raw_alone or item.kind not in ("uniform", "output"):
            continue
        values = np.frombuffer(data[0], f"<u{word}")
        streams[item.name, event.peer, event.me, event.subchannel].append(values)
        if item.kind == "uniform":
            masked.add((item.name, event.me, event.subchannel))
            received_by[event.me].append(values)
    battery = Battery()

    def compare(name: str, pairs: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        chunks = [a - b for a, b in pairs if a.shape == b.shape]
        if chunks:
            body = raw(np.concatenate(chunks).astype(f"<u{word}").tobytes(), word)
            add_uniformity_tests(battery, name, body.fractions, body.low)

    for (name, sender, receiver, subchannel), arrays in streams.items():
        several = sum(1 for key in streams if (key[0], *key[2:]) == (name, receiver, subchannel)) > 1
        if (name, receiver, subchannel) in masked or several:
            compare(f"{name} of {sender} in turn", pairwise(arrays))
    for receiver, arrays in received_by.items():
        compare(f"messages to {receiver}", ((a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 : i + 6]))
    outcome.statistics("difference", "all", battery)


def word_bytes(run: Transcript) -> int:
    """Return how many bytes a masked word of the run's sums has."""
    spaces = run.protocol_record.spaces
    return spaces[0].bits // 8 if spaces and isinstance(spaces[0], Circle) else 8


def outputs(received: ReceivedMessages, outcome: Outcome) -> None:
    transcript, witness = received.transcript, received.protocol_record
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
            if np.abs(miss).max() > (_WORD if learned.subchannel == EVIDENCE_SUBCHANNEL else within):
                outcome.add("output", name, "learned another gradient than J^T g")
                break
    # no party has opened more numbers than its p a residual, once each
    told: dict[str, list[int]] = defaultdict(list)
    for item in received.items:
        told[item.event.me] += [count for count in map(opened_numbers, item.parts) if count is not None]
    for name, counts in told.items():
        allowed = sum(learned.gradient.size for learned in witness.gradients[name])
        if sum(counts) > allowed:
            outcome.add("output", name, f"{sum(counts)} numbers were opened where {allowed} are declared")


def _wrong_total(parts: Sequence[NDArray[Any]], total: NDArray[Any], space: Any) -> bool:
    if isinstance(space, Circle):
        exact = np.sum([part.astype(np.uint64) for part in parts], axis=0)
        apart = (exact - total.astype(np.uint64)) % np.uint64(2**space.bits)
        return bool(np.minimum(apart, (~apart + np.uint64(1)) % np.uint64(2**space.bits)).max() > _TURN * 2**space.bits)
    exact = np.sum(parts, axis=0)
    return bool(exact.shape != total.shape or np.abs(exact - total).max() > _SUM_TOLERANCE)


def keys(received: ReceivedMessages, outcome: Outcome) -> None:
    transcript, epochs = received.transcript, len(received.protocol_record.epochs)
    if not transcript.rotates or epochs < 2:
        return
    for name in transcript.roles.others(transcript.roles.lead):
        got = {
            byte_fields(item.event.message)[0]
            for item in received.items
            if item.event.me == name and item.declared is not None and item.declared.renewed
        }
        if got and len(got) < epochs:
            outcome.add("keys", name, f"{len(got)} keys in {epochs} epochs; the engine asks for one an epoch")


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

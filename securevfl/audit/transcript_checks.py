"""The transcript checks: the messages that each role received in a run, compared with their declarations.

A transcript is the list of all messages of a run. Each check has a name, which its findings state:
    declared    a message whose type is not declared from that role to that role
    plain       a plain value that differs from the sender's input, or handshakes that differ
    hidden      another party's secret inside a message that is not declared plain
    bare        a ciphertext that anyone can read without a key
    fresh       randomness, a ciphertext, a mask or a key that occurs twice, in messages, at parties or in sessions
    uniform     bytes that are declared uniform or encrypted but are not uniform
    difference  two masked messages whose difference is not uniform, because a mask was reused
    output      a sum or gradient other than declared, or an opening of more numbers than the party has weights
    keys, repeat, count, shape    an unchanged key; a value that should repeat; an uncounted disclosure; other sizes
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
from securevfl.audit.piece_search import PieceSearch
from securevfl.audit.recording.transcript import Transcript
from securevfl.audit.statistics import Battery, add_uniformity_tests
from securevfl.protocols.bin_classes import EVIDENCE_SUBCHANNEL
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.handshake import RunHello
from securevfl.protocols.number_spaces import Circle
from securevfl.runtime.codec import encode_message
from securevfl.runtime.observer import Event

_GRADIENT_TOLERANCE = 2e-3  # largest error of a gradient relative to its size, as the encryption engines document
_COUNT_TOLERANCE = 0.8  # largest error of a message with a class count; it contains twice the count
_SUM_TOLERANCE = 2e-3
_PHASE_TOLERANCE = 2.0**-20  # largest error, in turns, of an encrypted sum of phases, which are rounded


@dataclass
class Outcome:
    """The findings of checks, and the number of p-values that the checks computed."""

    findings: list[Finding] = field(default_factory=list)
    tests: int = 0

    def add(self, check: str, party: str, problem: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(check, party, problem))

    def statistics(self, check: str, party: str, battery: Battery) -> None:
        """Add the failures of a battery of tests as findings."""
        self.tests += len(battery)
        self.findings += [Finding(check, party, failure) for failure in battery.failures()]

    def merge(self, other: Outcome) -> Outcome:
        """Return an outcome with the findings and p-values of both."""
        return Outcome(self.findings + other.findings, self.tests + other.tests)

    @property
    def clean(self) -> bool:
        """Whether the checks have found nothing."""
        return not self.findings


@dataclass(frozen=True)
class ParsedMessage:
    """A received message, its declaration if there is one, and its parsed bytes."""

    event: Event
    declared: MessageDeclaration | None
    parts: list[Body]

    @property
    def name(self) -> str:
        """The name of the message's type."""
        return type(self.event.message).__name__

    @property
    def kind(self) -> str:
        """The kind of information that the message is declared to reveal; empty without a declaration."""
        return "" if self.declared is None else self.declared.reveals.kind

    @property
    def origin(self) -> str:
        """The type and the sender of the message, for findings."""
        return f"{self.name} from {self.event.peer}"


class ReceivedMessages:
    """The messages of a transcript with their declarations and their parsed bytes."""

    def __init__(self, transcript: Transcript) -> None:
        self.transcript, self.protocol_record = transcript, transcript.protocol_record
        moduli = public_moduli(transcript.messages())
        self.items = [
            ParsedMessage(event, transcript.declaration(event), bodies(event.message, moduli))
            for event in transcript.received
        ]


def check_transcript(*runs: Transcript) -> Outcome:
    """Run all checks on one or more runs of the same job; several runs show reuse between sessions."""
    outcome = Outcome()
    all_runs = [ReceivedMessages(run) for run in runs]
    for received in all_runs:
        for check in TRANSCRIPT_CHECKS:
            check(received, outcome)
    fresh(all_runs, outcome)
    return outcome


def declared(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that every message type is declared between these roles."""
    for origin, receiver in dict.fromkeys((item.origin, item.event.me) for item in received.items if not item.kind):
        outcome.add("declared", receiver, f"{origin} is not declared between these roles")


def plain(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that plain values are inputs of their sender, and that all handshakes agree."""
    record, parts = received.protocol_record, received.protocol_record.parts
    for item in received.items:
        if item.declared is None:
            continue
        peer, me = item.event.peer, item.event.me
        inputs = [*parts[peer], *(g for g, _ in record.residuals[peer])]
        secrets = received.transcript.secrets
        inputs += [values for description, values in secrets.items() if description == f"the labels of {peer}"]
        if not inputs and peer in record.sums:  # a party without inputs sends on the totals that it has collected
            inputs = record.sums[peer].totals
        for values in array_fields(item.event.message):
            if item.kind != "plain":
                outcome.add("plain", me, f"{item.origin} contains numbers but is declared {item.kind}")
            elif not any(_same(values, value) for value in inputs):
                outcome.add("plain", me, f"{item.origin} contains other numbers than {item.declared.reveals.what}")
    # every party's `RunHello` must state the same job and number of rows, and a row order keyed by the session
    hellos = [item.event.message for item in received.items if isinstance(item.event.message, RunHello)]
    if len({(hello.job, hello.rows) for hello in hellos if hello.rows}) > 1:
        outcome.add("plain", "all", "the parties of one run state different jobs or numbers of rows")


def _same(values: NDArray[Any], value: NDArray[Any]) -> bool:
    """Return whether numbers in the clear equal an input.

    A message may also contain only the last rows of an input with one column.
    """
    if values.ndim == 1 and value.ndim == 2 and value.shape[1] == 1 and len(value) > len(values) > 0:
        return np.array_equal(values, value[-len(values) :, 0])
    return values.shape == value.shape and np.array_equal(values, value)


def hidden(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that no message contains another party's secret in the clear, unless it is declared plain."""
    record = received.protocol_record
    arrays: dict[tuple[str, str], list[NDArray[Any]]] = {
        **{(f"forward outputs of {name}", name): parts for name, parts in record.parts.items()},
        **{(f"residuals of {name}", name): [g for g, _ in published] for name, published in record.residuals.items()},
        **{
            (f"residuals of {name} before their defence", name): [*values] for name, values in record.undefended.items()
        },
        **{
            (f"the gradient of {name}", name): [learned.gradient for learned in gradients]
            for name, gradients in record.gradients.items()
        },
        **{(secret, secret.rsplit(" ", 1)[-1]): [values] for secret, values in received.transcript.secrets.items()},
    }
    patterns = [(secret, owner, _pieces(values)) for (secret, owner), values in arrays.items()]
    search = PieceSearch(piece for _, _, pieces in patterns for piece in pieces)
    for item in received.items:
        if item.kind in ("", "plain"):
            continue
        frame = encode_message(item.event.message)
        if not search.may_contain(frame):
            continue
        for secret, owner, pieces in patterns:
            if item.event.me != owner and any(piece in frame for piece in pieces):
                outcome.add("hidden", item.event.me, f"{item.origin}, declared {item.kind}, contains {secret}")


def _pieces(arrays: Iterable[NDArray[Any]]) -> list[bytes]:
    """Return the bytes of a few sequences of three different numbers from each array."""
    pieces = []
    for array in arrays:
        flat = np.ascontiguousarray(array).ravel()
        for start in range(0, max(1, len(flat) - 3), max(3, len(flat) // 4)):
            piece = flat[start : start + 3]
            if len(piece) == 3 and len(np.unique(piece)) == 3:
                pieces += [piece.tobytes()] + ([piece.astype(np.float32).tobytes()] if piece.dtype.kind == "f" else [])
    return pieces


def bare(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that ciphertexts are randomised, and that encrypted fields have the format of a ciphertext."""
    engines = any(part.form in ("ciphertext", "key") for item in received.items for part in item.parts)
    for item in received.items:
        if any(part.bare for part in item.parts):
            outcome.add("bare", item.event.me, f"{item.origin} contains ciphertexts 1 + mN, which anyone can decrypt")
        raw_parts = item.kind == "ciphertext" and any(part.form == "raw" for part in item.parts)
        if raw_parts and engines and item.declared is not None and not item.declared.structured:
            outcome.add("bare", item.event.me, f"{item.origin} is declared encrypted but has no format of a ciphertext")


def fresh(runs: Sequence[ReceivedMessages], outcome: Outcome) -> None:
    """Check that no single-use bytes occur twice in any run; a sender may send them once to each receiver."""
    first_use: dict[bytes, tuple[int, str, str, bool]] = {}
    for number, received in enumerate(runs):
        sent: set[tuple[bytes, str]] = set()
        reported: set[tuple[str, str]] = set()
        for item in received.items:
            if item.declared is None or item.kind == "plain" or (item.kind == "public" and not item.parts):
                continue
            peer, me, relays = item.event.peer, item.event.me, item.declared.relays
            for piece in (piece for part in item.parts for piece in part.fresh):
                first = first_use.setdefault(piece, (number, peer, item.name, relays))
                again = (piece, me) in sent
                sent.add((piece, me))
                relayed = first[0] == number and (relays or first[3])  # a key or share that a party forwards to others
                if (first[:2] != (number, peer) and not relayed) or again:
                    if (item.name, me) not in reported:
                        where = "in another session" if first[0] != number else f"in a {first[2]} of {first[1]}"
                        outcome.add("fresh", me, f"{item.origin} repeats bytes that occur {where}")
                    reported.add((item.name, me))


def uniformity(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that bytes which are declared uniform or encrypted are uniform."""
    grouped: dict[tuple[str, str], list[Body]] = defaultdict(list)
    counted: set[bytes] = set()  # a ciphertext that goes to several parties is tested once
    for item in received.items:
        frame = encode_message(item.event.message)
        if frame in counted:
            continue
        counted.add(frame)
        if item.declared is None or not item.declared.structured:  # structured messages are tested by the simulators
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
    """Check that differences of masked messages, of one sender or to one receiver, are uniform."""
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
            compare(f"consecutive {name} of {sender}", pairwise(arrays))
    for receiver, arrays in received_by.items():
        compare(f"messages to {receiver}", ((a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 : i + 6]))
    outcome.statistics("difference", "all", battery)


def word_bytes(run: Transcript) -> int:
    """Return the number of bytes of each masked number in the run's sums."""
    spaces = run.protocol_record.spaces
    return spaces[0].bits // 8 if spaces and isinstance(spaces[0], Circle) else 8


def outputs(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that sums and gradients are as declared, and that no party opened more numbers than it may."""
    transcript, record = received.transcript, received.protocol_record
    for collector, sums in record.sums.items():
        for number, (total, space) in enumerate(zip(sums.totals, sums.spaces, strict=True)):
            parts = [values[number] for values in sums.parts.values() if len(values) > number]
            if _wrong_total(parts, total, space):
                outcome.add("output", collector, "collected a total that is not the sum of the parts")
                break
    for name, published in record.residuals.items():
        if transcript.defended and len(record.undefended[name]) < len(published):
            outcome.add("output", name, "published residuals without a defence")
    for name in transcript.roles.others(transcript.roles.lead):
        for learned, error in transcript.gradient_errors(name):
            J = learned.J.dense
            within = _GRADIENT_TOLERANCE * max(1.0, np.abs(J).max()) * max(1.0, len(J) / 100)
            if np.abs(error).max() > (_COUNT_TOLERANCE if learned.subchannel == EVIDENCE_SUBCHANNEL else within):
                outcome.add("output", name, "learned a gradient other than J^T g")
                break
    # a party may open p numbers (one for each of its weights) for each residual
    opened: dict[str, list[int]] = defaultdict(list)
    for item in received.items:
        opened[item.event.me] += [count for count in map(opened_numbers, item.parts) if count is not None]
    for name, counts in opened.items():
        allowed = sum(learned.gradient.size for learned in record.gradients[name])
        if sum(counts) > allowed:
            outcome.add("output", name, f"{sum(counts)} numbers were opened, but {allowed} are declared")


def _wrong_total(parts: Sequence[NDArray[Any]], total: NDArray[Any], space: Any) -> bool:
    """Return whether a total differs from the sum of its parts by more than rounding in its number space allows."""
    if isinstance(space, Circle):
        exact = np.sum([part.astype(np.uint64) for part in parts], axis=0)
        difference = (exact - total.astype(np.uint64)) % np.uint64(2**space.bits)
        return bool(
            np.minimum(difference, (~difference + np.uint64(1)) % np.uint64(2**space.bits)).max()
            > _PHASE_TOLERANCE * 2**space.bits
        )
    exact = np.sum(parts, axis=0)
    return bool(exact.shape != total.shape or np.abs(exact - total).max() > _SUM_TOLERANCE)


def keys(received: ReceivedMessages, outcome: Outcome) -> None:
    """Check that keys which should change in every epoch have done so."""
    transcript, epochs = received.transcript, len(received.protocol_record.epochs)
    if not transcript.rotates or epochs < 2:
        return
    for name in transcript.roles.others(transcript.roles.lead):
        received_keys = {
            byte_fields(item.event.message)[0]
            for item in received.items
            if item.event.me == name and item.declared is not None and item.declared.renewed
        }
        if received_keys and len(received_keys) < epochs:
            outcome.add(
                "keys", name, f"received {len(received_keys)} keys in {epochs} epochs; the engine requires one an epoch"
            )


TRANSCRIPT_CHECKS: list[Callable[[ReceivedMessages, Outcome], None]] = [
    declared,
    plain,
    hidden,
    bare,
    uniformity,
    differences,
    outputs,
    keys,
]

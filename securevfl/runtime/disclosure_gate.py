"""The disclosure gate: a party's data leaves only under a record that states which values the receiver learns.

    permit = channel.permit(DisclosureRecord("bank", "columns", H.size, 64, about=("shop",)))
    channel.send("bank", Part(H), subchannel, permit=permit)

A message that reveals more than random bits and ciphertexts is a `DisclosingMessage`, which a channel sends only with a
*permit*. `permit` stores the record first, so the record exists before the first byte leaves:
1. The party's *recorder* stores the record, or refuses it (`securevfl.consent.ledger_session` writes it to disk).
2. An observer in this process receives the record, and then the message is sent.

A message must not contain more bits than its record states, since every bit may reveal something. A number that is sent
several times or forwarded needs one record, from the party that contributes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ProtocolError
from securevfl.runtime.codec import Message

Subject = Literal["labels", "columns", "scores", "codes", "ids", "phases", "keys", "sizes", "verdicts", "digests"]
NUMERIC_SUBJECTS: frozenset[Subject] = frozenset({"labels", "columns", "scores", "phases"})
Group = Literal["training", "held out", "new", "bins", "weights", "correlations", "evaluations", "verdicts"]


@dataclass(frozen=True)
class DisclosureRecord:
    """One disclosure: the receiver `to` may read `numbers` values of `bits` bits each about the parties `about`.

    The kinds are:

        labels    values derived from labels: residuals, and products of residuals with columns
        columns   values derived from columns: forward outputs and their sums
        scores    scores of rows that the receiver requested
        codes     the columns that contribute most to requested rows, under names that their owner chose
        ids       membership of ids in a table
        phases    phases of random features of columns
        keys      keys that decrypt other parties' values
        sizes     numbers of rows, and versions
        verdicts  decisions that depend on the progress of a training, such as to stop it
        digests   keyed digests of rows

    Attributes:
        to: the party that receives the values.
        kind: one of the kinds above, which states what the values are derived from.
        numbers: the number of values.
        bits: bits of each value.
        about: the parties whose data the values are derived from.
        group: the rows that the values are about: "training", "held out" or "new" rows. Some values have a group of
            their own. "bins" (class counts of the bins of columns), "weights" and "correlations" are about all rows.
            "evaluations" (values about the rows on which a model is measured) is counted in bits if `kind` is
            "columns". "verdicts" (decisions) are about the measured rows, because a malicious peer can make a decision
            depend on single labels.
        iteration: the iteration that the party was in, counted from 1; 0 before the first.
        max_bytes: upper bound on the size of the message in bytes if its values are blinded, encrypted or
            authenticated; 0 if they are sent as they are.
    """

    to: str
    kind: Subject
    numbers: int
    bits: int
    about: tuple[str, ...] = ()
    group: Group = "training"
    iteration: int = 0
    max_bytes: int = 0


class DisclosurePermit:
    """Permission to send the values that a record describes. Only the gate that issued it accepts it."""

    __slots__ = ("gate", "record")

    def __init__(self, gate: DisclosureGate, record: DisclosureRecord) -> None:
        self.gate = gate
        self.record = record


class DisclosingMessage(Message, frozen=True):
    """A message that reveals more than random bits and ciphertexts to one of its receivers.

    Attributes:
        extra_bits: upper bound on the bits of digests and names that the message contains in addition to its values.
    """

    extra_bits: ClassVar[int] = 0

    @property
    def bits(self) -> int:
        """Total size of the arrays and byte strings of the message, in bits."""
        return sum(8 * _size(getattr(self, name)) for name in self.__struct_fields__)


def _size(value: Any) -> int:
    """Return the size in bytes of a field of a message: an array or a byte string; 0 for all other values."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, bytes) else 0


DisclosureRecorder = Callable[[DisclosureRecord, int], None]
"""A function of a record and of the total number of values with its kind and receiver. It stores the record, or raises
an error to refuse it."""


class DisclosureGate:
    """Issues the permits for everything that one party discloses. It is thread-safe.

    Args:
        me: name of the party.
        note: called with every record after the recorder has accepted it.

    Attributes:
        me: name of the party.
        iteration: the latest iteration that this party has begun, counted from 1.
        totals: number of values disclosed so far, by (kind, receiver, `about`, `group`).
    """

    def __init__(self, me: str, note: Callable[[DisclosureRecord], None] = lambda record: None) -> None:
        self.me = me
        self.iteration = 0
        self.totals: dict[tuple[Subject, str, tuple[str, ...], Group], int] = {}
        self._note = note
        self._recorder: DisclosureRecorder | None = None
        self._thread_state = threading.local()
        self._lock = threading.Lock()

    def record_with(self, recorder: DisclosureRecorder | None) -> None:
        """Pass every later record to this recorder before its permit is issued; None removes the recorder."""
        with self._lock:
            self._recorder = recorder

    def begin_iteration(self, iteration: int) -> None:
        """Record that this party begins an iteration, counted from 1."""
        self.iteration = max(self.iteration, iteration)

    @contextmanager
    def about_rows(self, group: Group) -> Iterator[None]:
        """Within a `with` block, give this thread's records this group instead of "training", the default."""
        previous = self.group
        self._thread_state.group = group
        try:
            yield
        finally:
            self._thread_state.group = previous

    @property
    def group(self) -> Group:
        """The group that the innermost `about_rows` of this thread assigns; "training" outside of any."""
        return getattr(self._thread_state, "group", "training")

    def permit(self, record: DisclosureRecord) -> DisclosurePermit:
        """Record a disclosure and return the permit to send it.

        An error of the recorder propagates to the caller, which must not send anything then.
        """
        group = self.group if record.group == "training" else record.group
        record = replace(record, group=group, iteration=self.iteration)
        key = (record.kind, record.to, record.about, group)
        with self._lock:
            total = self.totals.get(key, 0) + record.numbers
            if self._recorder is not None:
                self._recorder(record, total)
            self.totals[key] = total
        self._note(record)
        return DisclosurePermit(self, record)

    def check(self, message: Message, permit: DisclosurePermit | None) -> None:
        """Check that a message may be sent under this permit.

        Raise ProtocolError if the message needs a permit and has none, if the permit is of another gate, or if the
        message is larger than its record states.
        """
        kind = type(message).__name__
        if permit is not None and permit.gate is not self:
            raise ProtocolError(
                f"{self.me}: a permit of {permit.gate.me} was used to send a {kind}",
                "use a permit of the sending party's channel",
                code="SVFL-DISCLOSURE-UNDECLARED",
            )
        if permit is None and isinstance(message, DisclosingMessage):
            raise ProtocolError(
                f"{self.me}: a {kind} discloses values and has no permit",
                "declare them: channel.send(..., permit=channel.permit(DisclosureRecord(...)))",
                code="SVFL-DISCLOSURE-UNDECLARED",
            )
        if permit is None or not isinstance(message, DisclosingMessage):
            return
        record = permit.record
        if record.kind not in NUMERIC_SUBJECTS:
            return
        max_bytes = record.max_bytes or ShareRing(min(64, record.bits)).size(record.numbers)
        if message.bits > message.extra_bits + 8 * max_bytes:
            raise ProtocolError(
                f"{self.me}: a {kind} has more bits than its record, which states {record.numbers:,} numbers of "
                f"{record.bits} bits",
                "record all values that the message contains",
                code="SVFL-DISCLOSURE-UNDECLARED",
            )

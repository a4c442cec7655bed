"""A party's gate: whatever another party may read of its data leaves under an entry that says what it tells.

    told = channel.permit(DisclosureRecord("bank", "columns", H.size, 64, about=("shop",)))
    channel.send("bank", Part(H), subchannel, permit=permit)

A message that reveals more than random bits and ciphertexts is a `DisclosingMessage` one, and no channel sends it
without what
`permit` has handed out. So an entry is made before the first byte leaves: the party's account takes it, which may
refuse (`securevfl.consent.ledger_session` writes it to disk), then whoever observes the party in this process is
given it,
and only then the message goes. It has no more bits than its entry: a receiver may have chosen what each row is
multiplied by, so a number tells as much as it has bits. What is blinded, sealed or marked is longer than its numbers,
and has as many octets as its layout says. A number that leaves in several messages, or goes round by others as sums
do, needs one entry; the party that gives the number makes it.
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

Subject = Literal[
    "labels", "columns", "scores", "codes", "ids", "phases", "losses", "keys", "sizes", "verdicts", "digests"
]

NUMBERS: frozenset[Subject] = frozenset({"labels", "columns", "scores", "phases", "losses"})

Group = Literal["training", "held out", "new", "bins", "weights", "correlations", "verdicts"]


@dataclass(frozen=True)
class DisclosureRecord:
    """What leaves at one time: `numbers` of `bits` each about the data of the parties `about`, which `to` may read.

    labels    numbers that follow from labels: residuals, and products of residuals with columns
    columns   numbers that follow from columns: forward outputs, and their sums
    scores    numbers f of rows that were asked about
    codes     which columns weigh most in rows that were asked about, under names of their owner's
    ids       whether ids are in a table
    phases    phases of random features of columns
    losses    sums of losses, and counts of rows beside them
    keys      keys that open what somebody else gives
    sizes, verdicts, digests   numbers of rows and versions; how a training goes; keyed digests of rows

    group: the rows they are about, where the party knows; bins, weights and correlations are about all, and verdicts
    about those that are evaluated, by labels that a peer which deviates has the metric hang on. visit:
    the visit to a batch that this party was at, from 1; 0 before the first. octets: of its message at most, by a public
    layout, where numbers are blinded or sealed, or have checks or marks beside them; 0 where they go as they are.
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
    """Permit to send the values that a record describes. Only the gate that issued it accepts it."""

    __slots__ = ("gate", "record")

    def __init__(self, gate: DisclosureGate, record: DisclosureRecord) -> None:
        self.gate = gate
        self.record = record


class DisclosingMessage(Message, frozen=True):
    """A message that reveals, to anyone it may go to, more than random bits and ciphertexts: see `MessageDeclaration`.

    extra_bits: how many bits it has at most beside numbers that follow from data, such as marks and keyed digests.
    """

    extra_bits: ClassVar[int] = 0

    @property
    def bits(self) -> int:
        """The bits of its arrays and octets."""
        return sum(8 * _octets(getattr(self, name)) for name in self.__struct_fields__)


def _octets(value: Any) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes) else 0


DisclosureRecorder = Callable[[DisclosureRecord, int], None]


class DisclosureGate:
    """The one place where all that a party tells others leaves. Safe to use from several threads.

    visit: to a batch, the last that this party has begun, from 1. totals: numbers told so far by kind, receiver, whose
    data and rows.
    """

    def __init__(self, me: str, note: Callable[[DisclosureRecord], None] = lambda entry: None) -> None:
        """note: is given every entry once it is made."""
        self.me = me
        self.iteration = 0
        self.totals: dict[tuple[Subject, str, tuple[str, ...], Group], int] = {}
        self._note = note
        self._account: DisclosureRecorder | None = None
        self._where = threading.local()
        self._one = threading.Lock()

    def record_with(self, account: DisclosureRecorder | None) -> None:
        """Has every entry from now on taken by an account first, with the number told so far of its like; by none any
        more if None.
        """
        with self._one:
            self._account = account

    def begin_iteration(self, iteration: int) -> None:
        """Note that this party goes on to a visit to a batch, numbered from 1."""
        self.iteration = max(self.iteration, iteration)

    @contextmanager
    def about_rows(self, group: Group) -> Iterator[None]:
        """Mark what this thread tells inside the block as about these rows, unless its entry names others."""
        before = self.group
        self._where.group = group
        try:
            yield
        finally:
            self._where.group = before

    @property
    def group(self) -> Group:
        """The rows that this thread tells about."""
        return getattr(self._where, "group", "training")

    def permit(self, entry: DisclosureRecord) -> DisclosurePermit:
        """Enters it, and lets it be sent. What the account raises goes through: nothing may be sent then."""
        group = self.group if entry.group == "training" else entry.group
        entry = replace(entry, group=group, iteration=self.iteration)
        key = (entry.kind, entry.to, entry.about, group)
        with self._one:
            total = self.totals.get(key, 0) + entry.numbers
            if self._account is not None:
                self._account(entry, total)
            self.totals[key] = total
        self._note(entry)
        return DisclosurePermit(self, entry)

    def check(self, message: Message, permit: DisclosurePermit | None) -> None:
        """ProtocolError if the message tells something, and nothing was entered for it at this gate."""
        if permit is not None and permit.gate is not self:
            raise ProtocolError(f"{self.me}: an entry of this party's own gate was expected, {permit.gate.me}'s came")
        if permit is None and isinstance(message, DisclosingMessage):
            raise ProtocolError(
                f"{self.me}: a {type(message).__name__} tells something and was to be sent without an entry; say what "
                "it tells: channel.send(..., permit=channel.permit(DisclosureRecord(...)))"
            )
        if permit is None or not isinstance(message, DisclosingMessage) or permit.record.kind not in NUMBERS:
            return
        entry = permit.record
        octets = entry.max_bytes or ShareRing(min(64, entry.bits)).size(entry.numbers)
        if message.bits > message.extra_bits + 8 * octets:
            raise ProtocolError(
                f"{self.me}: a {type(message).__name__} was to be sent of more bits than its entry has, which is "
                f"{entry.numbers:,} numbers of {entry.bits} bits; enter what it tells"
            )

"""One session of a run in a party's disclosure ledger: checked and reserved before it discloses anything.

The ledger lists what all runs have disclosed of a party's data. A run has one *session*, or several if it is resumed. A
session *enters* (counts) disclosures in the ledger for some *steps* (iterations or rounds) in advance, and reduces
these entries at its end to what was sent. The *disclosure gate* of a party sees each disclosure before it is sent.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from securevfl.consent.forecast import disclosures_about
from securevfl.consent.leak_check import check_leaks, describe_excused
from securevfl.data.register import Register
from securevfl.data.schedule import count_subset_epochs
from securevfl.disclosure.counts import Disclosure, RunShape, in_column_bits
from securevfl.disclosure.identities import identity_of
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import DISCLOSURE_KINDS, sum_sessions
from securevfl.errors import DataError, DataNotice, ProtocolError, StorageError
from securevfl.job import Job
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosureRecord

LEASED_ITERATIONS = 16
"""Minimum number of steps (iterations) for which disclosures are entered in advance, unless the ledger sets another."""


class SessionId(NamedTuple):
    """Identifies a session of a run.

    Attributes:
        run: name of the run.
        session: name of the session within the run; a resumed run has several.
        start: number of steps that earlier sessions of the run have done; None if this is the first session.
        trained: the session that trained the model, if the training is complete.
    """

    run: str
    session: str = ""
    start: int | None = None
    trained: str = ""


class LedgerSession:
    """One session of a run at one party. Create it before anything is disclosed.

    From then on, everything that passes the party's disclosure gate is entered in the ledger before it is sent. Without
    a ledger, only the job is checked.

    Args:
        ledger: the party's ledger, or None.
        party: name of the party.
        register: the ids of its table.
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        sizes: public sizes of the run: numbers of rows, batches, model outputs and columns of each party.
        gate: the party's disclosure gate.
        session: the names of the run and of this session.
        consent: asks this party's people, after ledger and leak checks have allowed the job. It raises an error if they
            do not agree.

    Raises:
        LeakageError: if the job does not accept its leaks, including those of earlier runs and sessions, or if the run
            would exceed a limit of the ledger.
        DataError: if the ledger cannot be used.
    """

    def __init__(
        self,
        ledger: DisclosureLedger | None,
        party: str,
        register: Register,
        job: Job,
        sizes: RunShape,
        gate: DisclosureGate,
        session: SessionId,
        consent: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._session = session.run, session.session
        self._opened_session = session.trained or session.session
        self._party = party
        self._register = register
        self._job = job
        self._sizes = sizes
        self._gate = gate
        self._resumed = session.start is not None
        self._start = self._leased_until = session.start or 0
        self._end = max(self._start, sizes.epochs * sizes.batches)
        self._leased_numbers: dict[object, int] = {}
        self._opens_weights = False
        self._last_lease = self._start, time.monotonic()
        if ledger is None:
            excused = check_leaks(job, sizes, together=True)
            if excused and party == sizes.active:
                warnings.warn(describe_excused(excused), DataNotice, stacklevel=2)
            consent()
            return
        everything = self._expected(self._end, weights=True)
        ledger.check_admission(register, self._session, everything, self._check)
        consent()
        ahead = self._expected_until(self._start + (ledger.leased_iterations or LEASED_ITERATIONS))
        everything = self._expected(self._end, weights=True)
        self._reservation = ledger.reserve(register, self._session, everything, self._check, ahead=ahead)
        self._note_lease(ahead)
        gate.record_with(self._enter)

    def check(self, sizes: RunShape) -> None:
        """Check the job again, after this party has learned more about its columns, such as their bins.

        Args:
            sizes: the public sizes of the run.

        Raises:
            LeakageError: if a leak check refuses the job.
        """
        before = list[LedgerEntry]()
        if self._ledger is not None:
            before = self._ledger.counted_for(self._register, but=self._session)
        check_leaks(self._job, sizes, self._before(before))

    def record_disconnect(self) -> None:
        """Record that the peers disconnected before the session was complete.

        If nothing else was disclosed to them, they have still learned that this party accepted the job. This is one
        bit, and it is entered.
        """
        if self._ledger is not None and not any(key[0] in DISCLOSURE_KINDS for key in self._gate.totals):
            self._ledger.record_early_abort(self._peers())

    def settle(self, *, silent: bool) -> None:
        """Close the session, successful or not, and remove what was entered in advance but not disclosed.

        If the ledger cannot be written now, these entries remain.

        Args:
            silent: True if this party has sent nothing in this session, for example because another party refused the
                job.
        """
        if self._ledger is None:
            return
        # threads that still answer other parties must not disclose anything after this
        self._gate.record_with(self._refuse)
        disclosures = []
        if not silent:
            done = max(self._start + 1, self._gate.iteration)
            disclosures = self._disclosed(self._expected(done, weights=self._opens_weights))
        with suppress(DataError, StorageError):
            self._reservation.settle(disclosures)

    def _weights_identity(self, learner: str) -> str:
        """Return a digest that identifies the weights that this run discloses to a party, the same in every session."""
        return identity_of("weights", self._session[0], self._opened_session, learner)

    def _peers(self) -> set[str]:
        return {*self._sizes.columns, *self._sizes.helpers} - {self._party}

    def _check(self, before: Sequence[LedgerEntry]) -> None:
        check_leaks(self._job, self._sizes, self._before(before))

    def _before(self, entries: Sequence[LedgerEntry]) -> list[Disclosure]:
        """Return the disclosures of earlier runs and earlier sessions of this run, which count for this session.

        Equations about labels that earlier sessions of this run disclosed in steps that this session does not repeat
        are left out, because they are about the residuals of other steps.
        """
        counting, of_this_run = list[Disclosure](), list[Disclosure]()
        weights = {self._weights_identity(peer) for peer in self._peers()}
        for entry in entries:
            same_run = entry.run == self._session[0]
            if entry.disclosure.identity in weights:
                continue  # these weights were disclosed before, so sending them again discloses nothing new
            if same_run and entry.disclosure.steps is not None:
                of_this_run.append(entry.disclosure)
            elif same_run and entry.disclosure.group == "bins":
                counting.append(replace(entry.disclosure, steps=(0, 0)))  # entries of other runs have None
            else:
                counting.append(replace(entry.disclosure, steps=None))
        for key in dict.fromkeys(item.key for item in of_this_run):
            same_key = [item for item in of_this_run if item.key == key and not item.identity]
            to_come = [item for item in same_key if item.steps is not None and item.steps[1] > self._start]
            if to_come:
                count, share = sum_sessions(to_come)
                capacity = max(1, round(count / share)) if share else 0
                counting.append(replace(to_come[0], count=count, capacity=capacity))
        return counting

    def _enter(self, record: DisclosureRecord, total: int) -> None:
        """Enter a disclosure, and in advance those of the next steps, unless an earlier call has entered it already.

        The disclosure gate calls this before each message that discloses something.
        """
        if record.kind not in DISCLOSURE_KINDS or self._party not in record.about:
            return
        key = (record.kind, record.to, record.about, record.group)
        if record.iteration <= self._leased_until and total <= self._leased_numbers.get(key, -1):
            return
        self._opens_weights |= record.group == "weights"
        done = max(record.iteration, self._start + 1)
        until = done + self._steps_in_advance(done)
        before, steps = self._leased_numbers.get(key, 0), max(1, until - done)
        disclosures = []
        for item in self._expected_until(until):
            numbers = max(item.numbers, self._leased_numbers.get(item.key, 0))
            if item.key == key:
                numbers = max(item.numbers, total, before + steps * record.numbers)
            disclosures.append(replace(item, numbers=numbers))
        if not any(item.key == key for item in disclosures):
            disclosures.append(_unexpected(record, total))
        self._reservation.lease(disclosures)
        self._leased_until = max(self._leased_until, min(until, self._end))
        self._note_lease(disclosures)

    def _steps_in_advance(self, done: int) -> int:
        """Return the number of steps for which disclosures are entered in advance.

        The ledger may set this number. Otherwise it is at least `LEASED_ITERATIONS`, and grows with the number of steps
        that this session has done.
        """
        if self._ledger is not None and self._ledger.leased_iterations is not None:
            return self._ledger.leased_iterations
        return max(LEASED_ITERATIONS, (done - self._start) // 4, self._pace(done))

    def _pace(self, step: int) -> int:
        """Return how many steps take about half a second. Entering them together keeps writes to the ledger rare."""
        now, (before, since) = time.monotonic(), self._last_lease
        self._last_lease = step, now
        return int(0.5 * (step - before) / max(now - since, 1e-3))

    def _refuse(self, record: DisclosureRecord, total: int) -> None:
        """Refuse any further disclosure. The gate calls this once the session is settled."""
        if record.kind in DISCLOSURE_KINDS and self._party in record.about:
            raise ProtocolError(
                f"{self._party}: a message with data was to be sent after this party's part of the run had ended",
                code="SVFL-STATE",
                party=self._party,
            )

    def _note_lease(self, disclosures: Sequence[Disclosure]) -> None:
        self._leased_numbers = {item.key: item.numbers for item in disclosures}

    def _disclosed(self, expected: Sequence[Disclosure]) -> list[Disclosure]:
        """Return the expected disclosures with the numbers of values that were sent, and all unexpected ones."""
        totals = {
            key: numbers
            for key, numbers in self._gate.totals.items()
            if key[0] in DISCLOSURE_KINDS and self._party in key[2]
        }
        disclosures = []
        for item in expected:
            sent = totals.get(item.key, 0)
            if item.group == "verdicts":
                item = replace(item, count=STOP_DECISION_BITS * sent)
            elif item.numbers and (in_column_bits(item) or (item.kind == "scores" and item.count == item.numbers)):
                item = replace(item, count=sent)  # this party is the only sender, so the count is what it has sent
            disclosures.append(replace(item, numbers=sent))
        return disclosures + [
            _unexpected(DisclosureRecord(key[1], key[0], numbers, 64, key[2], key[3]), numbers)
            for key, numbers in totals.items()
            if not any(item.key == key for item in expected)
        ]

    def _expected_until(self, step: int) -> list[Disclosure]:
        return self._expected(min(self._end, step), weights=self._opens_weights)

    def _expected(self, until: int, *, weights: bool) -> list[Disclosure]:
        """Return what this session discloses about this party if it proceeds to a step.

        Args:
            until: number of that step, counted from the beginning of the run. An epoch that has begun counts in full,
                and so does the final evaluation.
            weights: whether to count the weights that the job discloses at its end.

        Returns:
            The disclosures. Those with the same `key` (kind, receiver, parties, group) are added up.
        """
        job, sizes = self._job, self._sizes
        epochs = max(1, -(-until // sizes.batches) - self._start // sizes.batches)
        fraction = min(1.0, max(1, until - self._start) / (epochs * sizes.batches))
        shorter_job = job.model_copy(update={"epochs": epochs})
        # a shorter run would use subsets in other epochs, so its evaluations would be others
        subset_epochs = count_subset_epochs(sizes.rows, sizes.epochs, job.batch_size)
        shorter = replace(sizes, epochs=epochs, start=self._start, resumed=self._resumed, subset_epochs=subset_epochs)
        expected = dict[object, Disclosure]()
        for item in disclosures_about(self._party, shorter_job, shorter):
            if (item.group == "bins" and self._resumed) or (item.group == "weights" and not weights):
                continue
            same_every_epoch = (
                item.kind == "labels" and item.group == "training" and job.equations == 1 and not item.identity
            )
            numbers = ceil(item.numbers * fraction) if item.group == "training" else item.numbers
            steps = (self._start, max(self._start + 1, until)) if same_every_epoch else None
            count, other = item.count, expected.get(item.key)
            if other is not None:
                count, numbers = count + other.count, numbers + other.numbers
            identity = self._weights_identity(item.learner) if item.group == "weights" else item.identity
            expected[item.key] = replace(item, count=count, numbers=numbers, steps=steps, identity=identity)
        return list(expected.values())


def _unexpected(record: DisclosureRecord, numbers: int) -> Disclosure:
    """Return a disclosure for values that were sent although the protocol family does not list them as outputs."""
    kind = next(kind for kind in DISCLOSURE_KINDS if kind == record.kind)
    return Disclosure(kind, record.to, record.about, numbers, 0, group=record.group, numbers=numbers)

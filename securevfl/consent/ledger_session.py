"""A run's place in a party's disclosure ledger: foretold and guarded before it tells anything, entered as it goes,
settled at its end.
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
from securevfl.consent.leak_guard import describe_leaks, guard
from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.limits import DISCLOSURE_KINDS, sum_sessions
from securevfl.errors import DataError, DataNotice, ProtocolError, StorageError
from securevfl.job import Job
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.runtime.disclosure_gate import DisclosureGate, DisclosureRecord

LEASED_ITERATIONS = 16  # visits at least that are entered at a time


class SessionId(NamedTuple):
    """Which session of which run. start: the visits that are done already where it is taken up again, None where it
    begins. trained: the session in which its model was trained, where nothing of the training is left to do."""

    run: str
    session: str = ""
    start: int | None = None
    trained: str = ""


class LedgerSession:
    """One session of a run at `party`, whose table has this register. Without a ledger the job is guarded by itself.

    Made before anything is told. consent: asks this party's people, once ledger and guards let the job through; it
    raises to take no part. LeakageError if the job's leaks, with those of earlier runs and sessions, are not accepted,
    or if the run would exceed a limit of the ledger; DataError if the ledger cannot be used. From then on what goes
    through the party's gate is entered before it leaves, some visits ahead.
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
        self._weights = f"weights of {session.run} {session.trained or session.session}"
        self._party = party
        self._register = register
        self._job = job
        self._sizes = sizes
        self._gate = gate
        self._resumed = session.start is not None
        self._start = self._ahead = session.start or 0
        self._end = max(self._start, sizes.epochs * sizes.batches)
        self._numbers: dict[object, int] = {}
        self._opens = False
        self._leased = self._start, time.monotonic()
        if ledger is None:
            agreed = guard(job, sizes, together=True)
            if agreed and party == sizes.active:
                warnings.warn(describe_leaks(agreed), DataNotice, stacklevel=2)
            consent()
            return
        ledger.check_admission(register, self._session, self._list_told(self._end, weights=True), self._check)
        consent()
        ahead = self._until(self._start + LEASED_ITERATIONS)
        whole = self._list_told(self._end, weights=True)
        self._reservation = ledger.reserve(register, self._session, whole, self._check, ahead=ahead)
        self._take(ahead)
        gate.record_with(self._enter)

    def check(self, sizes: RunShape) -> None:
        """Check the job once more, by what this party knows of its columns now. LeakageError if a guard refuses it."""
        before = [] if self._ledger is None else self._ledger.counted_for(self._register, but=self._session)
        guard(self._job, sizes, self._before(before))

    def record_disconnect(self) -> None:
        """Enter that peers have broken off: where they were told nothing, that they were let through is what they have,
        and is not entered otherwise."""
        if self._ledger is not None and not any(key[0] in DISCLOSURE_KINDS for key in self._gate.totals):
            self._ledger.record_early_abort({*self._sizes.columns, *self._sizes.helpers} - {self._party})

    def settle(self, *, silent: bool) -> None:
        """End the session, which went well or not: what was entered ahead of what it told is taken back.

        silent: this party has sent nothing since it was entered, as when another one has refused. What cannot be
        written now stays as it was entered, which is more.
        """
        if self._ledger is None:
            return
        self._gate.record_with(self._over)  # a thread that still serves others tells nothing that is not entered
        told = (
            []
            if silent
            else self._exact(self._list_told(max(self._start + 1, self._gate.iteration), weights=self._opens))
        )
        with suppress(DataError, StorageError):
            self._reservation.settle(told)

    def _check(self, before: Sequence[LedgerEntry]) -> None:
        guard(self._job, self._sizes, self._before(before))

    def _before(self, entries: Sequence[LedgerEntry]) -> list[Disclosure]:
        """List what counts beside this session.

        Of equations that earlier sessions of this run opened, those of the visits that are still to come.
        """
        found, spans = list[Disclosure](), list[Disclosure]()
        for entry in entries:
            own = entry.run == self._session[0]
            if entry.disclosure.basis == self._weights:
                continue  # the same words of the same shares, whatever others make of it
            if own and entry.disclosure.visits is not None:
                spans.append(entry.disclosure)
            elif own and entry.disclosure.group == "bins":
                found.append(replace(entry.disclosure, visits=(0, 0)))  # asked once more, by this job and no other
            else:
                found.append(replace(entry.disclosure, visits=None))
        for like in dict.fromkeys(item.key for item in spans):
            items = [item for item in spans if item.key == like and item.visits is not None and not item.basis]
            left = [item for item in items if item.visits is not None and item.visits[1] > self._start]
            if left:
                count, share = sum_sessions(left)
                found.append(replace(left[0], count=count, capacity=max(1, round(count / share)) if share else 0))
        return found

    def _enter(self, entry: DisclosureRecord, total: int) -> None:
        """Enter ahead, as the account of the gate, what is not entered yet."""
        if entry.kind not in DISCLOSURE_KINDS or self._party not in entry.about:
            return
        key = (entry.kind, entry.to, entry.about, entry.group)
        if entry.iteration <= self._ahead and total <= self._numbers.get(key, -1):
            return
        self._opens |= entry.group == "weights"
        done = max(entry.iteration, self._start + 1)
        to = done + max(LEASED_ITERATIONS, (done - self._start) // 4, self._pace(done))
        before, visits = self._numbers.get(key, 0), max(1, to - done)
        told = [
            replace(item, numbers=max(item.numbers, total, before + visits * entry.numbers) if item.key == key else n)
            for item in self._until(to)
            for n in [max(item.numbers, self._numbers.get(item.key, 0))]
        ]
        if not any(item.key == key for item in told):
            told.append(_unforeseen(entry, total))
        self._reservation.lease(told)
        self._ahead = max(self._ahead, min(to, self._end))
        self._take(told)

    def _pace(self, visit: int) -> int:
        """How many visits this party has begun in half a second lately: so few writes are no burden to fast rounds."""
        now, (before, since) = time.monotonic(), self._leased
        self._leased = visit, now
        return int(0.5 * (visit - before) / max(now - since, 1e-3))

    def _over(self, entry: DisclosureRecord, total: int) -> None:
        """Refuse, as the account of the gate once the session is settled, to tell anything more."""
        if entry.kind in DISCLOSURE_KINDS and self._party in entry.about:
            raise ProtocolError(f"{self._party}: nothing more was expected to be told, as its part in the run is over")

    def _take(self, told: Sequence[Disclosure]) -> None:
        self._numbers = {item.key: item.numbers for item in told}

    def _exact(self, told: Sequence[Disclosure]) -> list[Disclosure]:
        """Return the same entries with as many numbers as have left, and what nobody foresaw beside."""
        totals = {
            key: n for key, n in self._gate.totals.items() if key[0] in DISCLOSURE_KINDS and self._party in key[2]
        }
        found = [replace(item, numbers=totals.get(item.key, 0)) for item in told]
        found = [replace(e, count=STOP_DECISION_BITS * e.numbers) if e.group == "verdicts" else e for e in found]
        return found + [
            _unforeseen(DisclosureRecord(key[1], key[0], n, 64, key[2], key[3]), n)
            for key, n in totals.items()
            if not any(item.key == key for item in told)
        ]

    def _until(self, visit: int) -> list[Disclosure]:
        return self._list_told(min(self._end, visit), weights=self._opens)

    def _list_told(self, until: int, *, weights: bool) -> list[Disclosure]:
        """List what this session tells of this party up to visits `until`, in whole epochs, and in the evaluation at
        its end; `weights`: and those that the job opens when it has ended."""
        job, sizes = self._job, self._sizes
        epochs = max(1, -(-until // sizes.batches) - self._start // sizes.batches)
        part = min(1.0, max(1, until - self._start) / (epochs * sizes.batches))
        found = dict[object, Disclosure]()
        for item in disclosures_about(
            self._party, job.model_copy(update={"epochs": epochs}), replace(sizes, epochs=epochs, resumed=self._resumed)
        ):
            if (item.group == "bins" and self._resumed) or (item.group == "weights" and not weights):
                continue
            stays = item.kind == "labels" and item.group == "training" and job.equations == 1 and not item.basis
            numbers = ceil(item.numbers * part) if item.group == "training" else item.numbers
            visits = (self._start, max(self._start + 1, until)) if stays else None
            same = found.get(item.key)
            count, numbers = (
                (item.count, numbers) if same is None else (item.count + same.count, numbers + same.numbers)
            )
            basis = self._weights if item.group == "weights" else item.basis
            found[item.key] = replace(item, count=count, numbers=numbers, visits=visits, basis=basis)
        return list(found.values())


def _unforeseen(entry: DisclosureRecord, numbers: int) -> Disclosure:
    """Return the entry for what left though no method counted on it, as it is."""
    kind = next(each for each in DISCLOSURE_KINDS if each == entry.kind)
    return Disclosure(kind, entry.to, entry.about, numbers, 0, group=entry.group, numbers=numbers)

"""A run's place in a party's disclosure ledger: foretold, then guarded and entered before it tells anything, settled at
its end.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from securevfl.data.register import Register
from securevfl.disclosure.counts import Disclosure, Sizes
from securevfl.disclosure.ledger import DisclosureLedger, Entry, told_to
from securevfl.disclosure.limits import total
from securevfl.errors import DataError, StorageError
from securevfl.job import Job
from securevfl.privacy.leaks import guard


class Booking:
    """One run of a job at `party`, whose table has this register. Without a ledger the job is guarded by itself.

    Made before anything is told. LeakageError if the job's leaks, with those of earlier runs, are not accepted, or if
    the run would exceed a limit of the ledger; DataError if the ledger cannot be used.
    """

    def __init__(
        self,
        ledger: DisclosureLedger | None,
        run: str,
        party: str,
        register: Register,
        job: Job,
        sizes: Sizes,
        *,
        again: int = 0,
        sitting: str = "",
    ) -> None:
        """again: visits to a batch that tell new numbers since the run is taken up again (`Method.visits_again`);
        sitting: what is new in each session, if there are any."""
        self._ledger = ledger
        self._run = run
        self._party = party
        self._register = register
        self._job = job
        self._sizes = sizes
        self._former: list[Disclosure] = []
        self._again = ""
        if ledger is None:
            guard(job, sizes)
        else:
            told, more = self._told(job.epochs), self._told_again(again)
            self._former = ledger.book(register, run, told, lambda before: guard(job, sizes, [*before, *more]))
            if more:
                self._again = f"{run} again {sitting}"
                ledger.book(register, self._again, more)

    def check(self, sizes: Sizes) -> None:
        """The job once more, by what this party knows of its columns now. LeakageError."""
        before = [] if self._ledger is None else self._ledger.read().about(self._register.name, but=self._run)
        guard(self._job, sizes, [entry.told for entry in before])

    def settle(self, rounds: int, *, silent: bool) -> None:
        """The run has ended, well or not, after so many whole rounds, and perhaps some of the next one.

        silent: this party has sent nothing since it was entered, as when another one has refused. What an earlier try
        at the same run told stays. What cannot be written now stays as it was entered, which is more.
        """
        if self._ledger is None:
            return
        now = [] if silent else self._told(min(self._job.epochs, rounds // self._sizes.batches + 1))
        most = {replace(item, count=0): item for item in self._former}
        for item in now:
            same = replace(item, count=0)
            most[same] = max(most.get(same, item), item, key=lambda each: each.count)
        with suppress(DataError, StorageError):
            self._ledger.settle(self._run, list(most.values()))
            if silent:
                self._ledger.settle(self._again, [])

    def _told_again(self, visits: int) -> list[Disclosure]:
        """What so many visits to a batch tell beside the run: of each sum the rows that most is told about."""
        whole = {replace(item, count=0): item.count for item in self._told(self._job.epochs)}
        most: dict[tuple[str, tuple[str, ...]], Disclosure] = {}
        for item in self._told(self._job.epochs + visits):
            more = replace(item, count=item.count - whole.get(replace(item, count=0), 0))
            if item.kind == "columns" and more.count > 0:
                most[item.learner, item.about] = max(most.get((item.learner, item.about), more), more, key=_count)
        return list(most.values())

    def _told(self, epochs: int) -> list[Disclosure]:
        """What a run of so many epochs tells of this party."""
        job, sizes = self._job.model_copy(update={"epochs": epochs}), replace(self._sizes, epochs=epochs)
        return _about(self._party, job, sizes)


@dataclass(frozen=True)
class Outlook:
    """What a party's ledger says to a job: what runs have told `before`, its `lines` for people, and why not."""

    before: list[Entry]
    lines: list[str]
    refusals: list[str]


def foretell(ledger: DisclosureLedger, party: str, register: Register, job: Job, sizes: Sizes) -> Outlook:
    """What was told of this party before and would be with this job, by its ledger, in which nothing is entered."""
    told = _about(party, job, sizes)
    before, refusals = ledger.foresee(register, told)
    limits, lines = ledger.read().limits, []
    for kind, learner in dict.fromkeys((item.kind, item.learner) for item in told):
        so_far = told_to(before, kind, learner)
        new = [(entry.run, entry.told) for entry in before] + [("this job", item) for item in told]
        after = total(pair for pair in new if (pair[1].kind, pair[1].learner) == (kind, learner))
        runs = f"{so_far.runs} run{'s' * (so_far.runs != 1)}"
        limit = f"; at most {limits[kind]}" if kind in limits else ""
        lines.append(f"  {learner:<9} was told {so_far.of(kind)} in {runs}, with this job {after}{limit}")
    return Outlook(before, lines, refusals)


def _count(item: Disclosure) -> int:
    return item.count


def _about(party: str, job: Job, sizes: Sizes) -> list[Disclosure]:
    return [item for item in job.method.counts(job, sizes) if party in item.about]

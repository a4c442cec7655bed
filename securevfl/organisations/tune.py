"""Choose values of options between organisations: one consent, one sum of losses for each alternative, one model.

An *alternative* is one combination of values. Steps:

    1. all <-> all     connect; every party checks all trainings together with its leak checks and its ledger, and asks
                       its operator once, with one consent sheet that states their number
    2. each party      counts all measurements in its ledger, before the first of them
    3. all <-> all     train each alternative; the party with labels receives one sum of losses. If a training
                       diverges, the others learn that it does, and this alternative is not chosen
    4. active -> all   the index of the alternative with the smallest loss
    5. all <-> all     train this alternative again, with all metrics; each party stores its part of the model

Step 1 fails if the parties name different alternatives. Step 2 counts one measurement for each training, and a second
measurement of the same training is refused (`ReservedMeasurements`). A training whose public sizes differ from those
that step 1 was about is refused as well (`PublicSizes`). With a folder of checkpoints, the same command
resumes an interrupted search: finished alternatives are not trained again, and nobody is asked again. A party that has
stopped after its last training gets its model from its checkpoints, even if the others have ended the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.data.party import Party
from securevfl.disclosure.counts import Disclosure, RunShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import DivergenceError, PeerStopped, ProtocolError, TransportError
from securevfl.families.run_facts import local_run_facts
from securevfl.job import Job
from securevfl.organisations.compare import exclusive_comparison
from securevfl.organisations.join import check_role, train_over
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings
from securevfl.organisations.preconditions import SessionNeeds, check_preconditions
from securevfl.organisations.reserved_measurements import ReservedMeasurements
from securevfl.organisations.search_record import SearchRecord
from securevfl.protocols.alternative_choice import receive_choice, send_choice
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Stage
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart, PartStatus, check_unused
from securevfl.training.public_sizes import PublicSizes
from securevfl.training.run_setup import run_key
from securevfl.training.search_disclosures import (
    check_search,
    choice_disclosures,
    measured_rows,
    most_disclosing,
)
from securevfl.training.search_sheet import search_sheet
from securevfl.training.session import PreConsentView, take_part, view_before_consent
from securevfl.training.simulate import pool_for
from securevfl.training.tuning import Tuning, best_alternative, build_tuning
from securevfl.training.tuning_grid import Grid, alternative_jobs, final_job, tuned_job

CHOSEN = "the chosen alternative"
"""Name of the last training of a search; the other trainings have the names of their alternatives."""
_ENTRY_WORDS = {"columns": "this party's columns", "labels": "this party's labels"}


class SearchFiles(NamedTuple):
    """The paths at which one party stores the files of a search.

    Attributes:
        ledger: the party's ledger; see `join`.
        checkpoints: the path of a folder for its checkpoints, or an open `Checkpoints`. If every party has one, the
            same call resumes an interrupted search.
        save: a file for its part of the chosen model; a file that exists is never overwritten.
    """

    ledger: DisclosureLedger | str | Path | None = None
    checkpoints: str | Path | Checkpoints | None = None
    save: str | Path | None = None


def tune_with(
    job: Job,
    grid: Grid,
    party: Party,
    settings: PeerSettings,
    *,
    files: SearchFiles = SearchFiles(),  # noqa: B008  it is immutable
    consent: Callable[[ConsentSheet], None] | None = None,
    on_model: Callable[[str], object] = lambda name: None,
    on_round: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Choose values of numeric options with the other parties, and train the best alternative.

    All parties call this function at the same time, with the same job and the same grid.

    Args:
        job: the options that all alternatives have in common.
        grid: the values of each option, such as `{"l2": (0.01, 0.1, 1)}`; all combinations are tried.
        party: this party's table.
        settings: addresses, certificates and time limits.
        files: the files of this party.
        consent: receives one consent sheet for the whole search; see `join`.
        on_model: is called before each training with the name of its alternative.
        on_round: see `join`.

    Returns:
        The search; the losses are None at parties without labels.

    Raises:
        TransportError: a training was interrupted.
        ConfigError: the job cannot be tuned, or the parties' jobs or grids differ; nothing has been disclosed.
        LeakageError: the trainings together would disclose too much, or a peer asks for another measurement.
        DivergenceError: the trainings of all alternatives diverge, or the last training does.
    """
    alternatives = alternative_jobs(job, grid)
    ledger = DisclosureLedger.open(party.name, files.ledger)
    # the record of an earlier run is read under the lock, because a search that is still running changes it
    with exclusive_comparison(ledger), ExitStack() as stack:
        search = _Search(job, alternatives, party, settings, ledger, files.checkpoints)
        save = None if files.save is None or search.is_result(Path(files.save)) else Path(files.save)
        if save is not None:
            check_unused(save)
        pool, size = stack.enter_context(pool_for(job, None, None))
        search.pool = {"executor": pool, "workers": size, "on_round": on_round}
        if (stored := search.agree(consent)) is not None:
            if save is not None:
                stored.part.save(save)
            return stored
        losses: dict[str, float] = {}
        for name, alternative in alternatives.items():
            on_model(name)
            alternative_part = search.train(name, alternative)
            if party.active and alternative_part is not None:
                losses[name] = alternative_part.metrics["loss"]
        chosen = search.choose(losses)
        on_model(f"{chosen}, chosen")
        part = search.train(chosen, search.finals[chosen])
        assert part is not None, "the last training ends with an error if it diverges"
        if save is not None:
            part.save(save)
        search.end()
    return search.result(losses, chosen, part)


class _Search:
    """One party's part in a search, from its consent to the choice."""

    def __init__(
        self,
        job: Job,
        alternatives: Mapping[str, Job],
        party: Party,
        settings: PeerSettings,
        ledger: DisclosureLedger,
        checkpoints: str | Path | Checkpoints | None,
    ) -> None:
        self.ledger, self.alternatives = ledger, alternatives
        self.finals = {name: final_job(tuned_job(job), item) for name, item in alternatives.items()}
        self.shapes: dict[str, RunShape] = {}
        self.pool: dict[str, Any] = {}
        self._party, self._settings, self._runs = party, settings, list[str]()
        self._parties, self._active = settings.peers.parties, settings.peers.active
        for final in self.finals.values():
            check_role(final, party, settings.peers)
        self._handshake = {
            "jobs": {name: item.to_dict() for name, item in alternatives.items()},
            "parties": list(self._parties),
            "task": "tune",
        }
        self._states = Checkpoints(checkpoints, party.name) if isinstance(checkpoints, str | Path) else checkpoints
        folder = None if self._states is None else self._states.folder
        needs = SessionNeeds({} if folder is None else {folder: 0}, len(party))
        check_preconditions(ledger, needs)
        self._record = SearchRecord(folder, ledger.path, party, self._handshake)

    def agree(self, consent: Callable[[ConsentSheet], None] | None) -> Tuning | None:
        """Check and count all trainings, and ask for consent, unless an earlier session has done so.

        Args:
            consent: receives the consent sheet.

        Returns:
            None; or the result of an earlier run of the command that stopped after the last training, if the other
            parties cannot be reached. They have probably ended the search.
        """

        def talk(channel: Channel) -> list[PreConsentView] | Tuning:
            channel.clock.stage = Stage.SETUP
            views = [
                view_before_consent(final, self._party, channel, parties=self._parties, ledger=self.ledger)
                for final in self.finals.values()
            ]
            self.shapes = {name: view.sizes for name, view in zip(self.finals, views, strict=True)}
            if self._record.is_agreed:
                for name, shape in self.shapes.items():
                    self._record.sizes[name].check(channel.me, shape)
                return views
            measured_rows(views[0].schedule, views[0].sizes.outputs)  # raises ConfigError if too few rows are held out
            largest = most_disclosing(self.finals, self.shapes)
            ledgers = {self._party.name: self.ledger}
            check_search(self.alternatives, self.finals, self.shapes, [self._party], ledgers)
            self._check_measurements(views[0])
            if consent is not None:
                consent(self._sheet(dict(zip(self.finals, views, strict=True))[largest]))
            return views

        stored = self._stored_result()
        views = run_session(
            self._party.name,
            self._settings,
            self._handshake,
            talk,
            ledger=self.ledger,
            resumes=True,
            stored_result=None if stored is None else lambda: stored,
        )
        if isinstance(views, Tuning):
            return views
        if not self._record.is_agreed:
            self._begin(views[0])
        return None

    def is_result(self, path: Path) -> bool:
        """Return whether a file contains this party's part of the model that an earlier run of the search trained."""
        part = self._stored_part()
        return part is not None and path.is_file() and ModelPart.load(path).run == part.run

    def result(self, losses: Mapping[str, float], chosen: str, part: ModelPart) -> Tuning:
        """Return the result of the search."""
        tuning = build_tuning(
            self.alternatives, losses, chosen, self.finals[chosen], part, self.shapes, diverged=self._record.diverged
        )
        return replace(tuning, entered=self._entered())

    def _stored_part(self) -> ModelPart | None:
        """Return this party's part of the chosen model if an earlier run has trained it, else None."""
        if self._states is None or self._record.chosen is None:
            return None
        chosen = list(self.finals)[self._record.chosen]
        return self._states.final(run_key(self.finals[chosen], self._party))

    def _stored_result(self) -> Tuning | None:
        """Return the result that an earlier run of this command has computed, from its files."""
        part = self._stored_part()
        if part is None or self._states is None or self._record.chosen is None:
            return None
        part.status = PartStatus.KEPT
        stored = {name: self._states.final(run_key(job, self._party)) for name, job in self.alternatives.items()}
        self._runs = [item.run for item in (*stored.values(), part) if item is not None]
        losses = {name: item.metrics["loss"] for name, item in stored.items() if item is not None and item.metrics}
        self.shapes = {
            name: local_run_facts(
                final,
                self._party,
                self._record.sizes[name].columns,
                outputs=self._record.sizes[name].outputs,
                module_parameters=self._record.sizes[name].parameters,
            ).shape
            for name, final in self.finals.items()
        }
        return self.result(losses, list(self.finals)[self._record.chosen], part)

    @property
    def measurements(self) -> dict[str, int]:
        """The number of measurements of each training of the search."""
        return dict.fromkeys((*self.alternatives, CHOSEN), 1)

    def train(self, name: str, job: Job) -> ModelPart | None:
        """Train one alternative, or the chosen one again; a training that has finished is not repeated.

        Args:
            name: name of the alternative.
            job: its job, or the job of the last training.

        Returns:
            This party's part of the model; None if the training of an alternative diverges.
        """
        is_final = job is self.finals[name]
        reserved = ReservedMeasurements(self._party.name, self._record.remaining, self._record.use_measurement)
        train = partial(
            take_part,
            job,
            self._party,
            parties=self._parties,
            executor=self.pool["executor"],
            workers=self.pool["workers"],
            checkpoints=self._states,
            ledger=self.ledger.with_reserved_measurements(reserved.of(CHOSEN if is_final else name)),
            consent=self._record.sizes[name],
        )

        def talk(channel: Channel) -> ModelPart:
            run = channel.session.hex()  # this run's ledger entries count for the search even if it diverges
            key = run_key(job, self._party)
            self._runs.append(run if self._states is None else self._states.begin(key, run))
            # repeat the error, because another party may have stopped before it learned that this training diverged
            if name in self._record.diverged and not is_final:
                raise DivergenceError(
                    f"the training of {name} has diverged before", "lower lr", code="SVFL-TRAINING-DIVERGED"
                )
            return train_over(train, self.pool["on_round"], channel)

        try:
            part = run_session(
                self._party.name,
                self._settings,
                self._handshake | {"model": name, "chosen": is_final},
                talk,
                ledger=self.ledger,
                resumes=True,
            )
        except (DivergenceError, TransportError) as error:
            if not is_final and _has_diverged(error):
                eventlog.warn(self._party.name, "alternative diverged", {"alternative": name})
                self._record.store_divergence(name)
                return None
            if isinstance(error, DivergenceError):
                raise
            again = " and resumes the search" if self._states is not None else ""
            raise TransportError(
                f"{error.problem}. This interrupted the training of {name}; its measurements stay counted",
                f"run the same command again at every party{again}",
                code=error.code,
                away=error.away,
            ) from error
        self._runs.append(part.run)
        return part

    def choose(self, losses: Mapping[str, float]) -> str:
        """Choose the alternative with the smallest loss at the party with labels, and send it to the others."""
        names, me = list(self.alternatives), self._party.name
        if self._party.active or self._record.diverged.issuperset(names):
            best_alternative(losses)  # ends the search if the trainings of all alternatives diverged
        others = [name for name in self._parties if name != me]

        def talk(channel: Channel) -> int:
            if not self._party.active:
                index = receive_choice(channel, self._active, len(names))
                if self._record.chosen not in (None, index):
                    raise ProtocolError(
                        f"{me}: {self._active} has chosen another alternative than before",
                        "ask the operator of that party for the reason",
                        code="SVFL-PROTOCOL-VALUES",
                        peer=self._active,
                    )
                return index
            index = names.index(best_alternative(losses)) if self._record.chosen is None else self._record.chosen
            self._record.store_choice(index)
            self.ledger.record(self._party.register, (self._record.name, ""), self._choice)
            send_choice(channel, others, index, len(names))
            return index

        handshake = self._handshake | {"step": "choice"}
        index = run_session(me, self._settings, handshake, talk, ledger=self.ledger, resumes=True)
        self._record.store_choice(index)
        return names[index]

    def end(self) -> None:
        """Remove the checkpoints and the record, because all parties have their parts of the chosen model."""
        if self._states is not None:
            for job in (*self.alternatives.values(), *self.finals.values()):
                self._states.clear(run_key(job, self._party))
        self._record.delete()

    def _entered(self) -> tuple[str, ...]:
        """Return one line for each peer and kind of disclosure that this party's ledger has counted for the search."""
        totals: dict[tuple[str, str], int] = {}
        for entry in self.ledger.read().entries:
            if entry.run in (*self._runs, self._record.name):
                key = entry.disclosure.learner, _ENTRY_WORDS[entry.disclosure.kind]
                totals[key] = totals.get(key, 0) + entry.disclosure.count
        return tuple(f"{learner} received {count:,} bits about {word}" for (learner, word), count in totals.items())

    @property
    def _choice(self) -> list[Disclosure]:
        """What the party with labels discloses by naming the chosen alternative; counted once for each search."""
        return choice_disclosures(len(self.alternatives), next(iter(self.shapes.values())))

    def _check_measurements(self, view: PreConsentView) -> None:
        """Check whether the held-out rows may be measured as often as the search needs."""
        if not self._party.active and not _accepts_measurements(view):
            times = sum(self.measurements.values())
            ScoreLedger(self.ledger.path).check_evaluations(self._active, _measured_ids(view), times)

    def _begin(self, view: PreConsentView) -> None:
        """Count all measurements and record the consent, in one transaction of the account."""
        sizes = {name: PublicSizes.of(shape) for name, shape in self.shapes.items()}
        if self._party.active:
            self._record.begin(self.measurements, sizes)
            return
        ScoreLedger(self.ledger.path).record_evaluation(
            self._active,
            _measured_ids(view),
            limited=not _accepts_measurements(view),
            me=self._party.name,
            times=sum(self.measurements.values()),
            alongside=partial(self._record.begin, self.measurements, sizes),
        )

    def _sheet(self, view: PreConsentView) -> ConsentSheet:
        rows = len(measured_rows(view.schedule, view.sizes.outputs))
        return search_sheet(self.alternatives, self.finals, self.shapes, rows, view.sheet)


def _has_diverged(error: Exception) -> bool:
    """Return whether a training ended because it diverged, as this party or a peer has noticed."""
    return isinstance(error, DivergenceError) or (isinstance(error, PeerStopped) and error.stopped == "diverged")


def _accepts_measurements(view: PreConsentView) -> bool:
    """Return whether the job accepts any number of measurements of the held-out rows."""
    return "small_metrics" in view.job.accepts


def _measured_ids(view: PreConsentView) -> list[bytes]:
    """Return the ids of the rows that each training of the search is measured on."""
    return view.party.keys_of(measured_rows(view.schedule, view.sizes.outputs))

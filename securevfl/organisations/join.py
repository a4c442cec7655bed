"""Take part in a training from this process, with the other parties on their own machines.

`join` connects to the other parties, checks that all of them agreed to the same job, trains, and writes this party's
model part: its weights and the preparation of its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from securevfl.base.arrays import Floats
from securevfl.base.file_locks import reserved_path
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.consent.settle_job import check_settled
from securevfl.data.party import Party
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.display.progress import watched
from securevfl.errors import ConfigError, DataError, PartiesError
from securevfl.job import Job
from securevfl.organisations.peer_session import run_session
from securevfl.organisations.peer_settings import PeerSettings, check_among
from securevfl.organisations.preconditions import SessionNeeds
from securevfl.protocols.shares.disk_store import check_unlocked
from securevfl.runtime import eventlog
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import CostCounters, Kind, Stage
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart, PartStatus, check_unused
from securevfl.training.run_setup import run_key
from securevfl.training.session import material_folder, take_part
from securevfl.training.simulate import pool_for
from securevfl.transport.peers import Peers


def join(
    job: Job,
    party: Party,
    peers: Peers | str | Path = "peers.toml",
    *,
    certs: str | Path | None = None,
    listen: str | None = None,
    timeout: float = 600.0,
    patience: float = 60.0,
    checkpoints: str | Path | Checkpoints | None = None,
    save: str | Path | None = None,
    ledger: DisclosureLedger | str | Path | None = None,
    preprocessing: str | Path | None = None,
    retrain: bool = False,
    replace: bool = False,
    consent: Callable[[ConsentSheet], None] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    on_round: Callable[[int, int], None] | None = None,
    progress: bool = False,
) -> ModelPart:
    """Train with the other parties and return this party's part of the model.

    A training that has finished does not start again. If there are checkpoints, and `save` contains this party's part
    of the model of this job and exactly this table, that part is returned as soon as all parties report that they have
    theirs, or if no party can be reached within `patience` seconds. The part's `status` states which of these happened.

    Args:
        job: the options of the training, which must be the same at all parties.
        party: this party's table.
        peers: the file of peers, or its content.
        certs: the folder of <party>.pem, <party>.key and ca.pem; by default the folder of the file of peers.
        listen: host:port to bind instead of the port of this party's address.
        timeout: seconds to wait for all parties at the start, for each message, and for the others at the end.
        patience: seconds without a connection after which a party is lost.
        checkpoints: a folder for this party's checkpoints. If every party has one, a party that was lost may be
            restarted within `timeout`, and the training resumes from the latest round of which all have a checkpoint.
        save: a file for the part of the model. It is written before the checkpoints are removed. A file of another
            training is never overwritten.
        ledger: this party's disclosure ledger; by default a file in the user's data folder
            (`securevfl.disclosure.ledger.default_ledger`).
        preprocessing: a folder with the material of `prepare`, if that was run. Material that is preprocessed later is
            stored there, too; without this folder it stays in memory.
        retrain: train again, even if `save` contains a part of this job. That file is renamed as with `replace`.
        replace: train although `save` exists. When the new part is complete, the old file is renamed to
            `NAME.<digest>.json`.
        consent: receives this party's consent sheet when all parties are connected and before anything about its data
            is disclosed. It raises ConsentError to refuse.
        executor: runs this party's expensive calls; None for a pool of processes if the job benefits from it.
        workers: number of expensive calls that run at a time.
        on_round: called after each round with the number of finished rounds and the number of all rounds.
        progress: shows a bar on a terminal or below a notebook's cell.

    Returns:
        This party's part of the model.

    Raises:
        ConfigError: an argument is invalid, the parties' jobs differ (the message names the options), or the training
            has finished at this party and not at another one.
        DataError: the table cannot be used.
        TransportError: a party cannot be reached, was refused or has stopped; the message states the reason.
    """
    settings = PeerSettings.of(peers, certs, listen, timeout, patience)
    everyone = settings.peers.parties
    preprocessing = None if preprocessing is None else Path(preprocessing)
    check_role(job, party, settings.peers)
    party_ledger = DisclosureLedger.open(party.name, ledger)
    states = Checkpoints(checkpoints, party.name) if isinstance(checkpoints, str | Path) else checkpoints
    earlier = None if states is None else _EarlierRun(job, party, states, None if retrain else save)
    if save is not None and not (replace or retrain) and _same(Path(save), job, party, states) is None:
        check_unused(Path(save))
    reservation = nullcontext() if save is None else reserved_path(Path(save))
    workers_of_job = pool_for(job, executor, workers)
    if (material := material_folder(preprocessing, party, run_key(job, party))) is not None:
        check_unlocked(material)
    with reservation, workers_of_job as (pool, size), watched(job.optimizer.label, progress, on_round) as on_step:
        train = partial(
            take_part,
            job,
            party,
            parties=everyone,
            executor=pool,
            workers=size,
            checkpoints=states,
            ledger=party_ledger,
            ahead=preprocessing,
            consent=consent,
            again=retrain,
        )
        part = run_session(
            party.name,
            settings,
            {"job": job.to_dict(), "parties": list(everyone), "task": "train"},
            partial(train_over, train, on_step),
            ledger=party_ledger,
            resumes=earlier is not None,
            needs=SessionNeeds(_written(save, states, preprocessing), len(party)),
            stored_result=None if earlier is None else earlier.stored_result,
        )
        if save is not None and (earlier is None or part is not earlier.saved):
            part.save(save)
        if earlier is not None:
            earlier.clear()
    if part.status is PartStatus.NEW:
        facts = {"rounds": part.rounds, "messages_sent": part.counters.messages_sent()}
        eventlog.emit(part.name, "finished", facts | _costs(part.path, part.counters))
    else:
        eventlog.warn(part.name, "already trained", {"model": part.status})
    return part


def train_over(
    train: Callable[..., ModelPart], on_step: Callable[[int, int], None] | None, channel: Channel
) -> ModelPart:
    """Train over a channel to the other parties.

    Args:
        train: runs the training with the arguments `channel` and `on_round`.
        on_step: is called with the number of rounds done and the total.
        channel: this party's channel to the other parties.

    Returns:
        This party's part of the model.
    """
    channel.clock.stage = Stage.SETUP
    return train(channel=channel, on_round=partial(_report_round, channel, on_step))


def _written(save: str | Path | None, states: Checkpoints | None, preprocessing: Path | None) -> dict[Path, int]:
    """Return the paths that a training writes, each with 0 bytes: sizes are unknown before the parties connect."""
    paths = [save, None if states is None else states.folder, preprocessing]
    return {Path(path): 0 for path in paths if path is not None}


class _EarlierRun:
    """Files of earlier runs of the same job on the same table.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: this party's table.
        states: the checkpoints.
        save: the file that may contain the part of a finished training; None to train again.

    Attributes:
        saved: the part of the model in `save`; None if there is none, or if checkpoints show that the training is to
            be resumed.
    """

    def __init__(self, job: Job, party: Party, states: Checkpoints, save: str | Path | None) -> None:
        self._states = states
        self._key = run_key(job, party)
        self.saved: ModelPart | None = None
        if save is not None and not states.rounds(self._key):
            self.saved = _same(Path(save), job, party, states)
        if self.saved is not None:
            states.set_outcome(self._key, self.saved)

    def stored_result(self) -> ModelPart | None:
        """Return the model part that an earlier run has trained, after setting its `status`; None if there is none."""
        part = self._states.final(self._key)
        if part is not None:
            part.status = PartStatus.KEPT if self.saved is None else PartStatus.UNCONFIRMED
        return part

    def clear(self) -> None:
        """Remove the checkpoints. It is called after the model part has been stored."""
        self._states.clear(self._key)


def _same(save: Path, job: Job, party: Party, states: Checkpoints | None) -> ModelPart | None:
    """Load the model part in a file, if it belongs to this job and exactly this table and there are checkpoints."""
    if states is None or not save.is_file():
        return None
    try:
        part = ModelPart.load(save)
        if Job.from_dict(part.job).digest == job.digest and (part.name, part.data) == (party.name, party.digest.hex()):
            return part
    except (ConfigError, DataError):
        pass
    return None


def check_role(job: Job, party: Party, peers: Peers) -> None:
    """Check that this party fits the job and the peers.

    Args:
        job: the options of the training, on which all parties agree (`securevfl.job.Job`).
        party: this party's table.
        peers: the parties and their addresses.

    Raises:
        PartiesError: the party is not among the peers, or has labels although another party leads.
        ConfigError: the job has no epochs, or needs an optional library that is not installed.
    """
    check_settled(job, party.name)
    job.family.check_extras(job)
    check_among(peers, party.name)
    if not job.family.accepts_role(job.family.role_of(party), leads=party.name == peers.active):
        has_labels = "has labels" if party.active else "has no labels"
        raise PartiesError(
            f"the file of peers names {peers.active} as the party with labels, but {party.name} {has_labels}",
            "correct the file of peers or the table",
            code="SVFL-PARTIES-LABELS",
            party=party.name,
        )


def _report_round(channel: Channel, on_round: Callable[[int, int], None] | None, done: int, total: int) -> None:
    facts = {"round": done, "of": total} | _costs(channel.clock.path(), channel.counters)
    eventlog.emit(channel.me, "round", facts)
    if on_round is not None:
        on_round(done, total)


def _costs(path: Floats, counters: CostCounters) -> dict[str, str | int | float]:
    """Return the time and traffic of a run so far, as fields of its log events."""
    waited = float(path[:, Kind.COMMUNICATION].sum())
    return {"seconds": float(path.sum()), "waited": waited, "bytes_sent": counters.bytes_sent()}

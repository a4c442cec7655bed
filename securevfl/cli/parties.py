"""Commands of one party among several organisations: align, prepare, join, predict, relay."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli.stop import stoppable
from securevfl.errors import ConfigError, PartiesError

if TYPE_CHECKING:
    from securevfl.data.party import Party
    from securevfl.job import Job
    from securevfl.training.checkpoint import Checkpoints
    from securevfl.training.model_part import ModelPart
    from securevfl.transport.peers import Peers

Name = Annotated[str, typer.Option("--party", metavar="NAME", help="Who you are.")]
Data = Annotated[Path, typer.Option("--data", metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")]
IdColumn = Annotated[str, typer.Option("--id", metavar="COLUMN", help="Column of ids.")]
LabelColumn = Annotated[str, typer.Option("--label", metavar="COLUMN", help="Column of labels, if you have them.")]
PeersFile = Annotated[Path, typer.Option("--peers", metavar="FILE", help="Who takes part and where: peers.toml.")]
SharedJob = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job, the same at every party.")]
PeersByJob = Annotated[
    Path | None,
    typer.Option("--peers", metavar="FILE", help="Who takes part and where; by default peers.toml by the job."),
]
Certs = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of your certificate; by default that of the file of peers.")
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="What to bind, if not the port of your own address.")
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds to wait for the others.")]
Patience = Annotated[float, typer.Option(min=0.5, help="Seconds a party may be cut off.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")]
Ledger = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your disclosure ledger; by default NAME.ledger among your user's data."),
]
Ahead = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of work done ahead; by default FILE.ahead by the data.")
]
Log = Annotated[Path | None, typer.Option(metavar="FILE", help="Append one line of JSON for each event.")]


def register(app: typer.Typer) -> None:
    """Adds these commands to the app."""
    for command in (align, prepare, join, predict, relay):
        app.command()(command)


def align(
    party: Name,
    data: Data,
    peers: PeersFile = Path("peers.toml"),
    id_column: IdColumn = "id",
    certs: Certs = None,
    listen: Listen = None,
    timeout: Timeout = 600.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Find the ids that all parties have, showing no others, and write the shared row order beside the data.

    Every party runs this. What was done before a cut or a restart is kept and not done again.
    """
    from securevfl.data.readers import read_ids
    from securevfl.data.row_order import write_rows
    from securevfl.display.progress import progress
    from securevfl.organisations.align import align_privately
    from securevfl.organisations.conversation import Venue, converse
    from securevfl.runtime.channel import Channel

    venue = Venue.of(peers, certs, listen, timeout, patience)
    others = venue.peers
    _check_name(party, others)
    ids = read_ids(data, id_column=id_column)
    work = Path(f"{data}.align")

    def talk(channel: Channel) -> int:
        rows = align_privately(
            party,
            ids,
            channel,
            active=others.active,
            passives=others.passives,
            executor=pool,
            on_progress=on_progress,
            journal=work,
        )
        write_rows(data, rows)
        return len(rows)

    terms = {"parties": list(others.parties), "task": "align"}
    keeps = f"what was done is kept in {work}"
    with stoppable(lambda: keeps), events(verbose, log), _pool(len(ids)) as pool, progress("aligning") as on_progress:
        count = converse(party, venue, terms, talk, resumes=True)
    typer.echo(f"{count:,} of {len(ids):,} rows are shared by all; their order is in {data}.rows.npy")


def prepare(
    job_file: SharedJob,
    party: Name,
    data: Data,
    peers: PeersByJob = None,
    id_column: IdColumn = "id",
    label_column: LabelColumn = "y",
    certs: Certs = None,
    listen: Listen = None,
    ahead: Ahead = None,
    timeout: Timeout = 600.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Do ahead what a training on shares needs, so that join takes minutes. Every party runs this, on its table.

    The folder that is written holds masks: keep it as the table itself.
    """
    from securevfl.data.load import read_aligned
    from securevfl.display.progress import progress
    from securevfl.job import Job
    from securevfl.organisations.prepare import prepare as run

    job = Job.load(job_file)
    with progress("reading") as on_rows:
        own = read_aligned(party, data, job, id_column=id_column, label_column=label_column, on_rows=on_rows)
    with events(verbose, log), progress("preparing") as on_round:
        run(
            job,
            own,
            job_file.parent / "peers.toml" if peers is None else peers,
            ahead=_ahead(data, ahead),
            certs=certs,
            listen=listen,
            timeout=timeout,
            patience=patience,
            on_round=on_round,
        )
    typer.echo(f"what {party} has prepared is in {_ahead(data, ahead)}")


def _ahead(data: Path, named: Path | None) -> Path:
    """The folder of work ahead of a training on this table."""
    return Path(f"{data}.ahead") if named is None else named


def join(
    job_file: SharedJob,
    party: Name,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Your table, as above; none for a server, as FDML has one."),
    ] = None,
    peers: PeersByJob = None,
    id_column: IdColumn = "id",
    label_column: LabelColumn = "y",
    certs: Certs = None,
    listen: Listen = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Your part of the model; by default NAME.model.json by the data."),
    ] = None,
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to keep your own states; by default FILE.states.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Rounds between two states.")] = 10,
    ledger: Ledger = None,
    ahead: Ahead = None,
    accept: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="You agree to the consent sheet of this digest.")
    ] = None,
    timeout: Timeout = 600.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Train with the other parties. Every party runs this; one that was cut off or killed runs it again.

    The first time your consent sheet is shown, once all parties are there, and you are asked to agree; without a
    terminal --accept names it by its digest. It is not asked again for the same sheet.

    Rows are taken in the order that `securevfl align` has left beside the data. A large Parquet file is copied into one
    of plain rows beside it, gone when the training is through, so that it need not fit in memory.
    """
    from securevfl.cli.consent import agree
    from securevfl.data.load import forget, read_aligned
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.display.progress import progress
    from securevfl.files import check_writable
    from securevfl.job import Job
    from securevfl.organisations.join import join as run
    from securevfl.privacy.agreed import Agreed
    from securevfl.training.checkpoint import Checkpoints
    from securevfl.training.session import run_key

    job = Job.load(job_file)
    table = job_file.parent / party if data is None else data
    save = table.with_name(f"{party}.model.json") if save is None else save
    check_writable(save)
    check_writable(Path(f"{table}.states") if checkpoints is None else checkpoints, folder=True)
    if data is None:
        own = _helper(job, party)
    else:
        with progress("reading") as on_rows:
            own = read_aligned(party, data, job, id_column=id_column, label_column=label_column, on_rows=on_rows)
    states = Checkpoints(Path(f"{table}.states") if checkpoints is None else checkpoints, party, every=every)
    keeps = partial(_states_kept, states, run_key(job, own))
    with stoppable(keeps), events(verbose, log), progress(job.optimizer.label) as on_round:
        part = run(
            job,
            own,
            job_file.parent / "peers.toml" if peers is None else peers,
            certs=certs,
            listen=listen,
            timeout=timeout,
            patience=patience,
            checkpoints=states,
            save=save,
            ledger=ledger,
            ahead=_ahead(table, ahead),
            consent=partial(agree, Agreed(DisclosureLedger.of(party, ledger)), accept, job_file),
            on_round=on_round,
        )
    if data is not None:
        forget(own, data)
    _say_outcome(part, "held-out" if job.test_fraction else "training", save)


def _helper(job: Job, party: str) -> Party:
    """The party without a table that this job has a place for. ConfigError if it has none."""
    from securevfl.data.party import Helper

    if not job.method.helpers:
        raise ConfigError(f"--data: a table was expected, as {job.method.name} has no place for {party} without one")
    return Helper(party, job.method.helpers[0][1])


def _say_outcome(part: ModelPart, rows: str, save: Path) -> None:
    from securevfl.training.model_part import Standing

    if part.standing is not Standing.NEW:
        typer.echo(f"nothing was trained: this model is {part.standing}; job and table are the same")
    if part.metrics:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in part.metrics.items())
        typer.echo(f"{figures} on the {rows} rows")
    typer.echo(f"{part.name}'s part of the model is in {save}")


def _states_kept(states: Checkpoints, key: bytes) -> str:
    """What is on disk of a training that was stopped."""
    from securevfl.training.checkpoint import FINISHED

    rounds = [each for each in states.rounds(key) if each != FINISHED]
    return f"its state after {rounds[-1]} rounds is kept in {states.folder}" if rounds else "no round of it was kept"


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL.JSON", help="Your part of the model, as join has saved it.")],
    data: Data,
    peers: PeersFile = Path("peers.toml"),
    id_column: IdColumn = "id",
    certs: Certs = None,
    listen: Listen = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the party that asks gets its CSV; by default stdout.")
    ] = None,
    ledger: Ledger = None,
    timeout: Timeout = 600.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Predict new rows, one or many, with the other parties. Every party runs this with its own part and table.

    The party with labels, or whoever the job names, gets id, prediction and probability (of the later class, or one
    column a class).
    """
    from securevfl.cli.predictions import predictions
    from securevfl.display.progress import progress
    from securevfl.files import check_writable
    from securevfl.organisations.predict import predict_rows
    from securevfl.training.model_part import ModelPart
    from securevfl.training.new_rows import rows_of_file

    part = ModelPart.load(model)
    if out is not None:
        check_writable(out)
    with progress("reading") as on_rows:
        rows = rows_of_file(part, data, id_column=id_column, on_rows=on_rows)
    with stoppable(), events(verbose, log), predictions(part, out) as on_block, progress("predicting") as on_rows:
        predict_rows(
            part,
            rows,
            peers,
            on_block=on_block,
            on_rows=on_rows,
            ledger=ledger,
            certs=certs,
            listen=listen,
            timeout=timeout,
            patience=patience,
        )
    if part.name != part.asker:
        typer.echo(f"{rows.count:,} rows predicted, for {part.asker} to see")
    elif out is not None:
        typer.echo(f"{rows.count:,} predictions are in {out}")


def relay(
    name: Annotated[str, typer.Option("--party", metavar="NAME", help="The hub's name in the file of peers.")],
    peers: PeersFile = Path("peers.toml"),
    certs: Certs = None,
    listen: Listen = None,
    timeout: Timeout = 86_400.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Be a hub that is no party: pass on, sealed, what the parties of one run say to each other."""
    from securevfl.organisations.conversation import Venue
    from securevfl.transport.relay import Relay
    from securevfl.transport.tls import Credentials

    venue = Venue.of(peers, certs, listen, timeout, patience)
    others = venue.peers
    if name != others.hub or name in others.parties:
        raise PartiesError(f"--party: a hub that is no party was expected, {name} came; see hub in {peers}")
    with stoppable(), events(verbose, log):
        Relay(Credentials(venue.certs, name), others, listen=listen, patience=patience).run(timeout)


def _check_name(party: str, peers: Peers) -> None:
    if party not in peers.parties:
        raise PartiesError(f"--party: one of {', '.join(peers.parties)} was expected, {party} came; correct it")


def _pool(rows: int) -> AbstractContextManager[Executor | None]:
    """A pool of one process a core where there is enough to do."""
    cores = os.cpu_count() or 1
    if rows < 20_000 or cores < 2:
        return nullcontext()
    from securevfl.runtime.executor import process_pool

    return process_pool(cores)


@contextmanager
def events(verbose: bool, log: Path | None) -> Iterator[None]:
    from securevfl.runtime import eventlog

    handlers = [eventlog.write_to(log)] if log is not None else []
    handlers.append(eventlog.write_to(sys.stderr, logging.INFO if verbose else logging.ERROR))
    handlers[-1].setFormatter(_ForPeople())
    try:
        yield
    finally:
        for handler in handlers:
            eventlog.LOGGER.removeHandler(handler)
            handler.close()


class _ForPeople(logging.Formatter):
    """An event as a line to read."""

    def format(self, record: logging.LogRecord) -> str:
        facts = json.loads(record.getMessage())
        at, event, party = (facts.pop(key) for key in ("time", "event", "party"))
        return f"{at[11:19]} {party}: {event}" + "".join(f", {key} {fact}" for key, fact in facts.items())

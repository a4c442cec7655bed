"""Commands of one party among several organisations: align, join, predict, relay."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securevfl.errors import ConfigError, PartiesError, TableError

if TYPE_CHECKING:
    from securevfl.data import Table
    from securevfl.job import Job
    from securevfl.party import Party
    from securevfl.peers import Peers

Name = Annotated[str, typer.Option("--party", metavar="NAME", help="Who you are.")]
Data = Annotated[Path, typer.Option("--data", metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")]
IdColumn = Annotated[str, typer.Option("--id", metavar="COLUMN", help="Column of ids.")]
LabelColumn = Annotated[str, typer.Option("--label", metavar="COLUMN", help="Column of labels, if you have them.")]
PeersFile = Annotated[Path, typer.Option("--peers", metavar="FILE", help="Who takes part and where: peers.toml.")]
Certs = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of your certificate; by default that of the file of peers.")
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="What to bind, if not the port of your own address.")
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds to wait for the others.")]
Patience = Annotated[float, typer.Option(min=0.5, help="Seconds a party may be cut off.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say on stderr what happens.")]
Log = Annotated[Path | None, typer.Option(metavar="FILE", help="Append one line of JSON for each event.")]


def register(app: typer.Typer) -> None:
    """Adds these commands to the app."""
    for command in (align, join, predict, relay):
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
    from securevfl.alignment import align_privately, write_rows
    from securevfl.channel import Channel
    from securevfl.cli_show import progress
    from securevfl.converse import converse, read_peers

    others, folder = read_peers(peers, certs)
    _check_name(party, others)
    ids = _ids(_table(data, id_column, ""), data)
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

    terms = {"active": others.active, "passives": list(others.passives), "task": "align"}
    with _events(verbose, log), _pool(len(ids)) as pool, progress("aligning") as on_progress:
        count = converse(
            party,
            others,
            terms,
            talk,
            certs=folder,
            listen=listen,
            timeout=timeout,
            patience=patience,
            resumes=True,
        )
    typer.echo(f"{count:,} of {len(ids):,} rows are shared by all; their order is in {data}.rows.npy")


def join(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job, the same at every party.")],
    party: Name,
    data: Data,
    peers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who takes part and where; by default peers.toml by the job.")
    ] = None,
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
    on_disk: Annotated[
        bool, typer.Option("--on-disk", help="Train from a copy of a Parquet file on disk, for tables beyond memory.")
    ] = False,
    timeout: Timeout = 600.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Train with the other parties. Every party runs this; one that was cut off or killed runs it again.

    Rows are taken in the order that `securevfl align` has left beside the data.
    """
    from securevfl.checkpoint import Checkpoints
    from securevfl.cli_report import check_writable
    from securevfl.cli_show import progress
    from securevfl.job import Job
    from securevfl.join import join as run

    job = Job.load(job_file)
    save = data.with_name(f"{party}.model.json") if save is None else save
    check_writable(save)
    own = _party(party, data, id_column, label_column, job if on_disk else None)
    states = Checkpoints(Path(f"{data}.states") if checkpoints is None else checkpoints, party, every=every)
    with _events(verbose, log), progress(job.optimizer.label) as on_round:
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
            on_round=on_round,
        )
    if part.metrics:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in part.metrics.items())
        typer.echo(f"{figures} on the {'held-out' if job.test_fraction else 'training'} rows")
    typer.echo(f"{party}'s part of the model is in {save}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL.JSON", help="Your part of the model, as join has saved it.")],
    data: Data,
    peers: PeersFile = Path("peers.toml"),
    id_column: IdColumn = "id",
    certs: Certs = None,
    listen: Listen = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the party with labels gets its CSV; by default stdout.")
    ] = None,
    timeout: Timeout = 600.0,
    patience: Patience = 60.0,
    verbose: Verbose = False,
    log: Log = None,
) -> None:
    """Predict new rows, one or many, with the other parties. Every party runs this with its own part and table.

    The party with labels gets id, prediction and probability (of the later class, or one column a class).
    """
    from securevfl.cli_report import check_writable
    from securevfl.files import write_whole
    from securevfl.part import Part
    from securevfl.predict_parties import predict_with

    part = Part.load(model)
    if out is not None:
        check_writable(out)
    table = _table(data, id_column, "")
    order = _order(data, len(table.X))
    lacking = [column for column in part.columns if column not in table.columns]
    if lacking:
        shown = ", ".join(lacking[:10]) + (f" and {len(lacking) - 10} more" if len(lacking) > 10 else "")
        raise TableError(f"{data}: columns of the training were expected, missing: {shown}; add them")
    X, ids = table.X[:, [table.columns.index(column) for column in part.columns]], _ids(table, data)
    if order is not None:
        X, ids = X[order], ids[order]
    with _events(verbose, log):
        found = predict_with(part, X, peers, ids=ids, certs=certs, listen=listen, timeout=timeout, patience=patience)
    if found is None:
        typer.echo(f"{len(X):,} rows predicted, for {part.parties[0]} to see")
        return
    text = _csv(ids, found)
    if out is None:
        sys.stdout.write(text)
    else:
        write_whole(out, text.encode())
        typer.echo(f"{len(X):,} predictions are in {out}")


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
    from securevfl.converse import read_peers
    from securevfl.transport.hub import Relay
    from securevfl.transport.tls import Credentials

    others, folder = read_peers(peers, certs)
    if name != others.hub or name in others.parties:
        raise PartiesError(f"--party: a hub that is no party was expected, {name} came; see hub in {peers}")
    with _events(verbose, log):
        Relay(Credentials(folder, name), others, listen=listen, patience=patience).run(timeout)


def _check_name(party: str, peers: Peers) -> None:
    if party not in peers.parties:
        raise PartiesError(f"--party: one of {', '.join(peers.parties)} was expected, {party} came; correct it")


def _table(data: Path, id_column: str, label_column: str) -> Table:
    from securevfl.data import read_table

    return read_table(data, id_column=id_column, label_column=label_column)


def _ids(table: Table, data: Path) -> Any:
    from securevfl.errors import IdError

    if table.ids is None:
        raise IdError(f"{data}: ids were expected, none came; add an array ids")
    return table.ids


def _order(data: Path, rows: int) -> Any:
    """The row order that an alignment has left beside the data, or None."""
    from securevfl.alignment import read_rows, rows_path

    return read_rows(data, of=rows) if rows_path(data).exists() else None


def _party(name: str, data: Path, id_column: str, label_column: str, stored_for: Job | None) -> Party:
    if stored_for is not None:
        from pyarrow import parquet

        from securevfl.store import store_table

        if data.suffix != ".parquet":
            raise ConfigError(f"--on-disk: a Parquet file was expected, {data.name} came; convert it")
        rows = _order(data, parquet.ParquetFile(data).metadata.num_rows)
        return store_table(
            name,
            data,
            Path(f"{data}.table"),
            rows=rows,
            job=stored_for,
            id_column=id_column,
            label_column=label_column,
        )
    from securevfl.data import read_party

    party = read_party(name, data, id_column=id_column, label_column=label_column)
    order = _order(data, len(party))
    return party if order is None else party.take(order)


def _csv(ids: Any, found: Any) -> str:
    import io

    import pyarrow as pa
    from pyarrow import csv

    columns = {"id": ids.tolist(), "prediction": found.label.tolist()}
    if found.proba is not None and len(found.classes) == 2:
        columns["probability"] = found.proba[:, 1].tolist()
    elif found.proba is not None:
        columns |= {
            f"probability {each}": column.tolist() for each, column in zip(found.classes, found.proba.T, strict=True)
        }
    buffer = io.BytesIO()
    csv.write_csv(pa.table(columns), buffer, csv.WriteOptions(quoting_style="needed"))
    return buffer.getvalue().decode()


@contextmanager
def _pool(rows: int) -> Iterator[Any]:
    """A pool of one process a core where there is enough to do."""
    import os
    from functools import partial

    cores = os.cpu_count() or 1
    if rows < 20_000 or cores < 2:
        yield None
        return
    from joblib.externals.loky import ProcessPoolExecutor

    from securevfl.offload import Pool
    from securevfl.simulate import die_with

    start = partial(ProcessPoolExecutor, max_workers=cores, initializer=die_with, initargs=(os.getpid(),))
    with Pool(start) as pool:
        yield pool


@contextmanager
def _events(verbose: bool, log: Path | None) -> Iterator[None]:
    from securevfl import eventlog

    handlers = [eventlog.write_to(log)] if log is not None else []
    if verbose:
        handlers.append(eventlog.write_to(sys.stderr))
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

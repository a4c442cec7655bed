"""Options that several commands share, and the pool of worker processes.

Terms: a *job file* states what is trained, and how. A party's *part of the model* is the file with the weights of its
columns. Its *consent sheet* lists everything that a job discloses about its table.
"""

from __future__ import annotations

import os
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from securevfl.base.files import STANDARD_OUTPUT
from securevfl.data.query_rows import file_of_table


def output_file(name: str) -> Path:
    """Return the path of a file to write; "-" is standard output, and everything else then goes to stderr."""
    return STANDARD_OUTPUT if name == "-" else Path(name)


Name = Annotated[str, typer.Option("--party", metavar="NAME", help="Your party's name.")]
Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="FILE",
        parser=file_of_table,
        help="Your table: .csv, .csv.gz, .parquet, .arrow, .npz or a folder.",
    ),
]
IdColumn = Annotated[
    str,
    typer.Option("--id", metavar="COLUMN", help="Column of ids; several columns, separated by commas, form one key."),
]
ColumnTypes = Annotated[
    Path | None,
    typer.Option(
        "--columns",
        metavar="FILE.TOML",
        help='The types of your columns, as in: branch = "category". By default those under columns in the job file.',
    ),
]
RepeatedIds = Annotated[
    str,
    typer.Option(
        "--duplicates",
        metavar="refuse|first|last",
        help="What happens if several rows have one id: an error, or only the first or the last of them is used.",
    ),
]
JobRepeatedIds = Annotated[
    str | None,
    typer.Option(
        "--duplicates",
        metavar="refuse|first|last",
        help="What happens if several rows have one id; by default what the job file states under duplicates, or "
        "refuse.",
    ),
]
LabelColumn = Annotated[str, typer.Option("--label", metavar="COLUMN", help="Column of labels, if you have them.")]
PeersFile = Annotated[Path, typer.Option("--peers", metavar="FILE", help="File with the parties and their addresses.")]
JobFile = Annotated[
    Path, typer.Argument(metavar="JOB.TOML", help="The job file: model, optimizer, protocol and batches.")
]
SharedJob = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job file, the same at every party.")]
PeersByJob = Annotated[
    Path | None,
    typer.Option(
        "--peers",
        metavar="FILE",
        help="File with the parties and their addresses; by default peers.toml next to the job.",
    ),
]
Certs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of your certificate; by default the folder of the file of peers."),
]
Listen = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address to listen on, if not the one in the file of peers.")
]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds to wait for the other parties.")]
Patience = Annotated[float, typer.Option(min=0.5, help="Seconds without a connection after which a party is lost.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print the events of the log on stderr.")]
Ledger = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your disclosure ledger; by default NAME.ledger in your data folder."),
]
PreprocessingDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder of random numbers computed in advance; by default FILE.ahead next to the data."
    ),
]
ModelFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with your part of the model; by default NAME.model.json next to the data."),
]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Train although the model file exists; it is renamed to NAME.<digest>.json."),
]
CheckpointDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for your checkpoints; by default FILE.states.")
]
Model = Annotated[Path, typer.Argument(metavar="MODEL.JSON", help="Your part of the model, as join wrote it.")]
Digest = Annotated[str | None, typer.Option(metavar="DIGEST", help="Agree to the consent sheet that has this digest.")]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        parser=output_file,
        help="Write the results to this file as JSON; - writes them to stdout, and all other text to stderr.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", parser=output_file, help="Write an HTML page to this file; - is stdout."),
]
Unscored = Annotated[
    Path | None,
    typer.Option(
        "--unscored",
        metavar="FILE",
        parser=output_file,
        help="CSV file for the ids of rows without a score, each with the reason; written at the requesting party.",
    ),
]
Log = Annotated[Path | None, typer.Option(metavar="FILE", help="Append each event to this file, as one line of JSON.")]


def pool_of(rows: int) -> AbstractContextManager[Executor | None]:
    """Return a pool with one process per core; None for few ids, since starting processes would take longer."""
    cores = os.cpu_count() or 1
    if rows < 20_000 or cores < 2:
        return nullcontext()
    from securevfl.runtime.worker_processes import process_pool

    return process_pool(cores)

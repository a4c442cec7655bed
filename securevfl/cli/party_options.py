"""What the commands of one party have in common: its options, its events on the screen and its pool of processes."""

from __future__ import annotations

import os
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass

Name = Annotated[str, typer.Option("--party", metavar="NAME", help="Who you are.")]
Data = Annotated[Path, typer.Option("--data", metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")]
IdColumn = Annotated[
    str, typer.Option("--id", metavar="COLUMN", help="Column of ids; several, parted by commas, are one key.")
]
LabelColumn = Annotated[str, typer.Option("--label", metavar="COLUMN", help="Column of labels, if you have them.")]
PeersFile = Annotated[Path, typer.Option("--peers", metavar="FILE", help="Who takes part and where: peers.toml.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.TOML", help="The job: model, optimizer, protocol, batches.")]
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
PreprocessingDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of work done ahead; by default FILE.ahead by the data.")
]
ModelFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Your part of the model; by default NAME.model.json by the data.")
]
CheckpointDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where to keep your own states; by default FILE.states.")
]
Model = Annotated[Path, typer.Argument(metavar="MODEL.JSON", help="Your part of the model, as join has saved it.")]
Digest = Annotated[str | None, typer.Option(metavar="DIGEST", help="You agree to the consent sheet of this digest.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here.")]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page for a browser here.")]
Unscored = Annotated[
    Path | None,
    typer.Option(
        "--unscored", metavar="FILE", help="Where id and state of each row without a score go, at the party that asks."
    ),
]
Log = Annotated[Path | None, typer.Option(metavar="FILE", help="Append one line of JSON for each event.")]


def pool_of(rows: int) -> AbstractContextManager[Executor | None]:
    """Return a pool of one process a core where so many ids give enough to do."""
    cores = os.cpu_count() or 1
    if rows < 20_000 or cores < 2:
        return nullcontext()
    from securevfl.runtime.worker_processes import process_pool

    return process_pool(cores)

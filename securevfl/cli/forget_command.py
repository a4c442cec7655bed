"""The command `forget`: delete the files of a training.

These are the party's part of the model (the file with the weights of its columns), checkpoints, from which an
interrupted training resumes, random numbers that were computed ahead, the common row order of the parties, and logs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securevfl.cli.party_options import CheckpointDir, Ledger, ModelFile, Name, PreprocessingDir
from securevfl.data.query_rows import file_of_table


def forget(
    party: Name,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            parser=file_of_table,
            help="The table of the training, which may be deleted already.",
        ),
    ],
    model: ModelFile = None,
    checkpoints: CheckpointDir = None,
    preprocessing: PreprocessingDir = None,
    logs: Annotated[
        list[Path] | None, typer.Option("--log", metavar="FILE", help="A log to delete. Repeatable.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also delete files of all other trainings on this table, including interrupted ones."
        ),
    ] = False,
    ledger: Ledger = None,
) -> None:
    """Delete files of a training: your part of the model, checkpoints, precomputed random numbers, row order, logs.

    Your ledger and the files next to it are retained, because disclosures cannot be undone. Nothing is deleted while a
    command uses the model or the table. Running this command again deletes files that were written since.
    """
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.organisations.forget import TrainingFiles
    from securevfl.organisations.forget import forget as delete_files

    files = TrainingFiles(
        party,
        data,
        data.with_name(f"{party}.model.json") if model is None else model,
        Path(f"{data}.states") if checkpoints is None else checkpoints,
        Path(f"{data}.ahead") if preprocessing is None else preprocessing,
        logs or (),
    )
    report = delete_files(files, DisclosureLedger.open(party, ledger), every=every)
    for word, lines in (("deleted", report.deleted), ("retained", report.retained)):
        typer.echo(f"{word}:" + ("" if lines else " nothing"))
        for path, description in lines:
            typer.echo(f"  {path}: {description}")
    typer.echo("not searched: backups, pages and predictions")

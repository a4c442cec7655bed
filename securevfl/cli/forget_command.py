"""The command `forget`: deletes what trainings have left at a party, and says what it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securevfl.cli.party_options import Ahead, Ledger, Name, SavedPart, States


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(forget)


def forget(
    party: Name,
    data: Annotated[
        Path, typer.Option("--data", metavar="FILE", help="The table that it was trained on, there or not.")
    ],
    model: SavedPart = None,
    checkpoints: States = None,
    ahead: Ahead = None,
    logs: Annotated[
        list[Path] | None, typer.Option("--log", metavar="FILE", help="A log to delete. Repeatable.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="What all your trainings on this table have left, those cut off too.")
    ] = False,
    ledger: Ledger = None,
) -> None:
    """Delete what a training has left with you: your part of the model, states, work ahead, row order, logs.

    Your ledger and the files beside it stay: what was told stays told. Nothing is deleted while a command uses the
    model or the table. The same command again deletes what is there by then.
    """
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.organisations.forget import Leftovers
    from securevfl.organisations.forget import forget as run

    left = Leftovers(
        party,
        data,
        data.with_name(f"{party}.model.json") if model is None else model,
        Path(f"{data}.states") if checkpoints is None else checkpoints,
        Path(f"{data}.ahead") if ahead is None else ahead,
        logs or (),
    )
    found = run(left, DisclosureLedger.of(party, ledger), every=every)
    for word, lines in (("deleted", found.deleted), ("kept", found.kept)):
        typer.echo(f"{word}:" + ("" if lines else " nothing"))
        for path, what in lines:
            typer.echo(f"  {path}: {what}")

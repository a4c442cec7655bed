"""The command `scorecard`: convert a party's part of the model to points. Nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securevfl.base.files import check_writable, write_atomic
from securevfl.cli.option_groups import expand_option_groups
from securevfl.cli.party_options import Html, Model


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(expand_option_groups(scorecard))


def scorecard(
    model: Model,
    points: Annotated[
        str,
        typer.Option(
            metavar="POINTS:ODDS:DOUBLE",
            help="Number of points at these odds, and number of points that doubles the odds, as in 600:50:20.",
        ),
    ] = "600:50:20",
    out: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the scorecard to this file.")] = None,
    page: Html = None,
) -> None:
    """Convert your part of a logistic model to points for each bin of your columns. Nothing is sent.

    A row's score is the sum of the points of all parties' columns and of the base, which the party with labels has: see
    predict --points.
    """
    from securevfl.cli.show import console, table
    from securevfl.credit.scorecard import ScorecardScale
    from securevfl.credit.scorecard import scorecard as build_scorecard
    from securevfl.training.model_part import ModelPart

    check_writable(out, page)
    card = build_scorecard([ModelPart.load(model)], ScorecardScale.read(points))
    for path, text in ((out, card.csv), (page, card.page)):
        if path is not None:
            write_atomic(path, text().encode())
    rows: list[list[str | int | float | None]] = [[line.column, line.bin, round(line.points, 2)] for line in card.lines]
    console().print(table(["column", "bin", "points"], rows))

"""The command `drift`: compare new rows with the training rows. Nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securevfl.cli.option_groups import IdOptions, ReportOptions, expand_option_groups
from securevfl.cli.party_options import Model
from securevfl.data.query_rows import file_of_table


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(expand_option_groups(drift))


def drift(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            parser=file_of_table,
            help="Table of new rows with your columns, as for `securevfl predict`.",
        ),
    ],
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Predictions of these rows, written by `securevfl predict`.")
    ] = None,
    row_ids: IdOptions = IdOptions(),
    alarms: Annotated[
        float,
        typer.Option(
            min=1e-6,
            max=0.5,
            help="Probability that the command reports a shifted column although no column has shifted.",
        ),
    ] = 0.01,
    report: ReportOptions = ReportOptions(),
) -> None:
    """Report which of your columns have shifted since the training; exit code 1 if any has. Nothing is sent.

    Compares PSI, Kolmogorov-Smirnov statistic, missing values and new texts of each column with the training rows. Your
    part of the model contains a summary of these.
    """
    from securevfl.cli.show import console, table
    from securevfl.credit import drift_page
    from securevfl.training.model_part import ModelPart

    report.check()
    part = ModelPart.load(model)
    drifts = drift_page.drift(part, data, scores=scores, options=row_ids.options, alarms=alarms)
    report.write("drift", lambda: drift_page.plain(drifts, part), lambda: drift_page.page(drifts, part))
    console().print(table(drift_page.DRIFT_HEADS, drift_page.rows(drifts)))
    if any(column.shifted for column in drifts):
        raise typer.Exit(1)

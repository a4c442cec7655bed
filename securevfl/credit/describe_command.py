"""The command `describe`: describe a party's table before a training. Nothing is sent."""

from __future__ import annotations

import typer

from securevfl.cli import option_groups
from securevfl.credit.own_table_options import OwnTableOptions


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(option_groups.expand_option_groups(describe))


def describe(
    table: OwnTableOptions,
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
) -> None:
    """Describe each column of your table before a training. Nothing is sent.

    Prints how each column was read, missing values, quartiles, outliers, columns that are constant or repeat others,
    variance inflation among your columns, and, with labels of two classes, the predictive power of each column.
    """
    from securevfl.cli.show import console, split_wide_table
    from securevfl.credit.description import describe as describe_party

    report.check()
    party, labelled, empty = table.read_partly_labelled()
    description = describe_party(party, labelled, positive=table.positive, empty=empty)
    report.write("describe", description.plain, description.page)
    out = console()
    out.print(description.head, soft_wrap=True)
    for part in split_wide_table(description.heads, description.cells(), out.width):
        out.print(part)

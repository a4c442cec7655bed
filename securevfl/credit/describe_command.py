"""The command `describe`: describe a party's table before a training. Nothing is sent."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

import typer

from securevfl.cli import option_groups
from securevfl.cli import party_options as options


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(option_groups.expand_option_groups(describe))


def describe(
    data: options.Data,
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="Your name on the page; by default the name of the file.")
    ] = None,
    row_ids: option_groups.IdOptions = option_groups.IdOptions(),
    label_column: options.LabelColumn = "y",
    columns: options.ColumnTypes = None,
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
) -> None:
    """Describe each column of your table before a training. Nothing is sent.

    Prints how each column was read, missing values, quartiles, outliers, columns that are constant or repeat others,
    variance inflation among your columns, and, with labels of two classes, the predictive power of each column.
    """
    from securevfl.cli.show import console, split_wide_table
    from securevfl.credit.description import describe as describe_party
    from securevfl.data.load import is_large
    from securevfl.data.readers import read_party
    from securevfl.data.store import copy_to_temporary_table

    report.check()
    name = party or re.sub(r"[^\w-]", "-", data.name.partition(".")[0]) or "table"
    declared = option_groups.declared_in(columns)
    read = copy_to_temporary_table if is_large(data) else read_party
    table = read(name, data, replace(row_ids.options, label_column=label_column, declared=declared))
    description = describe_party(table)
    report.write("describe", description.plain, description.page)
    out = console()
    out.print(description.head, soft_wrap=True)
    for part in split_wide_table(description.heads, description.cells(), out.width):
        out.print(part)

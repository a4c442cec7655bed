"""The command `describe`: describe a party's table before a training. Nothing is sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli import option_groups
from securevfl.cli import party_options as options

if TYPE_CHECKING:
    pass


def describe(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")],
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the page calls you; by default as the file.")
    ] = None,
    id_column: options.IdColumn = "id",
    label_column: options.LabelColumn = "y",
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
) -> None:
    """Describe each column of your own table before a training. Nothing is sent.

    How it was read, missing values, quartiles, far tails, columns that do not vary or repeat others, variance inflation
    among your columns, and with labels of two classes what each column says of them by itself.
    """
    from securevfl.cli.show import console, split_wide_table
    from securevfl.data.readers import read_party
    from securevfl.training.description import describe as described

    report.check()
    name = party or re.sub(r"[^\w-]", "-", data.name.partition(".")[0]) or "table"
    found = described(read_party(name, data, id_column=id_column, label_column=label_column))
    report.write(lambda: str(found), found.page)
    out = console()
    out.print(found.head, soft_wrap=True)
    for part in split_wide_table(found.heads, found.cells(), out.width):
        out.print(part)

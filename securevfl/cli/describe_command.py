"""The command `describe`: a look at one party's own table before a training. It meets nobody."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from securevfl.base.files import check_writable, write_whole
from securevfl.cli.party_options import Html, IdColumn, Json, LabelColumn


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command()(describe)


def describe(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")],
    party: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the page calls you; by default as the file.")
    ] = None,
    id_column: IdColumn = "id",
    label_column: LabelColumn = "y",
    report_json: Json = None,
    page: Html = None,
) -> None:
    """Describe each column of your own table before a training. Nothing is sent.

    How it was read, missing values, quartiles, far tails, columns that do not vary or repeat others, variance inflation
    among your columns, and with labels of two classes what each column says of them by itself.
    """
    from securevfl.cli.show import console, parted
    from securevfl.data.readers import read_party
    from securevfl.training.description import describe as described

    check_writable(report_json, page)
    name = party or re.sub(r"[^\w-]", "-", data.name.partition(".")[0]) or "table"
    found = described(read_party(name, data, id_column=id_column, label_column=label_column))
    if report_json is not None:
        write_whole(report_json, str(found).encode())
    if page is not None:
        write_whole(page, found.page().encode())
    out = console()
    out.print(found.head, soft_wrap=True)
    for part in parted(found.heads, found.cells(), out.width):
        out.print(part)

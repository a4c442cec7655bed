"""The command `reasons`: list the columns that raise a row's score most. Nothing is sent."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from securevfl.base.files import check_writable, write_atomic
from securevfl.cli.option_groups import IdOptions, expand_option_groups
from securevfl.cli.party_options import Model
from securevfl.cli.reason_code_options import codes_in
from securevfl.data.query_rows import file_of_table


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(expand_option_groups(reasons))


def reasons(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="FILE",
            parser=file_of_table,
            help="Table of rows with your columns, as for `securevfl predict`.",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, max=100, help="Number of reason codes per row.")] = 3,
    codes: Annotated[
        Path | None, typer.Option(metavar="FILE.JSON", help="A code for each of your columns: {column: code}.")
    ] = None,
    row_ids: IdOptions = IdOptions(),
    out: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="CSV file for the codes; by default stdout.")
    ] = None,
) -> None:
    """List for each row which of your columns raise its score most. Nothing is sent.

    The codes follow from Shapley values of your columns, computed with your weights. If you share them, they reveal
    which of your columns contribute most to a row; the final line states the number of bits.
    """
    from securevfl.credit import explanations
    from securevfl.data.readers import read_table
    from securevfl.disclosure.information_content import code_bits
    from securevfl.training.model_part import ModelPart

    part = ModelPart.load(model)
    check_writable(out)
    code_of = None if codes is None else codes_in(codes)
    table = read_table(
        data, replace(row_ids.options, label_column="", chosen=part.columns, known=part.preparation.types)
    )
    reasons_by_row = explanations.reasons(part, table.columns, most=top, codes=code_of)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    heads = table.key.names if table.written is not None and table.key is not None else ["id"]
    lines.writerow([*(heads if len(heads) > 1 else ["id"]), *(f"reason {k}" for k in range(1, top + 1))])
    ids = range(len(reasons_by_row)) if table.ids is None else table.ids.tolist()
    for row_id, row_codes in zip(ids if table.written is None else table.written, reasons_by_row, strict=True):
        values = row_id if isinstance(row_id, tuple) else (row_id,)
        lines.writerow([*values, *row_codes, *[""] * (top - len(row_codes))])
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        write_atomic(out, text.getvalue().encode())
    bits = code_bits(len(part.columns), top)
    typer.echo(f"If you share them, these codes reveal up to {bits:.1f} bits about your columns in each row.", err=True)

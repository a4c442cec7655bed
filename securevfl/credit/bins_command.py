"""The command `bins`: list the bins of a column of a party's table, and merge them. Nothing is sent."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from securevfl.cli import option_groups
from securevfl.cli.unused_options import refuse_unused
from securevfl.credit.own_table_options import OwnTableOptions
from securevfl.errors import ConfigError

_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


@dataclass(frozen=True)
class BinOptions:
    """Options of the bins to list."""

    edges: Annotated[
        str | None,
        typer.Option(
            "--bins",
            metavar="BINS",
            help='Bins as in a declaration: 1000,2000,5000 are edges of numbers, and ["A", "B"], ["C"] texts that '
            "share a bin. By default the declared ones, or else quantiles or frequent texts.",
        ),
    ] = None
    merge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBERS", help="Merge bins, by their numbers in the printed table, such as 2-4 or 1,3. Repeatable."
        ),
    ] = None
    monotone: Annotated[
        bool,
        typer.Option(
            "--monotone", help="Find bins along which the rate of the positive class only rises or only falls."
        ),
    ] = False
    max_bins: Annotated[
        int, typer.Option(metavar="COUNT", min=2, max=100, help="Maximum number of quantile or monotone bins.")
    ] = 10
    min_rows: Annotated[
        int, typer.Option(metavar="ROWS", min=20, help="Minimum number of rows of a quantile or monotone bin.")
    ] = 50


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(option_groups.expand_option_groups(bins))


def bins(
    context: typer.Context,
    own_table: OwnTableOptions,
    column: Annotated[str, typer.Option(metavar="COLUMN", help="The column.")],
    division: BinOptions = BinOptions(),
    report: option_groups.ReportOptions = option_groups.ReportOptions(),
) -> None:
    """List the bins of a column of your table, with the rate of the positive class in each. Nothing is sent.

    Prints rows, rate, weight of evidence and information value of each bin, and the line that declares these bins for a
    training.
    """
    from securevfl.cli.show import console, table
    from securevfl.credit.bin_table import bin_table

    if division.edges is not None:
        refuse_unused(context, ("max_bins", "monotone"), "with --bins", "leave --bins out")
    report.check()
    party = own_table.read(column)
    if column in party.types and party.types[column].bins:
        declared = f"because {own_table.columns} declares the bins of column {column}"
        refuse_unused(context, ("max_bins",), declared, "leave these bins out of the file")
    listed = bin_table(
        party,
        column,
        bins=None if division.edges is None else _read_bins(division.edges),
        monotone=division.monotone,
        merge=[_read_numbers(item) for item in division.merge or ()],
        max_bins=division.max_bins,
        min_rows=division.min_rows,
        positive=own_table.positive,
    )
    report.write("bins", listed.plain, listed.page)
    out = console()
    out.print(listed.head, soft_wrap=True)
    out.print(table(listed.heads, listed.cells()))
    typer.echo("Declare these bins in a file for --columns, or under [columns.NAME] in the job file:")
    typer.echo(listed.declaration_line)


def _read_bins(text: str) -> Any:
    """Return bins that are written as in a declaration, with or without the outer brackets."""
    for written in (f"[{text}]", text):
        try:
            values = tomllib.loads(f"bins = {written}")
        except tomllib.TOMLDecodeError:
            continue
        bins = values.pop("bins")
        if values or not isinstance(bins, list):
            continue
        is_wrapped_twice = len(bins) == 1 and isinstance(bins[0], list) and not all(isinstance(x, str) for x in bins[0])
        if bins and not is_wrapped_twice:
            return bins
    raise ConfigError(
        "--bins contains neither edges of numbers nor lists of texts",
        'write it as in --bins 1000,2000 or --bins \'["A", "B"], ["C"]\'',
        code="SVFL-COMMAND-USAGE",
    )


def _read_numbers(text: str) -> list[int]:
    """Return the numbers of bins of a text such as 2-4 or 1,3."""
    from securevfl.data.column_types import MAX_DECLARED_BINS

    if _NUMBERS.fullmatch(text):
        ranges = [[int(end) for end in part.split("-")] for part in text.split(",")]
        if all(1 <= ends[0] <= ends[-1] <= MAX_DECLARED_BINS + 1 for ends in ranges):
            return [number for ends in ranges for number in range(ends[0], ends[-1] + 1)]
    raise ConfigError(
        f"--merge {text} names no bins of the table, or a range that does not begin with its smallest number",
        "write the numbers of at least two bins of the table, as in --merge 2-4 or --merge 1,3",
        code="SVFL-COMMAND-USAGE",
    )

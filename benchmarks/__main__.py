"""Measurements on real tables: `python -m benchmarks --help`, from a checkout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from securevfl.base.files import check_writable
from securevfl.cli.bench import JsonFile, names_of, sizes_of, status, write_rows
from securevfl.cli.main import Commands
from securevfl.cli.show import console, table
from securevfl.errors import ConfigError
from securevfl.runtime.network import Network

app = typer.Typer(cls=Commands, no_args_is_help=True, help=__doc__)


@app.command()
def shares(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the tables.")],
    sizes: Annotated[str, typer.Option(metavar="NxD,...", help="Rows a batch x columns a party.")] = "256x15,256x100",
    tables: Annotated[str | None, typer.Option(metavar="NAMES", help="Which tables; all if left out.")] = None,
    large: Annotated[bool, typer.Option("--large", help="One epoch of 100,000 rows x (30 + 300) too.")] = False,
    json: JsonFile = None,
) -> None:
    """Measure trainings on secret shares: an iteration compared with a sealed round, accuracy, and predictions."""
    from benchmarks import shares as bench_shares

    check_writable(json)
    names = list(bench_shares.TABLE_JOBS) if tables is None else names_of(tables)
    check_tables(names, bench_shares.TABLE_JOBS)
    with status() as on_row:
        rows = bench_shares.run(data, sizes_of(sizes), names, on_row, large=large)
    write_rows(json, bench_shares.SHARES_SCHEMA, rows)
    print_lines(rows)


@app.command()
def trees(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the tables.")],
    tables: Annotated[str | None, typer.Option(metavar="NAMES", help="Which tables; five of them if left out.")] = None,
    trees: Annotated[
        int | None, typer.Option(min=1, help="Number of trees of each party; by default it depends on the rows.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Splits of each table.")] = 1,
    floats: Annotated[
        bool, typer.Option("--floats", help="Only the AUC in floating point and of other libraries.")
    ] = False,
    json: JsonFile = None,
) -> None:
    """Measure trees on secret shares: their cost, and their AUC compared with boosting."""
    from benchmarks import trees as bench_trees

    check_writable(json)
    names = list(bench_trees.TABLE_NAMES) if tables is None else names_of(tables)
    check_tables(names, bench_trees.SPLIT)
    with status() as on_row:
        rows = bench_trees.run(data, names, on_row, trees=trees, seeds=seeds, shares=not floats)
    write_rows(json, bench_trees.TREES_SCHEMA, rows)
    print_lines(rows)
    if not floats:
        heads = "table", "auc", "auc_boosting", "difference", "cpu_s"
        cells = [[row["table"], *(f"{row[head]:.4f}" for head in heads[1:4]), f"{row['cpu_s']:.1f}"] for row in rows]
        console().print(table(list(heads), cells))


@app.command("tree-schedule")
def tree_schedule(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds the tables.")],
    tables: Annotated[str, typer.Option(metavar="NAMES", help="Which tables.")] = "default_credit,support2,adult,a9a",
    seeds: Annotated[int, typer.Option(min=1, help="Splits of each table.")] = 5,
    json: JsonFile = None,
) -> None:
    """Compare schedules of step sizes for trees, in floating point."""
    from benchmarks import tree_schedule as schedules
    from benchmarks.trees import SPLIT

    check_writable(json)
    names = names_of(tables)
    check_tables(names, SPLIT)
    with status() as on_row:
        rows = schedules.run(data, names, seeds, on_row)
    write_rows(json, schedules.SCHEMA, rows)
    console().print(table(["table", "schedule", "iterations", "AUC"], schedules.means(rows)))


@app.command()
def rounds(
    data: Annotated[Path, typer.Option(metavar="DIR", help="The folder that contains the tables.")],
    tables: Annotated[
        str, typer.Option(metavar="NAMES", help="Tables, as default_credit or a9a-3; all by default.")
    ] = "",
    residuals: Annotated[str, typer.Option(metavar="NAMES", help="Among open, ckks, paillier.")] = "ckks",
    against: Annotated[
        str, typer.Option(metavar="NAMES", help="Optimizers on minibatches to compare with: fedbcd, fedsgd.")
    ] = "",
    mbps: Annotated[float, typer.Option(help="Bandwidth between the parties in Mbit/s.")] = 300.0,
    rtt_ms: Annotated[float, typer.Option(help="Round-trip time between the parties in milliseconds.")] = 20.0,
    json: JsonFile = None,
) -> None:
    """Measure the rounds until the AUC of pooled columns is reached, their cost, and the disclosed equations."""
    from benchmarks import rounds as bench_rounds

    check_writable(json)
    with status() as on_row:
        rows = bench_rounds.run(
            data,
            names_of(tables),
            residuals=names_of(residuals),
            against=names_of(against),
            network=Network(mbps=mbps, rtt_ms=rtt_ms),
            on_row=on_row,
        )
    write_rows(json, bench_rounds.ROUNDS_SCHEMA, rows)
    heads = [key.replace("_", "\n", 1) for key in rows[0]]
    cells = [["" if value is None else value for value in row.values()] for row in rows]
    console().print(table(heads, cells))


def check_tables(names: Sequence[str], known: Iterable[str]) -> None:
    """Raise ConfigError for an unknown name of a table."""
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"--tables: unknown tables {', '.join(unknown)}",
            f"choose from {', '.join(known)}",
            code="SVFL-COMMAND-USAGE",
            option="--tables",
        )


def print_lines(rows: Sequence[dict[str, Any]]) -> None:
    """Print each row as a line of JSON."""
    for row in rows:
        figures = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
        console().print(", ".join(figures), soft_wrap=True)


if __name__ == "__main__":
    app()

"""The commands `bottom fit` and `bottom apply`: a party's table through a network of its own, before any job.

The network comes from the party's own file and stays with it, as do its numbers. What is written is a table as any
other: join, predict and all others take it in place of the first one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from securevfl.base.files import check_writable, writing_whole
from securevfl.cli.party_options import IdColumn, LabelColumn
from securevfl.errors import ConfigError, IdError

Table = Annotated[Path, typer.Argument(metavar="FILE", help="Your table: .csv, .csv.gz, .parquet or .npz.")]
Module = Annotated[str, typer.Option(metavar="FILE.PY:NAME", help="Your module, or the function that makes it.")]
Weights = Annotated[Path, typer.Option(metavar="FILE", help="The module's numbers, .npz.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="The table of its outputs, .csv.")]

bottom = typer.Typer(no_args_is_help=True, help="Make columns of a network that you train alone, without labels.")
ROWS = 4096  # written at a time


def register(app: typer.Typer) -> None:
    """Add these commands to the app."""
    app.add_typer(bottom, name="bottom")


@bottom.command()
def fit(
    data: Table,
    module: Module,
    out: Out,
    weights: Weights = Path("bottom.npz"),
    pretext: Annotated[str, typer.Option(help="autoencoder, contrastive or none.")] = "autoencoder",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the table.")] = 20,
    lr: Annotated[float, typer.Option(min=0.0, help="Step size of Adam.")] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and of the order of rows.")] = 0,
    id_column: IdColumn = "id",
    label_column: LabelColumn = "y",
) -> None:
    """Train your network on your own columns, keep its numbers, and write its outputs as your table.

    No label has a part in it, nor any message. Use the written table in `align` and `join`.
    """
    from securevfl.data.readers import read_party
    from securevfl.models.local_bottom import LocalBottom

    _check_out(out, weights)
    own = read_party("table", data, id_column=id_column, label_column=label_column)
    made = LocalBottom(module, pretext, epochs=epochs, lr=lr, seed=seed)  # type: ignore[arg-type]
    fitted = made.fit(own)
    assert fitted.ids is not None, "rows of a file have ids"
    made.save(weights)
    labels = [] if own.y is None else [(label_column, own.y)]
    _write(out, id_column, fitted.ids, fitted.columns, fitted.X, labels)
    typer.echo(f"{len(own.columns)} columns became {len(fitted.columns)} in {out}; numbers of the network in {weights}")


@bottom.command()
def apply(
    data: Table,
    module: Module,
    out: Out,
    weights: Weights = Path("bottom.npz"),
    id_column: IdColumn = "id",
) -> None:
    """Write the outputs of a fitted network on other rows of the same columns, as `predict` needs them."""
    from securevfl.data.readers import read_table
    from securevfl.models.local_bottom import LocalBottom, outputs

    _check_out(out, weights)
    made = LocalBottom(module).load(weights)
    table = read_table(data, id_column=id_column, chosen=made.columns)
    H = made.apply(table.held.X)
    if table.ids is None:
        raise IdError(f"{data}: ids were expected, none came; add an array ids")
    _write(out, id_column, table.ids, outputs(H), H, [])
    typer.echo(f"{len(H)} rows in {out}")


def _check_out(out: Path, weights: Path) -> None:
    if out.suffix != ".csv":
        raise ConfigError(f"--out {out}: a file that ends in .csv was expected; correct it")
    if weights.suffix != ".npz":
        raise ConfigError(f"--weights {weights}: a file that ends in .npz was expected; correct it")
    check_writable(out)


def _write(
    out: Path, id_column: str, ids: Any, columns: Sequence[str], H: Any, labels: Sequence[tuple[str, Any]]
) -> None:
    """Write a CSV file that is there whole or not at all."""
    with writing_whole(out) as file:
        for start in range(0, len(H), ROWS):
            text = io.StringIO()
            lines = csv.writer(text, lineterminator="\n")
            if start == 0:
                lines.writerow([id_column, *columns, *(name for name, _ in labels)])
            rows = slice(start, start + ROWS)
            told = [each[rows].tolist() for _, each in labels]
            lines.writerows(zip(ids[rows].tolist(), *H[rows].T.tolist(), *told, strict=True))
            file.write(text.getvalue().encode())

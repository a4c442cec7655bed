"""Commands about a party's own part of the model, for which it meets nobody."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.base.files import check_writable, write_atomic
from securevfl.cli.option_groups import ReportOptions
from securevfl.cli.party_options import CheckpointDir, Html, IdColumn, Ledger, Model, ModelFile, Name, PreprocessingDir

if TYPE_CHECKING:
    pass
from securevfl.cli.reason_code_options import codes_in


def drift(
    model: Model,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="New rows with your columns, as for predict.")],
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Their predictions, as predict wrote them.")
    ] = None,
    id_column: IdColumn = "id",
    alarms: Annotated[
        float, typer.Option(min=1e-6, max=0.5, help="Chance that any column is said to be shifted when none is.")
    ] = 0.01,
    report: ReportOptions = ReportOptions(),
) -> None:
    """Say which of your columns have shifted since the training. Exit code 1 if any has. Nothing is sent.

    PSI, Kolmogorov-Smirnov, missing values and unseen texts of each column, against what your part has kept of the
    training rows.
    """
    from securevfl.cli.show import console, table
    from securevfl.training import drift_page
    from securevfl.training.model_part import ModelPart

    report.check()
    part = ModelPart.load(model)
    found = drift_page.drift(part, data, scores=scores, id_column=id_column, alarms=alarms)
    report.write(lambda: json.dumps(drift_page.plain(found, part), indent=2), lambda: drift_page.page(found, part))
    console().print(table(drift_page.DRIFT_HEADS, drift_page.rows(found)))
    if any(each.shifted for each in found):
        raise typer.Exit(1)


def scorecard(
    model: Model,
    points: Annotated[
        str, typer.Option(metavar="POINTS:ODDS:DOUBLE", help="Points at these odds, and how many more double them.")
    ] = "600:50:20",
    out: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the lines here.")] = None,
    page: Html = None,
) -> None:
    """Turn your part of a logistic model into points for each bin of your columns. Nothing is sent.

    The sum over all parties' columns and the base, at the party with labels, is a row's score: see predict --points.
    """
    from securevfl.cli.show import console, table
    from securevfl.training.model_part import ModelPart
    from securevfl.training.scorecard import ScorecardScale
    from securevfl.training.scorecard import scorecard as made_of

    check_writable(out, page)
    card = made_of([ModelPart.load(model)], ScorecardScale.read(points))
    for path, text in ((out, card.csv), (page, card.page)):
        if path is not None:
            write_atomic(path, text().encode())
    rows: list[list[str | int | float | None]] = [[line.column, line.bin, round(line.points, 2)] for line in card.lines]
    console().print(table(["column", "bin", "points"], rows))


def reasons(
    model: Model,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="Rows with your columns, as for predict.")],
    top: Annotated[int, typer.Option(min=1, max=100, help="Codes a row.")] = 3,
    codes: Annotated[
        Path | None, typer.Option(metavar="FILE.JSON", help="What your columns are called: {column: code}.")
    ] = None,
    id_column: IdColumn = "id",
    out: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Where they go; else stdout.")] = None,
) -> None:
    """Say for each row which of your own columns raise its score most. Nothing is sent.

    Codes come from Shapley values of your columns, by your own weights. Who else sees them learns which of your columns
    weigh most in a row: the last line says how many bits.
    """
    from securevfl.data.readers import read_table
    from securevfl.disclosure.information_content import code_bits
    from securevfl.training import explanations
    from securevfl.training.model_part import ModelPart

    part = ModelPart.load(model)
    check_writable(out)
    named = None if codes is None else codes_in(codes)
    table = read_table(data, id_column=id_column, label_column="", chosen=part.columns, texts=part.preparation.texts)
    found = explanations.reasons(part, table.columns, most=top, codes=named)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["id", *(f"reason {k}" for k in range(1, top + 1))])
    ids = range(len(found)) if table.ids is None else table.ids.tolist()
    lines.writerows([each, *own, *[""] * (top - len(own))] for each, own in zip(ids, found, strict=True))
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        write_atomic(out, text.getvalue().encode())
    told = code_bits(len(part.columns), top)
    typer.echo(f"to another these codes tell up to {told:.1f} bits of each row of your columns", err=True)


def export(model: Model, out: Annotated[Path, typer.Option(metavar="FILE.ONNX", help="Where the graph goes.")]) -> None:
    """Write your own part of a linear model as ONNX, with the preparation of your columns. Nothing is sent.

    Input X: your columns in the order that is printed, in double precision; output: what you add to the score.
    """
    from securevfl.training.model_part import ModelPart
    from securevfl.training.onnx_export import export_onnx

    part = ModelPart.load(model)
    check_writable(out)
    export_onnx(part, out)
    typer.echo(f"{part.name}'s part of the score, of columns {', '.join(part.columns)}, is in {out}")


def forget(
    party: Name,
    data: Annotated[
        Path, typer.Option("--data", metavar="FILE", help="The table that it was trained on, there or not.")
    ],
    model: ModelFile = None,
    checkpoints: CheckpointDir = None,
    ahead: PreprocessingDir = None,
    logs: Annotated[
        list[Path] | None, typer.Option("--log", metavar="FILE", help="A log to delete. Repeatable.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="What all your trainings on this table have left, those cut off too.")
    ] = False,
    ledger: Ledger = None,
) -> None:
    """Delete what a training has left with you: your part of the model, states, work ahead, row order, logs.

    Your ledger and the files beside it stay: what was told stays told. Nothing is deleted while a command uses the
    model or the table. The same command again deletes what is there by then.
    """
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.organisations.forget import TrainingFiles
    from securevfl.organisations.forget import forget as run

    left = TrainingFiles(
        party,
        data,
        data.with_name(f"{party}.model.json") if model is None else model,
        Path(f"{data}.states") if checkpoints is None else checkpoints,
        Path(f"{data}.ahead") if ahead is None else ahead,
        logs or (),
    )
    found = run(left, DisclosureLedger.open(party, ledger), every=every)
    for word, lines in (("deleted", found.deleted), ("kept", found.retained)):
        typer.echo(f"{word}:" + ("" if lines else " nothing"))
        for path, what in lines:
            typer.echo(f"  {path}: {what}")
    typer.echo("not looked for: backups, pages and predictions, wherever they were written")

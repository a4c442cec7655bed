"""Commands on one party's part of the model, without other parties: drift, scorecard, reasons, export, forget."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from securevfl.base.files import check_writable, write_atomic
from securevfl.cli.option_groups import ReportOptions
from securevfl.cli.party_options import CheckpointDir, Html, IdColumn, Ledger, Model, ModelFile, Name, PreprocessingDir
from securevfl.cli.reason_code_options import codes_in


def drift(
    model: Model,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="New rows with your columns, as for predict.")],
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Their predictions, as predict wrote them.")
    ] = None,
    id_column: IdColumn = "id",
    alarms: Annotated[
        float,
        typer.Option(min=1e-6, max=0.5, help="Probability that a column is reported as shifted although none is."),
    ] = 0.01,
    report: ReportOptions = ReportOptions(),
) -> None:
    """Report which of your columns have shifted since the training; exit code 1 if any has. Nothing is sent.

    Compares PSI, Kolmogorov-Smirnov statistic, missing values and new texts of each column with the training rows, of
    which your part contains a summary.
    """
    from securevfl.cli.show import console, table
    from securevfl.training import drift_page
    from securevfl.training.model_part import ModelPart

    report.check()
    part = ModelPart.load(model)
    drifts = drift_page.drift(part, data, scores=scores, id_column=id_column, alarms=alarms)
    report.write(lambda: json.dumps(drift_page.plain(drifts, part), indent=2), lambda: drift_page.page(drifts, part))
    console().print(table(drift_page.DRIFT_HEADS, drift_page.rows(drifts)))
    if any(column.shifted for column in drifts):
        raise typer.Exit(1)


def scorecard(
    model: Model,
    points: Annotated[
        str,
        typer.Option(metavar="POINTS:ODDS:DOUBLE", help="Points at these odds, and the points that double the odds."),
    ] = "600:50:20",
    out: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the scorecard to this file.")] = None,
    page: Html = None,
) -> None:
    """Convert your part of a logistic model to points for each bin of your columns. Nothing is sent.

    A row's score is the sum of the points of all parties' columns and of the base, which the party with labels has: see
    predict --points.
    """
    from securevfl.cli.show import console, table
    from securevfl.training.model_part import ModelPart
    from securevfl.training.scorecard import ScorecardScale
    from securevfl.training.scorecard import scorecard as build_scorecard

    check_writable(out, page)
    card = build_scorecard([ModelPart.load(model)], ScorecardScale.read(points))
    for path, text in ((out, card.csv), (page, card.page)):
        if path is not None:
            write_atomic(path, text().encode())
    rows: list[list[str | int | float | None]] = [[line.column, line.bin, round(line.points, 2)] for line in card.lines]
    console().print(table(["column", "bin", "points"], rows))


def reasons(
    model: Model,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="Rows with your columns, as for predict.")],
    top: Annotated[int, typer.Option(min=1, max=100, help="Codes per row.")] = 3,
    codes: Annotated[
        Path | None, typer.Option(metavar="FILE.JSON", help="A code for each of your columns: {column: code}.")
    ] = None,
    id_column: IdColumn = "id",
    out: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="CSV file for the codes; by default stdout.")
    ] = None,
) -> None:
    """List for each row which of your columns raise its score most. Nothing is sent.

    The codes follow from Shapley values of your columns, computed with your weights. If you share them, they reveal
    which of your columns contribute most to a row; the final line states the number of bits.
    """
    from securevfl.data.readers import read_table
    from securevfl.disclosure.information_content import code_bits
    from securevfl.training import explanations
    from securevfl.training.model_part import ModelPart

    part = ModelPart.load(model)
    check_writable(out)
    code_of = None if codes is None else codes_in(codes)
    table = read_table(data, id_column=id_column, label_column="", chosen=part.columns, known=part.preparation.types)
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


def export(model: Model, out: Annotated[Path, typer.Option(metavar="FILE.ONNX", help="File for the graph.")]) -> None:
    """Write your part of a linear model as ONNX, with the preparation of your columns. Nothing is sent.

    Input X: your columns in the printed order, in double precision. Output: your contribution to the score.
    """
    from securevfl.training.model_part import ModelPart
    from securevfl.training.onnx_export import export_onnx

    part = ModelPart.load(model)
    check_writable(out)
    export_onnx(part, out)
    typer.echo(f"{out} computes {part.name}'s contribution to the score from the columns {', '.join(part.columns)}")


def forget(
    party: Name,
    data: Annotated[
        Path, typer.Option("--data", metavar="FILE", help="The table of the training, which may be deleted already.")
    ],
    model: ModelFile = None,
    checkpoints: CheckpointDir = None,
    preprocessing: PreprocessingDir = None,
    logs: Annotated[
        list[Path] | None, typer.Option("--log", metavar="FILE", help="A log to delete. Repeatable.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also delete files of all other trainings on this table, including interrupted ones."
        ),
    ] = False,
    ledger: Ledger = None,
) -> None:
    """Delete files of a training: your part of the model, checkpoints, preprocessed material, row order, logs.

    Your ledger and the files next to it are retained, because disclosures cannot be undone. Nothing is deleted while a
    command uses the model or the table. Running the command again deletes files that were written in the meantime.
    """
    from securevfl.disclosure.ledger import DisclosureLedger
    from securevfl.organisations.forget import TrainingFiles
    from securevfl.organisations.forget import forget as delete_files

    files = TrainingFiles(
        party,
        data,
        data.with_name(f"{party}.model.json") if model is None else model,
        Path(f"{data}.states") if checkpoints is None else checkpoints,
        Path(f"{data}.ahead") if preprocessing is None else preprocessing,
        logs or (),
    )
    report = delete_files(files, DisclosureLedger.open(party, ledger), every=every)
    for word, lines in (("deleted", report.deleted), ("retained", report.retained)):
        typer.echo(f"{word}:" + ("" if lines else " nothing"))
        for path, description in lines:
            typer.echo(f"  {path}: {description}")
    typer.echo("not searched: backups, pages and predictions")

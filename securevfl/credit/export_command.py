"""The command `export`: write a party's part of the model as ONNX. Nothing is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from securevfl.base.files import check_writable
from securevfl.cli.option_groups import expand_option_groups
from securevfl.cli.party_options import Model


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(expand_option_groups(export))


def export(model: Model, out: Annotated[Path, typer.Option(metavar="FILE.ONNX", help="File for the graph.")]) -> None:
    """Write your part of a linear model as ONNX, with the preparation of your columns. Nothing is sent.

    Input X: your columns in the printed order, in double precision. Output: your contribution to the score.
    """
    from securevfl.credit.onnx_export import export_onnx
    from securevfl.training.model_part import ModelPart

    part = ModelPart.load(model)
    check_writable(out)
    export_onnx(part, out)
    typer.echo(f"{out} computes {part.name}'s contribution to the score from the columns {', '.join(part.columns)}")

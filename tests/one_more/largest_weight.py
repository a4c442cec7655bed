"""Another credit tool: a command that prints the column with the largest weight of a party's part of the model."""

from __future__ import annotations

import typer

from securevfl.cli.party_options import Model


def register(app: typer.Typer) -> None:
    """Add the command to an application."""
    app.command()(largest_weight)


def largest_weight(model: Model) -> None:
    """Print the column whose weights are largest in absolute value. Nothing is sent."""
    import numpy as np

    from securevfl.training.model_part import ModelPart

    part = ModelPart.load(model)
    position = int(np.argmax(np.abs(part.theta).max(axis=1)))
    typer.echo(f"{part.name}: {part.columns[position]}")

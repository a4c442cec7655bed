"""Refusal of options that a command does not use in the mode in which it was called.

A command with modes, such as `compare` with and without --party, has options that only some of its modes use. If such
an option were ignored, its user would believe that it had an effect. Variables of the environment (SECUREVFL_...) are
not refused, since they hold for all commands.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import typer

from securevfl.errors import ConfigError


def names_of(*groups: type[Any]) -> set[str]:
    """Return the names of the options of these option groups."""
    return {field.name for group in groups for field in fields(group)}


def refuse_unused(context: typer.Context, unused: Collection[str], condition: str, remedy: str = "") -> None:
    """Raise ConfigError if the command line contains an option that the command does not use.

    Args:
        context: the command that runs, with its command line.
        unused: the names of the parameters that have no effect.
        condition: when they have no effect, such as "without --http".
        remedy: how to make them effective, which the error adds to the advice to leave them out.
    """
    used = [
        option
        for option in context.command.params
        if option.name in unused and context.get_parameter_source(option.name).name == "COMMANDLINE"  # type: ignore[union-attr]
    ]
    if used:
        flags = ", ".join(max(option.opts, key=len) for option in used)
        verb = "has" if len(used) == 1 else "have"
        leave = "leave it out" if len(used) == 1 else "leave them out"
        raise ConfigError(
            f"{flags} {verb} no effect {condition}",
            f"{leave}, or {remedy}" if remedy else leave,
            code="SVFL-COMMAND-USAGE",
        )


def refuse_all_except(context: typer.Context, used: Collection[str], condition: str, remedy: str = "") -> None:
    """Raise ConfigError if the command line contains an option that is not in `used`; see `refuse_unused`."""
    names = {option.name for option in context.command.params if option.name is not None}
    refuse_unused(context, names - set(used), condition, remedy)

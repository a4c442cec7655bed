"""Families of training, commands and attacks that other packages bring, found by Python entry points.

A package names what it brings in one of three groups:

    securevfl.families   a `families.family.Family`, with the models and optimizers that it brings
    securevfl.tools      a function that adds its commands to a `typer.Typer`
    securevfl.attacks    an `audit.attacks.base.Attack`

Being installed loads none of it. A family or an attack is loaded once its party allows the distribution by name, in
the environment variable SECUREVFL_ALLOW, when a job names what is not known here or an audit begins: a job that a peer
wrote can ask for code and not run it. A command is loaded when its user types it. What is of securevfl comes first,
and a name that two bring is refused.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from securevfl.errors import ConfigError

ALLOW_VARIABLE = "SECUREVFL_ALLOW"  # distributions that this party lets run, with commas between


@dataclass(frozen=True)
class Extension:
    """A package that brings code which is no part of securevfl: parties that use it agree on all three."""

    distribution: str
    version: str
    digest: str  # SHA-256 of the files of its package, in hexadecimal

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}, digest {self.digest[:16]}"


def available_entry_points(group: str) -> dict[str, EntryPoint]:
    """List what other packages bring to a group, by name, without loading it. ConfigError if two bring one name."""
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = points.setdefault(point.name, point)
        if other.value != point.value or _distribution(other) != _distribution(point):
            raise ConfigError(
                f"{group}: one package was expected to bring {point.name}, {_distribution(other)} and "
                f"{_distribution(point)} do; uninstall one of them"
            )
    return points


def allowed_entry_points(group: str) -> dict[str, EntryPoint]:
    """List those of a group whose distributions this party lets run."""
    names = {name.strip() for name in os.environ.get(ALLOW_VARIABLE, "").split(",")}
    return {name: point for name, point in available_entry_points(group).items() if _distribution(point) in names}


def hint_for_disallowed(group: str) -> str:
    """Say which installed packages bring more to a group and how to allow them; empty if none does."""
    let = allowed_entry_points(group)
    rest = {_distribution(point) for name, point in available_entry_points(group).items() if name not in let}
    return f", or let {' or '.join(sorted(rest))} run by {ALLOW_VARIABLE}={','.join(sorted(rest))}" if rest else ""


def load_entry_point(point: EntryPoint) -> tuple[Any, Extension]:
    """Import what an entry point names, and say where it comes from. ConfigError if it can't be imported."""
    try:
        value = point.load()
    except Exception as cause:
        raise ConfigError(
            f"{_distribution(point)}: {point.value} was expected to load, it ended with {type(cause).__name__}; "
            "mend or uninstall it"
        ) from cause
    version = point.dist.version if point.dist is not None else "?"
    return value, Extension(_distribution(point), version, _digest(point.module.partition(".")[0]))


def _distribution(point: EntryPoint) -> str:
    return "?" if point.dist is None else point.dist.name


def _counts(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _digest(package: str) -> str:
    """Digest every file of a package or module but compiled bytecode, as it lies on this disk."""
    spec = find_spec(package)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    files = {path.relative_to(place): path for place in places for path in place.rglob("*") if _counts(path)}
    if not places and spec is not None and spec.origin is not None:
        files = {Path(spec.origin).relative_to(Path(spec.origin).parent): Path(spec.origin)}
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{name.as_posix()} {hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()

"""Protocol families, tools and attacks that packages provide through Python entry points.

A package declares its contributions in one of these groups:

    securevfl.families       a `families.family.Family`, with the models and optimizers that it provides
    securevfl.tools          a function that adds its commands to a `typer.Typer`
    securevfl.attacks        an `audit.attacks.base.Attack`
    securevfl.score_reasons  an `organisations.score_reasons.ScoreReasons`: reasons that parties send with scores
    securevfl.sheet_lines    a `consent.sheet_lines.SheetLines`: what a tool reveals, for the consent sheet
    securevfl.score_columns  an `organisations.prediction.ScoreColumn`: a column that a tool adds to predictions
    securevfl.served_rows    an `organisations.served_rows.ServedRowsCheck`: figures of the rows that a party serves

The optional subpackages of securevfl, `securevfl.credit` and `securevfl.audit`, are registered in the same way, and the
other subpackages never import them. A subpackage that is not on this computer provides nothing.

Installing a package does not load it. A protocol family is loaded when a job names something unknown, and an attack
when an audit begins, but only if the party allows the distribution by name in the environment variable SECUREVFL_ALLOW.
Therefore a job that a peer wrote can name a package but cannot make this party run it. A command is loaded when its
user types it. Names of securevfl have priority, and a name that two packages provide is an error.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from securevfl.errors import ConfigError, PackageMissingError

ALLOW_VARIABLE = "SECUREVFL_ALLOW"
"""Environment variable with the names of allowed distributions and modules, separated by commas."""
DISTRIBUTION = "securevfl"
"""The name of this distribution, whose entry points need no permission."""
USUAL_PACKAGES = dict.fromkeys(("reason_codes", "points", "drift"), "securevfl.credit")
"""The packages that usually provide these entry points; only messages name them."""


@dataclass(frozen=True)
class Extension:
    """A package that extends securevfl. The three fields must be equal at all parties that use it.

    Attributes:
        distribution: name of the distribution.
        version: its version.
        digest: hexadecimal SHA-256 digest of the files of its package.
    """

    distribution: str
    version: str
    digest: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}, digest {self.digest[:16]}"


def available_entry_points(group: str) -> dict[str, EntryPoint]:
    """List the entry points of a group by name, without loading them.

    Args:
        group: one of the groups of this module.

    Returns:
        The entry points by name.

    Raises:
        ConfigError: if two packages provide the same name.
    """
    points: dict[str, EntryPoint] = {}
    for point in filter(_is_on_disk, entry_points(group=group)):
        other = points.setdefault(point.name, point)
        if other.value != point.value or _distribution(other) != _distribution(point):
            raise ConfigError(
                f"the packages {_distribution(other)} and {_distribution(point)} both provide {point.name} in {group}",
                "uninstall one of them",
                code="SVFL-JOB-EXTENSION",
                name=point.name,
            )
    return points


def allowed_names() -> frozenset[str]:
    """Return the names that SECUREVFL_ALLOW lists, of distributions and of PyTorch modules (`file.py:name`)."""
    return frozenset(name.strip() for name in os.environ.get(ALLOW_VARIABLE, "").split(",")) - {""}


def allowed_entry_points(group: str) -> dict[str, EntryPoint]:
    """List the entry points of a group, by name, of securevfl and of the distributions that this party allows."""
    names = allowed_names() | {DISTRIBUTION}
    return {name: point for name, point in available_entry_points(group).items() if _distribution(point) in names}


def hint_for_disallowed(group: str) -> str:
    """Return a hint that states how to allow installed packages of a group; empty if all are allowed."""
    allowed = allowed_entry_points(group)
    others = {_distribution(point) for name, point in available_entry_points(group).items() if name not in allowed}
    names = sorted(others)
    return f"; to allow {' or '.join(names)}, set {ALLOW_VARIABLE}={','.join(names)}" if names else ""


def find_tool(group: str, name: str) -> Any | None:
    """Return the object that a package registers under this name; None if no package that this party allows does.

    Args:
        group: one of the groups of this module.
        name: name of the entry point.

    Returns:
        The object of the entry point; None if no package provides one.

    Raises:
        ConfigError: if the import fails, or two packages provide the name.
    """
    point = allowed_entry_points(group).get(name)
    return None if point is None else import_entry_point(point)


def require_tool(group: str, name: str, purpose: str, party: str = "") -> Any:
    """Load the object that a package registers under a name.

    Args:
        group: one of the groups of this module.
        name: name of the entry point.
        purpose: the feature that needs the package; the error begins with it.
        party: name of this party, if it is known.

    Returns:
        The object of the entry point.

    Raises:
        PackageMissingError: if no package provides it, or this party does not allow the package.
    """
    tool = find_tool(group, name)
    if tool is None:
        package = USUAL_PACKAGES.get(name, f"one with the entry point {name} in {group}")
        raise PackageMissingError(
            f"{purpose} needs the package {package}, which {party or 'this computer'} lacks"
            f"{hint_for_disallowed(group)}",
            f"install it{f' at {party}' if party else ''}, or leave {purpose} out",
            code="SVFL-PACKAGE-MISSING",
            package=package,
            party=party,
        )
    return tool


def is_own(point: EntryPoint) -> bool:
    """Return whether an entry point is of securevfl itself."""
    return _distribution(point) == DISTRIBUTION


def _is_on_disk(point: EntryPoint) -> bool:
    """Return False if an entry point of securevfl refers to an optional subpackage that is not installed, else True."""
    return not is_own(point) or find_spec(".".join(point.module.split(".")[:2])) is not None


def import_entry_point(point: EntryPoint) -> Any:
    """Import the object of an entry point.

    Args:
        point: the entry point that a package declares.

    Returns:
        The object that the entry point names.

    Raises:
        ConfigError: if the import fails.
    """
    try:
        return point.load()
    except Exception as cause:
        raise ConfigError(
            f"{point.value} of the package {_distribution(point)} cannot be loaded ({type(cause).__name__})",
            code="SVFL-JOB-EXTENSION",
            name=point.name,
        ) from cause


def load_entry_point(point: EntryPoint) -> tuple[Any, Extension]:
    """Import the object of an entry point, and identify the package that provides it.

    Args:
        point: the entry point that a package declares.

    Returns:
        The object and the package.

    Raises:
        ConfigError: if the import fails.
    """
    value = import_entry_point(point)
    version = point.dist.version if point.dist is not None else "?"
    return value, Extension(_distribution(point), version, _digest(point.module.partition(".")[0]))


def _distribution(point: EntryPoint) -> str:
    return "?" if point.dist is None else point.dist.name


def _is_digested(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts


def _digest(package: str) -> str:
    """Return the digest of all files of a package or module on this disk, except compiled bytecode."""
    spec = find_spec(package)
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = {path.relative_to(folder): path for folder in folders for path in folder.rglob("*") if _is_digested(path)}
    if not folders and spec is not None and spec.origin is not None:
        files = {Path(spec.origin).relative_to(Path(spec.origin).parent): Path(spec.origin)}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name.as_posix()} {hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()

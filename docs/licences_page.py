"""The licences of the libraries that securevfl installs, generated from their metadata (docs/made_pages.py)."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DEVELOPMENT = ("bench", "dev", "docs", "test")
"""Extras that only developers of securevfl install."""
INTRODUCTION = """# Licences of the dependencies

securevfl is licensed under Apache-2.0. `pip install securevfl` also installs the libraries without an extra in this
table, under their licences. The libraries of an extra are installed only if you name it, as in
`pip install 'securevfl[torch]'`. No library is copied into the package.

Two licences are not permissive. gmpy2 is LGPL-3.0-or-later and is used as a library. phe is GPL-3.0 and exists only
for benchmarks, in its extra; nothing else imports it.

The table contains direct dependencies, with the licence that each library states in its metadata.
`python -m docs.made_pages` generates it.

"""
SHORT = 60
"""A longer text in the field License is the text of the licence and not its name."""


def licence(name: str) -> str:
    """Return the licence of an installed library.

    Raises:
        PackageNotFoundError: if the library is not installed.
    """
    fields = metadata(name)
    if expression := fields.get("License-Expression"):
        return str(expression)
    classifiers = [
        line.rpartition(" :: ")[2] for line in fields.get_all("Classifier") or () if line.startswith("License ::")
    ]
    named = [line for line in classifiers if line != "OSI Approved"]
    stated = str(fields.get("License") or "").strip()
    if stated and len(stated) <= SHORT and stated != "UNKNOWN":
        return stated
    return ", ".join(named) or "not stated"


def rows() -> list[tuple[str, str, str]]:
    """Return the name, the extra (empty without one) and the licence of each direct dependency of users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    names = {
        (Requirement(text).name, extra) for extra, texts in groups.items() if extra not in DEVELOPMENT for text in texts
    }
    described = []
    for name, extra in sorted(names, key=lambda item: (item[1], item[0])):
        try:
            described.append((name, extra, licence(name)))
        except PackageNotFoundError:
            described.append((name, extra, "not installed"))
    return described


def page() -> str:
    """Return the page."""
    table = [f"| {name} | {extra} | {text} |" for name, extra, text in rows()]
    return INTRODUCTION + "\n".join(["| library | extra | licence |", "|---|---|---|", *table]) + "\n"

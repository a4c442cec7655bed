"""Ways to break the library, each applied to the real code while a block runs, each with the check that catches it.

A mutant is proof that its check can fail. They lie in mutants_*.py, by what they break.
`python -m securevfl.audit.mutants.table docs/mutants.md` writes the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from securevfl.audit.mutants.alignment import MUTANTS as ALIGNMENT
from securevfl.audit.mutants.bits import MUTANTS as BITS
from securevfl.audit.mutants.bound import MUTANTS as BOUND
from securevfl.audit.mutants.chosen import MUTANTS as CHOSEN
from securevfl.audit.mutants.evidence import MUTANTS as EVIDENCE
from securevfl.audit.mutants.kept import MUTANTS as KEPT
from securevfl.audit.mutants.lattice import MUTANTS as LATTICE
from securevfl.audit.mutants.lost import MUTANTS as LOST
from securevfl.audit.mutants.masks import MUTANTS as MASKS
from securevfl.audit.mutants.mutant import Mutant
from securevfl.audit.mutants.paillier import MUTANTS as PAILLIER
from securevfl.audit.mutants.protocols import MUTANTS as PROTOCOLS
from securevfl.audit.mutants.related import MUTANTS as RELATED
from securevfl.audit.mutants.repeats import MUTANTS as REPEATS
from securevfl.audit.mutants.session import MUTANTS as SESSION
from securevfl.audit.mutants.shares import MUTANTS as SHARES
from securevfl.audit.mutants.stored import MUTANTS as STORED

MUTANTS: list[Mutant] = [
    *MASKS,
    *PROTOCOLS,
    *KEPT,
    *PAILLIER,
    *LATTICE,
    *CHOSEN,
    *SESSION,
    *ALIGNMENT,
    *LOST,
    *BITS,
    *RELATED,
    *REPEATS,
    *BOUND,
    *EVIDENCE,
    *SHARES,
    *STORED,
]


def table() -> str:
    """The list as Markdown."""
    lines = [
        "# Mutants",
        "",
        f"{len(MUTANTS)} ways to break the library. Each is applied to the real code, and the check named must find it",
        "(`securevfl/audit/suite/test_mutants.py`); the same check passes on the code as it is. Made by",
        "`python -m securevfl.audit.mutants.table`.",
        "",
        "| mutant | what it does | caught by | as |",
        "|---|---|---|---|",
    ]
    lines += [f"| {each.name} | {each.what} | {each.caught_by} | {each.finding} |" for each in MUTANTS]
    return "\n".join(lines) + "\n"


def main(path: str) -> None:
    """Writes the table."""
    Path(path).write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

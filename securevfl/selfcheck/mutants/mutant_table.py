"""Ways to break the library, each applied to the real code while a block runs, each with the check that catches it.

A mutant is proof that its check can fail. They lie in mutants_*.py, by what they break.
`python -m securevfl.selfcheck.mutants.mutant_table docs/mutants.md` writes the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

from securevfl.selfcheck.mutants.account_mutants import MUTANTS as ACCOUNTS
from securevfl.selfcheck.mutants.alignment_mutants import MUTANTS as ALIGNMENT
from securevfl.selfcheck.mutants.binding_mutants import MUTANTS as BOUND
from securevfl.selfcheck.mutants.chosen_value_mutants import MUTANTS as CHOSEN
from securevfl.selfcheck.mutants.evidence_mutants import MUTANTS as EVIDENCE
from securevfl.selfcheck.mutants.gradient_mutants import MUTANTS as GRADIENTS
from securevfl.selfcheck.mutants.instance_mutants import MUTANTS as INSTANCES
from securevfl.selfcheck.mutants.kept_exchange_mutants import MUTANTS as KEPT
from securevfl.selfcheck.mutants.kernel_mutants import MUTANTS as KERNEL
from securevfl.selfcheck.mutants.lattice_mutants import MUTANTS as LATTICE
from securevfl.selfcheck.mutants.lost_entropy_mutants import MUTANTS as LOST
from securevfl.selfcheck.mutants.mask_bits_mutants import MUTANTS as BITS
from securevfl.selfcheck.mutants.mask_mutants import MUTANTS as MASKS
from securevfl.selfcheck.mutants.mutant import Mutant
from securevfl.selfcheck.mutants.opening_mutants import MUTANTS as OPENINGS
from securevfl.selfcheck.mutants.paillier_mutants import MUTANTS as PAILLIER
from securevfl.selfcheck.mutants.protocol_mutants import MUTANTS as PROTOCOLS
from securevfl.selfcheck.mutants.related_draws_mutants import MUTANTS as RELATED
from securevfl.selfcheck.mutants.repeat_mutants import MUTANTS as REPEATS
from securevfl.selfcheck.mutants.session_mutants import MUTANTS as SESSION
from securevfl.selfcheck.mutants.shares_mutants import MUTANTS as SHARES
from securevfl.selfcheck.mutants.stored_mutants import MUTANTS as STORED
from securevfl.selfcheck.mutants.tree_mutants import MUTANTS as TREES

MUTANTS: list[Mutant] = [
    *MASKS,
    *PROTOCOLS,
    *KEPT,
    *PAILLIER,
    *LATTICE,
    *OPENINGS,
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
    *TREES,
    *KERNEL,
    *GRADIENTS,
    *INSTANCES,
    *ACCOUNTS,
]


def table() -> str:
    """Return the list of mutants as Markdown."""
    lines = [
        "# Mutants",
        "",
        f"{len(MUTANTS)} ways to break the library. Each is applied to the real code, and the check named must find it",
        "(`securevfl/selfcheck/suite/test_mutants.py`); the same check passes on the code as it is. Made by",
        "`python -m securevfl.selfcheck.mutants.mutant_table`.",
        "",
        "| mutant | what it does | caught by | as |",
        "|---|---|---|---|",
    ]
    lines += [f"| {each.name} | {each.what} | {each.caught_by} | {each.finding} |" for each in MUTANTS]
    return "\n".join(lines) + "\n"


def main(path: str) -> None:
    """Write the table of mutants to a file."""
    Path(path).write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])

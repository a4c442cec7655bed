"""All mutants: deliberate errors in the library's code, each with the check that detects it.

A mutant proves that its check can fail. It is applied to the real code while a block runs. The modules *_mutants.py
group mutants by the code that they change. A page of the documentation lists them (docs/made_pages.py).
"""

from __future__ import annotations

from selfcheck.mutants.account_mutants import MUTANTS as ACCOUNTS
from selfcheck.mutants.alignment_mutants import MUTANTS as ALIGNMENT
from selfcheck.mutants.binding_mutants import MUTANTS as BOUND
from selfcheck.mutants.carry_mutants import MUTANTS as CARRIES
from selfcheck.mutants.chosen_value_mutants import MUTANTS as CHOSEN
from selfcheck.mutants.evidence_mutants import MUTANTS as EVIDENCE
from selfcheck.mutants.gradient_mutants import MUTANTS as GRADIENTS
from selfcheck.mutants.instance_mutants import MUTANTS as INSTANCES
from selfcheck.mutants.kept_exchange_mutants import MUTANTS as KEPT
from selfcheck.mutants.kernel_mutants import MUTANTS as KERNEL
from selfcheck.mutants.lattice_mutants import MUTANTS as LATTICE
from selfcheck.mutants.lost_entropy_mutants import MUTANTS as LOST
from selfcheck.mutants.mask_bits_mutants import MUTANTS as BITS
from selfcheck.mutants.mask_mutants import MUTANTS as MASKS
from selfcheck.mutants.mutant import Mutant
from selfcheck.mutants.opening_mutants import MUTANTS as OPENINGS
from selfcheck.mutants.paillier_mutants import MUTANTS as PAILLIER
from selfcheck.mutants.pair_mutants import MUTANTS as PAIRS
from selfcheck.mutants.protocol_mutants import MUTANTS as PROTOCOLS
from selfcheck.mutants.related_draws_mutants import MUTANTS as RELATED
from selfcheck.mutants.repeat_mutants import MUTANTS as REPEATS
from selfcheck.mutants.session_mutants import MUTANTS as SESSION
from selfcheck.mutants.shares_mutants import MUTANTS as SHARES
from selfcheck.mutants.stored_mutants import MUTANTS as STORED
from selfcheck.mutants.tree_mutants import MUTANTS as TREES

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
    *CARRIES,
    *PAIRS,
    *STORED,
    *TREES,
    *KERNEL,
    *GRADIENTS,
    *INSTANCES,
    *ACCOUNTS,
]


def as_markdown() -> str:
    """Return the list of mutants as Markdown."""
    lines = [
        "# Mutants",
        "",
        f"{len(MUTANTS)} ways to break the library. Each is applied to the real code, and the check named must find it",
        "(`tests/selfcheck/suite/test_mutants.py`); the same check passes on the code as it is.",
        "",
        "| mutant | change | caught by | as |",
        "|---|---|---|---|",
    ]
    lines += [f"| {mutant.name} | {mutant.what} | {mutant.caught_by} | {mutant.finding} |" for mutant in MUTANTS]
    return "\n".join(lines) + "\n"

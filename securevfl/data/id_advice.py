"""Advice to a user whose tables have no ids, or few ids, in common.

The advice shows patterns of ids (9 for a digit, A or a for a letter), never an id itself. It may recommend the *rule
for spellings* (`securevfl.data.composite_ids`), which ignores capitals, accents and punctuation in ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.composite_ids import ZeroMatches, id_spelling, rule_matches, zero_matches
from securevfl.errors import IdError

MAX_LOST_SHARE = 0.01
"""A join that leaves out at most this share of the smallest table is not searched for lost zeros."""


def no_match_error(ids: Mapping[str, Any], by_rule: bool | None = None) -> IdError:
    """Return the error that tables in one process have no id in common.

    Args:
        ids: the ids (n,) of each party.
        by_rule: whether the ids were composed by the rule for spellings; None if the caller cannot use that rule.

    Returns:
        The error. If the rule, or the restoration of lost leading zeros, would match ids, the error recommends the one
        that would match more of them.
    """
    spellings = "; ".join(f"{name}: {id_spelling(values)}" for name, values in ids.items())
    problem = f"the parties' tables have no id in common. The patterns of ids, with 9 for a digit, are: {spellings}"
    rule = rule_matches(ids) if by_rule is False else None
    zeros = zero_matches(ids)
    if zeros is not None and (rule is None or zeros.matches > rule.matches):
        return IdError(
            f"{problem}. {_describe_zeros(zeros, '')}", _restore(zeros), code="SVFL-ID-NO-MATCH", matches=zeros.matches
        )
    if rule is not None:
        return IdError(
            f"{problem}. The rule for spellings would match {rule.matches:,} ids, for example by reading {rule.before} "
            f"of {rule.party} as {rule.after}. It ignores capitals, accents, blanks and punctuation, but no sign, "
            "decimal point or leading zero of a number",
            "to use the rule, write a comma after the name of the id column: --id COLUMN,",
            code="SVFL-ID-NO-MATCH",
            matches=rule.matches,
        )
    named = "" if by_rule is None else " with --id"
    return IdError(
        problem,
        f"write the ids alike in all tables, or name other id columns{named}",
        code="SVFL-ID-NO-MATCH",
    )


def lost_zeros_notice(ids: Mapping[str, Any], rows: Mapping[str, NDArray[np.intp]]) -> str:
    """Return a notice about rows whose ids do not match because a table has lost their leading zeros; "" if none.

    Such rows are searched for only if the join leaves out more than MAX_LOST_SHARE of the smallest table.

    Args:
        ids: the ids (n,) of each party.
        rows: the rows of the shared ids at each party.

    Returns:
        The notice, with the number of ids and a pattern.
    """
    smallest = min(ids, key=lambda name: len(ids[name]))
    if len(ids[smallest]) - len(rows[smallest]) <= MAX_LOST_SHARE * len(ids[smallest]):
        return ""
    others = {name: np.delete(np.asarray(values), rows[name]) for name, values in ids.items()}
    if not all(len(values) for values in others.values()):
        return ""
    zeros = zero_matches(others)
    return "" if zeros is None else f"{_describe_zeros(zeros, 'more ')}; {_restore(zeros)}"


def _describe_zeros(zeros: ZeroMatches, more: str) -> str:
    return (
        f"{zeros.matches:,} {more}ids would match without their leading zeros, for example {zeros.padded} of "
        f"{zeros.padded_party} and {zeros.stripped} of {zeros.parties[0]}"
    )


def _restore(zeros: ZeroMatches) -> str:
    """Return the advice that the parties should restore the leading zeros that their tables have lost."""
    *others, last = zeros.parties
    names = f"{', '.join(others)} and {last} have" if others else f"{last} has"
    return (
        f"restore the leading zeros that {names} lost: export these ids again as texts, or fill them up with zeros to "
        "the length that they had"
    )

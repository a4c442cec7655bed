"""Mutants (deliberate errors) of values that repeat from job to job, and of the counts of ledgers."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.data.schedule import Rows, Schedule
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerContents
from securevfl.disclosure.row_sets import RowSets
from securevfl.protocols.residuals.defences import Noise
from selfcheck.mutants.mutant import Mutant, patched

_reserve, _noise = DisclosureLedger.reserve, Noise.__init__


def _seeded(self: Any, epoch: int) -> Rows:
    drawn: Rows = np.random.default_rng([self._seed, epoch]).permutation(self.train)
    return drawn


def _anew(self: Any, again: int | None = None) -> Prg:
    return Prg.fresh("defence of a residual")


def _key_dropped(self: Any, key: bytes, subchannel: str, first: int) -> None:
    _noise(self, os.urandom(32), subchannel, first)


def _checks_only(self: Any, register: Any, sitting: Any, disclosures: Any, check: Any, *, ahead: Any) -> Any:
    check([])
    return SimpleNamespace(lease=lambda disclosures: None, settle=lambda disclosures: None)


def _one_name(self: Any, register: Any, sitting: Any, disclosures: Any, check: Any, *, ahead: Any) -> Any:
    return _reserve(self, register, ("run", ""), disclosures, check, ahead=ahead)


def _shares_nothing(self: Any, rows: Any, sets: Any) -> dict[str, int]:
    return dict.fromkeys(sets, 0)


MUTANTS = [
    Mutant(
        "schedule: the seed parts the rows",
        "jobs under other seeds visit other batches",
        "batches repeat",
        "repeat",
        patched((Schedule, "_divided", _seeded)),
    ),
    Mutant(
        "noise: drawn again",
        "each release of a blurred residual has fresh noise",
        "replayed noise repeats",
        "repeat",
        patched((Noise, "take", _anew)),
    ),
    Mutant(
        "noise: the kept key is not used",
        "a resumed run draws a new key for its noise",
        "replayed noise repeats",
        "repeat",
        patched((Noise, "__init__", _key_dropped)),
    ),
    Mutant(
        "ledger: keeps nothing",
        "runs are checked by themselves and not entered",
        "ledgers count",
        "count",
        patched((DisclosureLedger, "reserve", _checks_only)),
    ),
    Mutant(
        "ledger: one name for all runs",
        "a second run takes the place of the first",
        "ledgers count",
        "count",
        patched((DisclosureLedger, "reserve", _one_name)),
    ),
    Mutant(
        "ledger: another set of ids is another table",
        "jobs on tables that are not equal do not count together",
        "ledgers know rows",
        "count",
        patched((RowSets, "count_shared", _shares_nothing)),
    ),
    Mutant(
        "ledger: nothing is reserved",
        "a run counts for others by its reservations, some iterations in advance",
        "ledgers reserve",
        "count",
        patched((LedgerContents, "counted", property(lambda self: self.entries))),
    ),
]

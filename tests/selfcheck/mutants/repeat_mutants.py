"""Mutants of what repeats from job to job and of what ledgers count."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from securevfl.crypto.prg import Prg
from securevfl.data.schedule import Rows, Schedule
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.protocols.residuals.defences import Noise
from selfcheck.mutants.mutant import Mutant, patched

_book, _noise = DisclosureLedger.book, Noise.__init__


def _seeded(self: Any, epoch: int) -> Rows:
    drawn: Rows = np.random.default_rng([self._seed, epoch]).permutation(self.train)
    return drawn


def _anew(self: Any, again: int | None = None) -> Prg:
    return Prg.fresh("defence of a residual")


def _key_dropped(self: Any, key: bytes, lane: str, first: int) -> None:
    _noise(self, os.urandom(32), lane, first)


def _checks_only(self: Any, register: Any, sitting: Any, told: Any, check: Any = None, *, ahead: Any = None) -> None:
    if check is not None:
        check([])


def _one_name(self: Any, register: Any, sitting: Any, told: Any, check: Any = None, *, ahead: Any = None) -> None:
    checked = check or (lambda before: None)
    _book(self, register, ("run", ""), told, checked, ahead=ahead)


MUTANTS = [
    Mutant(
        "schedule: the seed parts the rows",
        "jobs under other seeds visit other batches",
        "batches repeat",
        "repeat",
        patched((Schedule, "_parted", _seeded)),
    ),
    Mutant(
        "noise: drawn anew",
        "each release of a blurred residual has noise of its own",
        "replayed noise repeats",
        "repeat",
        patched((Noise, "take", _anew)),
    ),
    Mutant(
        "noise: the kept key is not used",
        "a run that goes on draws a new key for its noise",
        "replayed noise repeats",
        "repeat",
        patched((Noise, "__init__", _key_dropped)),
    ),
    Mutant(
        "ledger: keeps nothing",
        "runs are checked by themselves and not entered",
        "ledgers count",
        "count",
        patched((DisclosureLedger, "book", _checks_only)),
    ),
    Mutant(
        "ledger: one name for all runs",
        "a second run takes the place of the first",
        "ledgers count",
        "count",
        patched((DisclosureLedger, "book", _one_name)),
    ),
]

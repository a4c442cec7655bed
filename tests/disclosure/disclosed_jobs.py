"""Forty varied jobs, and a record of what each of them discloses.

`record` returns, for one job, the counts and leaks that follow from public sizes, the numbers in the consent sheet,
and the entries that a run leaves in each party's ledger. The wording of the sheet may change freely. The record of all
jobs is stored in `tests/vectors/disclosures.json`. A change of the code that should disclose the same leaves the file
as it is. To write it again, run `python tests/disclosure/disclosed_jobs.py`, and review the difference.
"""

from __future__ import annotations

import json
import re
import tempfile
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import securevfl as vfl
from securevfl.consent.consent_sheet import ESTIMATES_TITLE
from securevfl.consent.leak_check import leaks
from securevfl.data.party import Helper
from securevfl.disclosure.counts import Disclosure
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.ledger_contents import LedgerEntry
from securevfl.disclosure.outputs import disclosures_of
from securevfl.families import FAMILIES, leak_kinds
from securevfl.families.facts import RunFacts
from securevfl.families.message_declarations import run_roles
from securevfl.families.run_facts import pooled_run_facts
from securevfl.job import Job

FILE = Path(__file__).parents[1] / "vectors" / "disclosures.json"
ROWS = 132
_NUMBERS = re.compile(r"\d[\d,.]*\d|\d")
EXAMPLES = {name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()}
SHARES_KEYS: dict[str, Any] = {"model": "logistic", "optimizer": vfl.FedSGD(lr=0.3), "protocol": "shares"}
ROUNDS_KEYS: dict[str, Any] = {"model": "logistic", "optimizer": vfl.FedBCD(lr=0.1), "protocol": "ckks"}
OPEN: dict[str, Any] = ROUNDS_KEYS | {"protocol": vfl.Protocol(residual="open")}
PATIENCE_KEYS = {"metric": "loss", "evaluations": 9, "tolerance": 0.0}

VARIANTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    # name: number of parties, number of classes (0 for numbers), options
    "rounds of two parties": (2, 2, ROUNDS_KEYS),
    "rounds, three classes": (3, 3, ROUNDS_KEYS | {"model": vfl.Softmax()}),
    "rounds, numbers": (2, 0, OPEN | {"model": "square"}),
    "rounds, evaluated in each round": (3, 2, OPEN | {"evaluate_every": 1}),
    "rounds, nothing held out": (3, 2, OPEN | {"test_fraction": 0.0, "evaluate_every": 2}),
    "rounds, patience": (3, 3, OPEN | {"model": vfl.Softmax(), "patience": PATIENCE_KEYS}),
    "rounds in turn": (3, 2, OPEN | {"optimizer": vfl.FedBCD(lr=0.1, mode="sequential")}),
    "rounds, new batches": (2, 2, ROUNDS_KEYS | {"reshuffle": True}),
    "rounds, noise": (
        2,
        2,
        OPEN | {"protocol": {"residual": {"name": "open", "defence": {"name": "gaussian", "sigma": 2.0}}}},
    ),
    "shares of two parties": (2, 2, SHARES_KEYS),
    "shares, one against the rest": (3, 3, SHARES_KEYS | {"model": "one_vs_rest"}),
    "shares, numbers": (3, 0, SHARES_KEYS | {"model": "square", "optimizer": vfl.FedSGD(lr=0.1)}),
    "shares, evaluated often": (2, 2, SHARES_KEYS | {"evaluate_every": 2, "epochs": 3}),
    "shares, target": (
        3,
        2,
        SHARES_KEYS | {"evaluate_every": 3, "epochs": 3, "target": {"metric": "loss", "value": 0.0}},
    ),
    "shares, rollbacks": (2, 2, SHARES_KEYS | {"optimizer": "block_descent", "batch_size": "all", "evaluate_every": 1}),
    "shares, early stop": (
        3,
        2,
        SHARES_KEYS | {"optimizer": {"name": "block_descent", "early_stop": 9.0}, "batch_size": "all", "epochs": 20},
    ),
    "shares, no scores": (2, 2, SHARES_KEYS | {"protocol": {"shares": {"scores": "none"}}}),
    "shares, exact scores": (2, 2, SHARES_KEYS | {"protocol": {"shares": {"scores": "exact"}}}),
    "shares, all weights": (3, 2, SHARES_KEYS | {"protocol": {"shares": {"open_weights": ["bank", "shop", "telco"]}}}),
    "shares, reasons": (
        2,
        2,
        SHARES_KEYS | {"protocol": {"shares": {"open_weights": ["shop"]}}, "reason_codes": 2},
    ),
    "fdml without a server": (3, 2, EXAMPLES["fdml masks, labels shown"] | {"optimizer": None}),
    "transfer, evaluated": (2, 2, EXAMPLES["transfer ckks"] | {"evaluate_every": 2}),
    "phases of two parties": (2, 2, EXAMPLES["kernel direct"] | {"evaluate_every": 2}),
}


def tables(count: int, classes: int) -> list[vfl.Party]:
    """Return parties of three columns each; with no classes the labels are numbers."""
    generator = np.random.default_rng(5)
    X = np.round(generator.normal(size=(ROWS, 3 * count)), 2)
    score = X @ generator.normal(size=3 * count) + generator.normal(size=ROWS)
    edges = np.quantile(score, np.arange(1, classes) / classes) if classes else ()
    y = np.searchsorted(edges, score) if classes else np.round(score, 2)
    return [
        vfl.Party(name, X[:, 3 * k : 3 * k + 3], y if k == 0 else None, ids=np.arange(ROWS))
        for k, name in enumerate(("bank", "shop", "telco")[:count])
    ]


def cases() -> dict[str, tuple[Job, list[vfl.Party | Helper]]]:
    """Return all jobs with their parties, by name; the table is new, and its jobs and parties are shared."""
    return dict(_cases())


@cache
def _cases() -> dict[str, tuple[Job, list[vfl.Party | Helper]]]:
    base = {"batch_size": 40, "epochs": 2, "test_fraction": 0.25}
    result: dict[str, tuple[Job, list[vfl.Party | Helper]]] = {}
    variants = {name: (3, 2, options) for name, options in EXAMPLES.items()} | VARIANTS
    for name, (count, classes, options) in variants.items():
        keys = base | {"accepts": [*leak_kinds()]} | options | {"accepts": [*leak_kinds()]}
        if name == "fdml without a server":
            keys["optimizer"] = vfl.FDML(lr=0.2, tau=1, shows_labels=True, stored="open")
        if name == "shares, counts":
            classes = 0
        job = vfl.Job(**keys)
        parties: list[vfl.Party | Helper] = [*tables(min(count, job.family.max_parties or 3), classes)]
        if name == "shares, counts":
            lead = parties[0]
            parties[0] = vfl.Party(lead.name, lead.X, np.abs(np.round(lead.labels)), ids=np.arange(ROWS))
        if name != "fdml without a server":
            parties += [Helper(*helper) for helper in job.family.example_helpers]
        result[name] = job, parties
    return result


def _plain(item: Disclosure) -> list[Any]:
    fields = item.kind, item.learner, [*item.about], item.group, item.count, item.capacity, item.numbers, item.rho
    return [*fields, item.sender, bool(item.identity)]


def _sorted(items: Iterable[Disclosure]) -> list[Any]:
    return sorted(map(_plain, items), key=str)


def counted(job: Job, facts: RunFacts) -> dict[str, Any]:
    """Return the counts of a job, the numbers in its leaks and opened values, and the bits of a score."""
    family, shape = job.family, facts.shape
    statements = family.common_statements(job, run_roles(family, job, facts.parties), facts)
    return {
        "counts": _sorted(disclosures_of(facts.outputs)),
        "leaks": sorted([leak.name, leak.who, *_NUMBERS.findall(leak.what)] for leak in leaks(job, shape)),
        "openings": _NUMBERS.findall(statements.get("openings", "")),
        "bits of a score": family.score_bits(job, shape),
    }


def _without_estimates(sheet: str) -> str:
    """Return a sheet without its lines about time, traffic and memory."""
    return "\n\n".join(part for part in sheet.split("\n\n") if not part.startswith(ESTIMATES_TITLE))


class PlayedJob(NamedTuple):
    """One run of a job.

    Attributes:
        record: everything that the job discloses, by count, in words, and in the ledgers after the run.
        entries: the entries of each party's ledger after the run.
        run: the run.
    """

    record: dict[str, Any]
    entries: dict[str, list[LedgerEntry]]
    run: vfl.Run


def played(job: Job, parties: list[vfl.Party | Helper]) -> PlayedJob:
    """Run a job once, with a new ledger for each party."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = counted(job, pooled_run_facts(job, parties))
        sheet = vfl.explain(job, parties)
        result["numbers of the sheet"] = " ".join(_NUMBERS.findall(_without_estimates(sheet)))
        result["numbers of its first screen"] = " ".join(_NUMBERS.findall(sheet.first_screen))
        with tempfile.TemporaryDirectory() as folder:
            ledgers = {item.name: DisclosureLedger(Path(folder) / item.name, item.name) for item in parties}
            run = vfl.simulate(job, parties, ledgers=ledgers)
            entries = {name: list(ledger.read().entries) for name, ledger in ledgers.items()}
    result["ledgers"] = {name: _sorted(entry.disclosure for entry in items) for name, items in entries.items()}
    return PlayedJob(result, entries, run)


if __name__ == "__main__":
    RECORDS = {name: played(*case).record for name, case in cases().items()}
    FILE.write_text(json.dumps(RECORDS, indent=None).replace("], [", "],\n[").replace('}, "', '},\n"') + "\n", "utf-8")

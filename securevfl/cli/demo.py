"""`securevfl demo`: what a bank gains by a shop's columns, what each learns by it, what it costs, other modes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from rich.console import Console

from securevfl.cli.show import rounded_parts, table
from securevfl.consent.consent_sheet import explain
from securevfl.data.datasets import loans
from securevfl.data.party import Party
from securevfl.display.progress import progress
from securevfl.errors import DataNotice, StorageError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.protocols.engines import Ckks, Paillier
from securevfl.protocols.protocol_options import Protocol
from securevfl.runtime.network import Network
from securevfl.training.local_baseline import local_metrics
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

NETWORK = Network()
REPORT = "securevfl-demo.html"
DEFAULT = "shares"  # the name of the default mode
HINTS = "hints at who paid late"
MODES: dict[str, tuple[Protocol, str, str]] = {  # what each lets the bank and the shop learn beside its purpose
    "CKKS": (Protocol(residual=Ckks()), "sums of the shop's columns", HINTS),
    "Paillier": (Protocol(residual=Paillier(bits=2048)), "sums of the shop's columns", HINTS),
    "open": (Protocol(residual="open"), "the shop's columns", "who paid late"),
}


def demo(out: Console, report: Path = Path(REPORT)) -> dict[str, Run]:
    """Train, print and write the report of the run on shares; return the runs by mode."""
    warnings.simplefilter("ignore", DataNotice)
    bank, shop = loans()
    job = Job(model=Logistic())
    out.print(
        f"A bank wants to know who will pay late. It has {len(bank.columns)} columns of {len(bank):,} clients and\n"
        f"knows who did; a shop has {len(shop.columns)} other columns of the same people (all made up)."
    )
    jobs = {DEFAULT: job}
    for name, (protocol, *_) in MODES.items():
        jobs[name] = Job(model=Logistic(), protocol=protocol, test_fraction=0.25, accepts=("columns",))
    # the table that neither would hand over: all columns at the bank
    columns = [*bank.columns, *shop.columns]
    whole = Party("bank", np.hstack([bank.X, shop.X]), bank.y, ids=bank.ids, columns=columns)
    runs: dict[str, Run] = {}
    with progress("training") as on_round:
        alone, pooled = (local_metrics(job, party) for party in (bank, whole))
        for name, each in jobs.items():
            runs[name] = simulate(each, [bank, shop], network=NETWORK, on_round=on_round)
    run = runs[DEFAULT]
    out.print(f"\nHow well it tells them apart: AUC on {run.active.held_out} clients who were held out", style="bold")
    for words, auc in (
        ("the bank alone", alone["auc"]),
        ("the bank with the shop, on shares", run.metrics["auc"]),
        ("both tables in one place", pooled["auc"]),
    ):
        out.print(f"  {words:<34}  {auc:.3f}")
    _learned(out, job, [bank, shop], run)
    costs = run.costs
    *first, ahead, evaluation = (f"{word} {seconds}" for word, seconds in rounded_parts(costs.parts, 2).items())
    out.print(
        f"\nWhat it costs between two computers, {NETWORK.mbps:g} Mbps and {NETWORK.rtt_ms:g} ms apart", style="bold"
    )
    out.print(f"  {costs.total:.2f} s: {', '.join(first)},")
    out.print(f"  {'':<7} {ahead}, {evaluation}; {costs.bytes / 1e6:.1f} MB sent")
    out.print("\nThe same model by other modes, and what each learns more by them", style="bold")
    rows = []
    for name, trained in runs.items():
        learned = MODES[name][1:] if name in MODES else ("nothing", "nothing")
        figures = f"{trained.metrics['auc']:.3f}", f"{trained.costs.total:.2f}", f"{trained.costs.bytes / 1e6:.1f}"
        rows.append((name, *figures, *learned))
    grid = table(["", "AUC", "s", "MB", "the bank", "the shop"], rows)
    for column in grid.columns[1:4]:
        column.justify = "right"
    out.print(grid)
    out.print("\nGo on", style="bold")
    for command, what in (
        ("securevfl compare --help", "what is a partner worth? your own two files"),
        ("securevfl explain --help", "what would each party learn, before anything runs"),
        ("securevfl train --help", "then with an organisation elsewhere: docs/start.md"),
    ):
        out.print(f"  {command:<25} {what}")
    try:
        run.report(report, alone=alone, sheet=explain(job, [bank, shop]).first_screen)
    except (OSError, StorageError):
        out.print("  The report was not written, as this folder takes no files.")
    else:
        out.print(f"  Report of the run, for a browser: {report}")
    return runs


def _learned(out: Console, job: Job, parties: list[Party], run: Run) -> None:
    """Print what each party learned, as the consent sheet counts it: three lines a party."""
    known = pooled_run_facts(job, parties)
    bits, held = job.family.score_bits(job, known.shape), known.shape.information["shop"].bits
    measured = sum("auc" in record for record in run.history)
    counts = sum(
        tally.count for (_, kind), tally in run.parts["shop"].counters.traffic.items() if kind == "OutOfRangeCount"
    )
    pairs = f"{measured} x {run.active.held_out} shuffled (score, label) pairs, {counts} count{'s' * (counts != 1)}"
    out.print("\nWhat each learned", style="bold")
    for name, lines in {
        "bank": [
            f"{pairs}: how good the model is",
            f"of a client asked about later: {bits} of the shop's {held:.0f} bits at most",
            "no column of the shop, no weight, no score of a client trained on",
        ],
        "shop": [
            f"how large all is: {len(parties[0]):,} clients, {len(parties[0].columns)} columns of the bank",
            "after each evaluation, whether the model was the best so far",
            "no column of the bank, no weight, not who paid late",
        ],
    }.items():
        for number, line in enumerate(lines):
            out.print(f"  {name if not number else '':<5} {line}")

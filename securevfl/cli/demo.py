"""The command `demo`: what a bank gains from a shop's columns, what each party learns, the costs, and other modes.

A mode is a protocol for the same training: on secret shares, with encrypted residuals, or in plain text.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.padding import Padding

from securevfl.cli.run_output import seconds_table
from securevfl.cli.show import table
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
from securevfl.training.local_baseline import local_figures
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

DEMO_NETWORK = Network()
REPORT = "securevfl-demo.html"
DEFAULT = "shares"  # the mode with which the others are compared
LABEL_HINTS = "hints at who paid late"
# for each mode: its protocol, and what the bank and the shop learn in this mode but not in the default one
DEMO_PROTOCOLS: dict[str, tuple[Protocol, str, str]] = {
    "CKKS": (Protocol(residual=Ckks()), "sums of the shop's columns", LABEL_HINTS),
    "Paillier": (Protocol(residual=Paillier(bits=2048)), "sums of the shop's columns", LABEL_HINTS),
    "open": (Protocol(residual="open"), "the shop's columns", "who paid late"),
}


def demo(out: Console, report: Path = Path(REPORT)) -> dict[str, Run]:
    """Train in all modes, print the results, and write a report of the run on secret shares.

    Args:
        out: console for the results.
        report: file for the report.

    Returns:
        The runs by mode.
    """
    warnings.simplefilter("ignore", DataNotice)
    bank, shop = loans()
    job = Job(model=Logistic())
    out.print(
        f"A bank wants to predict who will pay late. It has {len(bank.columns)} columns about {len(bank):,} clients\n"
        f"and knows who paid late. A shop has {len(shop.columns)} other columns. (All data are synthetic.)"
    )
    jobs = {DEFAULT: job}
    for name, (protocol, *_) in DEMO_PROTOCOLS.items():
        jobs[name] = Job(model=Logistic(), protocol=protocol, test_fraction=0.25, accepts=("columns",))
    # for comparison, a model of one table with the columns of both, which neither party would allow
    columns = [*bank.columns, *shop.columns]
    pooled_party = Party("bank", np.hstack([bank.X, shop.X]), bank.y, ids=bank.ids, columns=columns)
    runs: dict[str, Run] = {}
    with progress("training") as on_round:
        alone, pooled = (local_figures(job, party) for party in (bank, pooled_party))
        for name, mode_job in jobs.items():
            runs[name] = simulate(mode_job, [bank, shop], network=DEMO_NETWORK, on_round=on_round)
    run = runs[DEFAULT]
    out.print(f"\nModel quality: AUC on {run.active.held_out} held-out clients", style="bold")
    for words, auc in (
        ("the bank alone", alone.metrics["auc"]),
        ("the bank with the shop, on secret shares", run.metrics["auc"]),
        ("both tables in one place", pooled.metrics["auc"]),
    ):
        out.print(f"  {words:<40}  {auc:.3f}")
    _learned(out, job, [bank, shop], run)
    costs = run.costs
    out.print(
        f"\nCosts between two computers with {DEMO_NETWORK.mbps:g} Mbit/s and a round trip of "
        f"{DEMO_NETWORK.rtt_ms:g} ms",
        style="bold",
    )
    out.print(f"  {costs.total:.2f} s and {costs.bytes / 1e6:.1f} MB:")
    out.print(Padding(seconds_table(costs), (0, 0, 0, 2), expand=False))
    out.print("\nThe same model in other modes, and what each party learns in addition", style="bold")
    rows = []
    for name, trained in runs.items():
        learned = DEMO_PROTOCOLS[name][1:] if name in DEMO_PROTOCOLS else ("nothing", "nothing")
        figures = f"{trained.metrics['auc']:.3f}", f"{trained.costs.total:.2f}", f"{trained.costs.bytes / 1e6:.1f}"
        rows.append((name, *figures, *learned))
    grid = table(["", "AUC", "s", "MB", "the bank", "the shop"], rows)
    for column in grid.columns[1:4]:
        column.justify = "right"
    out.print(grid)
    out.print("\nNext steps", style="bold")
    for command, purpose in (
        ("securevfl compare --help", "what a partner's columns add, on two files"),
        ("securevfl explain --help", "what each party would learn, before anything runs"),
        ("securevfl kit --help", "then with a partner: docs/two-organisations.md"),
    ):
        out.print(f"  {command:<25} {purpose}")
    try:
        run.report(report, alone=alone, sheet=explain(job, [bank, shop]).first_screen)
    except (OSError, StorageError):
        out.print("  The report was not written, because this folder is not writable.")
    else:
        out.print(f"  Report of the run for a browser: {report}")
    return runs


def _learned(out: Console, job: Job, parties: list[Party], run: Run) -> None:
    """Print what each party learned, as the consent sheet counts it."""
    facts = pooled_run_facts(job, parties)
    bits, content = job.family.score_bits(job, facts.shape), facts.shape.information["shop"].bits
    traffic = run.parts["shop"].counters.traffic.items()
    sums = sum(tally.count for (_, kind), tally in traffic if kind in ("LossSum", "OutOfRangeCount"))
    pairs = f"{run.active.held_out} shuffled (score, label) pairs, {sums} sum{'s' * (sums != 1)} over rows"
    out.print("\nWhat each learned", style="bold")
    for name, lines in {
        "bank": [
            f"{pairs}: the metrics",
            f"about a client who is scored later: {bits} of the shop's {content:.0f} bits at most",
            "no column of the shop, no weight, no score of a training client",
        ],
        "shop": [
            f"the sizes: {len(parties[0]):,} clients, {len(parties[0].columns)} columns of the bank",
            "later, which of its clients the bank asks about",
            "no column of the bank, no weight, not who paid late",
        ],
    }.items():
        for number, line in enumerate(lines):
            out.print(f"  {name if not number else '':<5} {line}")

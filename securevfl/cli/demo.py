"""`securevfl demo`: one model of two parties, trained on shares, sealed under CKKS and in the open, side by side."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

from rich.console import Console

from securevfl.cli.show import costs_table, sheet, sheet_width, table
from securevfl.consent.consent_sheet import explain
from securevfl.data.loans import loans
from securevfl.display.progress import progress
from securevfl.errors import DataNotice
from securevfl.job import Job, Protocol
from securevfl.models.linear import Logistic
from securevfl.protocols.engines import Ckks
from securevfl.runtime.clock import Network
from securevfl.training.run import Run
from securevfl.training.simulate import simulate

NETWORK = Network()
HELD_OUT = 0.25


@dataclass(frozen=True)
class Mode:
    """One way to train the demo's model: its job, and in a few words what each party gets to know."""

    job: Job
    bank: str
    shop: str


def modes() -> dict[str, Mode]:
    """Return the three ways to train, by name, the safest first. The last one accepts by name what it gives away."""
    accepted: tuple[str, ...] = ("columns",)
    in_the_open = Job(model=Logistic(), protocol=Protocol(residual="open"), test_fraction=HELD_OUT, accepts=accepted)
    return {
        "on shares": Mode(Job(model=Logistic()), "metrics", "sizes"),
        "sealed, CKKS": Mode(
            Job(model=Logistic(), protocol=Protocol(residual=Ckks()), test_fraction=HELD_OUT),
            "2 sums of columns a row",
            "its own gradients",
        ),
        "in the open": Mode(in_the_open, "the shop's columns", "labels, the bank's columns"),
    }


def demo(out: Console) -> dict[str, Run]:
    """Trains and prints; returns the runs by name."""
    warnings.simplefilter("ignore", DataNotice)
    parties = loans()
    out.print("Two organisations, one model (a made-up table of loans: who pays late?)", style="bold")
    for party in parties:
        known = f"{len(party)} rows x {len(party.columns)} columns{' and the label' * party.active}"
        out.print(f"  {party.name:<5} {known}: {', '.join(party.columns)}", soft_wrap=True)
    ways = modes()
    first, *_ = ways
    told = "as `securevfl explain` says before anything runs"
    out.print(f"\nWhat each party learns {first}, which is the default, {told}", style="bold")
    out.print(sheet(str(explain(ways[first].job, parties)), sheet_width(out)), soft_wrap=True)
    runs, seconds = {}, {}
    for name, mode in ways.items():
        started = time.perf_counter()
        with progress(f"training {name}") as on_round:
            runs[name] = simulate(mode.job, parties, network=NETWORK, on_round=on_round)
        seconds[name] = time.perf_counter() - started
    _results(out, ways, runs, seconds)
    return runs


def _results(out: Console, ways: dict[str, Mode], runs: dict[str, Run], seconds: dict[str, float]) -> None:
    out.print("\nThe same model three times, metrics on held-out rows", style="bold")
    rows = [
        (name, ways[name].bank, ways[name].shop, f"{run.metrics['auc']:.4f}", f"{seconds[name]:.1f}")
        for name, run in runs.items()
    ]
    out.print(table(["", "the bank learns", "the shop learns", "AUC", "s"], rows))
    out.print(
        f"\nWhat it costs on two computers, {NETWORK.mbps:g} Mbps and {NETWORK.rtt_ms:g} ms apart (virtual time)",
        style="bold",
    )
    out.print(costs_table([run.costs for run in runs.values()]))
    out.print("\nyour own tables:    securevfl train --help\nencryption alone:   securevfl bench he --help")

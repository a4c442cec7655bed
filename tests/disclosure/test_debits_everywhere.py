"""In every method, and in killed processes, no number is sent that is not in the ledger on disk."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.recording.party_view import fields
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.disclosure.limits import DISCLOSURE_KINDS
from securevfl.protocols.shares.opened_scores import RoundedScores
from securevfl.protocols.shares.word_shuffle import ShuffledWords
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.observer import Event, Observer
from securevfl.training.checkpoint import Checkpoints
from tests.disclosure.test_account import EXAMPLES, MAX_LEVEL_BITS, Cut, entered, example, kept, sealed, tables
from tests.forked import run_forked


class Plain(Observer):
    """Count the numbers that messages carry in the clear, by sender and receiver: floats of arrays and words of levels.

    At every message the count is at most that of the records that passed the sender's gate, and each record is in the
    sender's ledger on disk when it passes the gate.
    """

    def __init__(self, ledgers: dict[str, DisclosureLedger]) -> None:
        self.sent: Counter[tuple[str, str]] = Counter()
        self.entered: Counter[tuple[str, str]] = Counter()
        self.short: list[str] = []
        self._ledgers = ledgers
        self._through: dict[str, Counter[Any]] = {name: Counter() for name in ledgers}

    def __call__(self, event: Event) -> None:
        if event.direction != "send":
            return
        pair = event.me, event.peer
        self.sent[pair] += sum(_numbers(event.message, value) for value in fields(event.message))
        if self.sent[pair] > self.entered[pair]:
            self.short.append(f"{pair}: {type(event.message).__name__}, {self.sent[pair]} of {self.entered[pair]}")

    def note(self, me: str, fact: object) -> None:
        if isinstance(fact, DisclosureRecord):
            self.entered[me, fact.to] += fact.numbers
            if fact.kind in DISCLOSURE_KINDS and me in fact.about:
                like = fact.kind, fact.to, fact.about, fact.group
                self._through[me][like] += fact.numbers
                if (let := self._through[me][like]) > (debited := entered(self._ledgers[me])[like]):
                    self.short.append(f"{me} to {fact.to}: {fact.kind} of {fact.group}, {let} of {debited} on disk")


def _numbers(message: Message, value: object) -> int:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.size
    levels = isinstance(message, ShuffledWords | RoundedScores) and isinstance(value, bytes)
    return 8 * len(value) // MAX_LEVEL_BITS if levels and isinstance(value, bytes) else 0


def cut(done: int, of: int) -> None:
    """Interrupt a run after its first round."""
    raise Cut


def check_debits(name: str, folder: Path, runs: list[tuple[int, Callable[[int, int], None] | None]]) -> None:
    """Run an example with each seed, interrupted or whole, and compare its messages with the ledgers on disk."""
    job, parties = example(name)
    # so that the run must record more iterations again and again
    ledgers = kept(folder, parties, leased_iterations=1)
    plain = Plain(ledgers)
    for seed, on_round in runs:
        states = {party.name: Checkpoints(folder / party.name, party.name, every=1) for party in parties}
        with suppress(Cut):
            again = job.model_copy(update={"seed": seed})
            vfl.simulate(again, parties, ledgers=ledgers, checkpoints=states, on_round=on_round, observe=plain)
    assert not plain.short, plain.short[:3]
    for party, ledger in ledgers.items():
        opened = sum(numbers for (giver, _), numbers in plain.sent.items() if giver == party)
        assert opened <= sum(entered(ledger).values())


VARIANTS_OF_SHARES = [name for name in sorted(EXAMPLES) if name.startswith("shares, ")]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_no_family_opens_a_number_that_was_not_debited(name: str, tmp_path: Path) -> None:
    """Runs are interrupted after a round and resumed, and the job is repeated with another seed.

    `test_repeated_jobs_on_shares_debit_what_they_open` does so for other jobs on shares.
    """
    runs_once = name in VARIANTS_OF_SHARES
    check_debits(name, tmp_path, [(0, None)] if runs_once else [(0, cut), (0, None), (1, None)])


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS_OF_SHARES)
def test_repeated_jobs_on_shares_debit_what_they_open(name: str, tmp_path: Path) -> None:
    check_debits(name, tmp_path, [(0, cut), (0, None), (1, None)])


KILLED = """
import os, signal, sys
from pathlib import Path
import securevfl as vfl
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.runtime.channel import Event, Observer
from securevfl.runtime.codec import Message
from securevfl.runtime.channel import DisclosureRecord
from securevfl.training.checkpoint import Checkpoints
folder = Path(sys.argv[1])
parties = [each.take(range(120)) for each in vfl.datasets.breast_cancer()]
own = {each.name: DisclosureLedger(folder / f"{each.name}.ledger", each.name) for each in parties}
states = {each.name: Checkpoints(folder / each.name, each.name, every=100) for each in parties}
job = vfl.Job(
    model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1), protocol=vfl.Protocol(residual="ckks"), epochs=2,
    batch_size=60, accepts=["columns", "fresh_equations"],
)
def observe(event):
    if event.me == "bank" and event.direction == "send" and type(event.message).__name__ == "OpenedProduct":
        with open(folder / "opened", "a") as file:
            file.write("x")
def on_round(done, of):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)
vfl.simulate(job, parties, ledgers=own, checkpoints=states, on_round=on_round, observe=observe)
"""


def test_a_killed_process_disclosed_no_more_than_its_ledger_has(tmp_path: Path) -> None:
    """Two parties are killed after two rounds; the bank's file counts openings and the reservation of each attempt."""
    p, ends = 15, []
    for _ in range(5):
        ends.append(
            run_forked([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, check=False).returncode
        )
        bank = DisclosureLedger(tmp_path / "bank.ledger", "bank")
        opened = p * len((tmp_path / "opened").read_bytes())
        assert sum(n for like, n in entered(bank).items() if like[0] == "labels") >= opened
        if ends[-1] != -signal.SIGKILL:
            break
    assert ends[:2] == [-signal.SIGKILL] * 2
    assert ends[-1] == 1  # refused before residuals of a batch of 60 were opened to 60 equations
    assert total_to(bank.read().entries, "labels", "shop").count < 60 + p


def test_ledgers_of_the_schema_before_are_read(tmp_path: Path) -> None:
    parties = tables(2)
    ledgers = kept(tmp_path, parties)
    vfl.simulate(sealed(), parties, ledgers=ledgers)
    path = ledgers["bank"].path
    head, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(head.replace(b"ledger/2", b"ledger/1") + b"\n" + body)
    assert total_to(ledgers["bank"].read().entries, "labels", "shop").count == 3

"""A training is killed after its weights are opened and before its part of the model is saved.

The next session opens the same words of the same shares, and they count once.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import securevfl as vfl
from securevfl.consent.ledger_session import LedgerSession
from securevfl.disclosure.ledger import DisclosureLedger, total_to
from securevfl.protocols.shares.opened_weights import OpenedWeights
from securevfl.training.checkpoint import Checkpoints

from .test_killed_anywhere import Killed, three_tables

EARLY = {"patience": {"metric": "loss", "evaluations": 1, "tolerance": 0.5}, "evaluate_every": 1, "test_fraction": 0.4}


class Kills:
    """Run the same command at all parties, kill the bank as it saves its part, and record the opened words."""

    def __init__(self, job: vfl.Job, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job, self.parties = job, three_tables(2000)[:2]
        self.ledgers = {
            party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in self.parties
        }
        self.states = {party.name: Checkpoints(folder / party.name, party.name, every=100) for party in self.parties}
        self.opened: list[tuple[int, list[bytes]]] = []
        self._patch = monkeypatch

    def __call__(self, *, killed: bool) -> Any:
        sent: list[bytes] = []
        rounds: list[int] = []

        def watch(event: Any) -> None:
            if event.direction == "send" and isinstance(event.message, OpenedWeights):
                sent.append(event.message.words)

        run = partial(
            vfl.simulate,
            self.job,
            self.parties,
            ledgers=self.ledgers,
            checkpoints=self.states,
            observe=watch,
            on_round=lambda done, of: rounds.append(done),
            workers=1,
        )
        try:
            if not killed:
                return run()
            with self._patch.context() as dies:
                dies.setattr(Checkpoints, "finish", _die)
                dies.setattr(LedgerSession, "settle", lambda self, *, silent: None)
                with pytest.raises(Killed):
                    run()
        finally:
            self.opened.append((len(rounds), sent))

    def told(self) -> int:
        """Return the number of bits about labels that the bank's ledger counts for weights."""
        entries = self.ledgers["bank"].read().entries
        return total_to([entry for entry in entries if entry.disclosure.group == "weights"], "labels", "shop").count


def _die(self: Checkpoints, job: bytes, part: Any) -> None:
    raise Killed


def opened_weights_job(**keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 600,
        "model": vfl.Logistic(),
        "optimizer": vfl.FedSGD(lr=0.3),
    }
    shares = vfl.Shares(open_weights=("shop",), chunk=1)
    return vfl.Job(**defaults | keys, protocol=vfl.Protocol(shares=shares), accepts=("small_metrics", "scores"))


@pytest.mark.parametrize("early", [False, True], ids=["to its end", "stopped early"])
def test_weights_that_are_opened_again_count_once(early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = opened_weights_job(**(EARLY | {"epochs": 5} if early else {}))
    kills, visits = Kills(chosen, tmp_path, monkeypatch), len(chosen.schedule(three_tables(2000)[0].register))
    kills(killed=True)
    disclosed = kills.told()
    for _ in range(3):
        kills(killed=True)
    kills(killed=False)
    (first, words), *again = kills.opened
    assert (0 < first < visits) == early
    assert words
    assert again == 4 * [(0, words)]
    assert kills.told() == disclosed > 0


def test_weights_that_were_trained_anew_count_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shop reports that it has lost its last state: the repeated training has other shares."""
    kills = Kills(opened_weights_job(), tmp_path, monkeypatch)
    kills(killed=True)
    once = kills.told()
    for path in (tmp_path / "shop").glob("*round*"):
        path.unlink()
    kills(killed=True)
    assert kills.told() == 2 * once > 0
    assert kills.opened[0][1] != kills.opened[1][1]

"""A party is killed as it sends any kind of message; after the same command again, the training ends with a model.

Ledger records of reserved disclosures stay when a process dies; they belong to the same job.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.consent.ledger_session import LedgerSession
from securevfl.data.party import Helper
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import DataError
from securevfl.families import FAMILIES, leak_kinds
from securevfl.runtime.abort import Abort
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosurePermit
from securevfl.runtime.party_threads import run_threads
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart
from securevfl.training.session import take_part
from tests.builders import raises_code

WOE = {
    "model": vfl.Logistic(l2=1e-3),
    "optimizer": vfl.FedSGD(lr=0.3),
    "protocol": vfl.Protocol(residual=vfl.Ckks()),
    "prepare": {"woe": {"bins": 5}},
    "batch_size": 250,
    "accepts": ("columns",),
}
FAMILY_JOBS: dict[str, dict[str, Any]] = {
    name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items()
}


class Killed(BaseException):
    """Raised in place of the end of a process."""


def three_tables(rows: int = 300, columns: int = 2) -> list[vfl.Party]:
    draw = np.random.default_rng(1)
    X = draw.normal(size=(rows, 3 * columns))
    y = np.where(X.sum(axis=1) + draw.normal(size=rows) > 0, 1, 0)
    return [
        vfl.Party(name, X[:, columns * k : columns * k + columns], y if name == "bank" else None, ids=range(rows))
        for k, name in enumerate(("bank", "shop", "telco"))
    ]


class Command:
    """The same command at all parties, in this process, with a folder of ledgers and checkpoints for each."""

    def __init__(self, job: vfl.Job, parties: list[Any], folder: Path) -> None:
        self.job, self.parties, self.folder = job, parties, folder
        self.sent: dict[tuple[str, str], None] = {}

    def __call__(self, who: str = "", kind: str = "") -> dict[str, ModelPart]:
        return run_threads({party.name: partial(self._role, party, who, kind) for party in self.parties}, WallClock)

    def _role(self, party: Any, who: str, kind: str, channel: Channel) -> ModelPart:
        send = channel.send

        def sending(to: str, message: Message, subchannel: str = "", *, permit: DisclosurePermit | None = None) -> None:
            if not isinstance(message, Abort):
                self.sent.setdefault((channel.me, type(message).__name__))
                if (channel.me, type(message).__name__) == (who, kind):
                    raise Killed
            send(to, message, subchannel, permit=permit)

        channel.send = sending  # type: ignore[method-assign]
        party_folder = self.folder / party.name
        return take_part(
            self.job,
            party,
            channel,
            parties=[member.name for member in self.parties],
            ledger=DisclosureLedger(party_folder / "ledger", party.name),
            checkpoints=Checkpoints(party_folder / "states", party.name),
        )


def killed_everywhere(job: vfl.Job, parties: list[Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Kill each party at each kind of message that it sends, and repeat the command. Return the number of kinds."""
    undisturbed = Command(job, parties, folder / "whole")
    undisturbed()
    for number, (who, kind) in enumerate(undisturbed.sent):
        command = Command(job, parties, folder / str(number))
        with monkeypatch.context() as dies:
            dies.setattr(LedgerSession, "settle", lambda self, *, silent: None)  # a killed process settles nothing
            with pytest.raises(BaseException):  # noqa: B017
                command(who, kind)
        parts = command()
        assert set(parts) == {party.name for party in parties}, (who, kind)
    return len(undisturbed.sent)


def test_weights_of_evidence_are_asked_once_more_by_the_same_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = vfl.Job(**WOE | {"epochs": 1})
    assert killed_everywhere(job, three_tables(500)[:2], tmp_path, monkeypatch) > 6


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILY_JOBS)
def test_every_family_goes_on_wherever_it_was_killed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"batch_size": 100, "epochs": 2} | FAMILY_JOBS[name]
    accepts = {*leak_kinds()} - {"fresh_equations"} | {*options.get("accepts", ())}  # other jobs' equations are refused
    job = vfl.Job(**options | {"accepts": sorted(accepts)})
    parties = [
        *three_tables()[: job.family.max_parties or 3],
        *(Helper(name, role) for name, role in job.family.example_helpers),
    ]
    assert killed_everywhere(job, parties, tmp_path, monkeypatch) > 2


def test_tries_that_are_killed_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that has others killed repeatedly has bins counted again: it ends before that reveals labels."""
    command = Command(vfl.Job(**WOE | {"epochs": 1}), three_tables(300)[:2], tmp_path)
    monkeypatch.setattr(LedgerSession, "settle", lambda self, *, silent: None)
    tries = 0
    with pytest.raises(vfl.errors.LeakageError):  # noqa: PT012
        for _ in range(30):
            with pytest.raises(Killed):
                command("bank", "OpenedProduct")
            tries += 1
    assert 1 < tries < 30


def test_a_spoilt_name_of_a_run_is_said(tmp_path: Path) -> None:
    states = Checkpoints(tmp_path, "shop")
    assert states.begin(b"job", "ab" * 16) == states.begin(b"job", "cd" * 16) == "ab" * 16
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    with raises_code(DataError, "SVFL-CHECKPOINT") as caught:
        states.begin(b"job", "cd" * 16)
    assert path.name in str(caught.value)
    states.clear(b"job", same_run=True)
    assert path.exists()
    states.clear(b"job")
    assert not path.exists()
    assert states.begin(b"job", "cd" * 16) == "cd" * 16

"""No party is asked for consent to a refused job: every check that needs no consent runs before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.credit import correlate, fairness_by_group
from securevfl.disclosure.counts import Kind
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.disclosure.limits import Limit
from securevfl.errors import LabelError, LeakageError, SecureVFLError, TransportError
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.party_threads import run_threads
from securevfl.training.session import take_part
from tests.organisations.test_joint_statistics import random_tables

Asked = dict[str, list[ConsentSheet]]


def run(roles: Mapping[str, Callable[[Channel], object]], consents: Asked) -> None:
    """Play the roles; raise the first error unchanged, and check that its party was not asked for consent."""

    def watched(role: Callable[[Channel], object], channel: Channel) -> object:
        try:
            return role(channel)
        except TransportError:
            raise
        except SecureVFLError:
            assert not consents[channel.me]
            raise

    run_threads({name: partial(watched, role) for name, role in roles.items()}, WallClock, timeout=60)


Play = Callable[[dict[str, DisclosureLedger], Asked], None]


def sgd_job(**options: Any) -> vfl.Job:
    return vfl.Job(
        **{
            "model": vfl.Logistic(),
            "optimizer": vfl.FedSGD(lr=0.3),
            "protocol": vfl.Protocol(residual=vfl.Ckks()),
            "batch_size": 100,
            "epochs": 1,
            "accepts": ("columns",),
        }
        | options
    )


def training(job: vfl.Job) -> Play:
    def play(ledgers: dict[str, DisclosureLedger], consents: Asked) -> None:
        roles = {
            party.name: partial(
                lambda channel, party: take_part(
                    job,
                    party,
                    channel,
                    parties=["bank", "shop"],
                    ledger=ledgers[party.name],
                    consent=consents[party.name].append,
                ),
                party=party,
            )
            for party in random_tables(400)
        }
        run(roles, consents)

    return play


def columns(ledgers: dict[str, DisclosureLedger], consents: Asked) -> None:
    names = ["bank", "shop"]
    roles = {
        party.name: partial(correlate._talk, party, names, ledgers[party.name], consents[party.name].append)
        for party in random_tables(1000)
    }
    run(roles, consents)


def groups(ledgers: dict[str, DisclosureLedger], consents: Asked) -> None:
    (bank, shop), give = random_tables(400), fairness_by_group._provide
    names, marks = fairness_by_group._groups(shop, np.arange(400) % 3)
    outcomes = fairness_by_group._outcomes(bank, bank.y, None)  # type: ignore[arg-type]
    roles: dict[str, Callable[[Channel], Any]] = {
        "bank": partial(fairness_by_group._request, bank, outcomes, peer="shop"),
        "shop": partial(give, shop, names, marks, ledgers["shop"], consents["shop"].append, peer="bank"),
    }
    run(roles, consents)


# The action, its number of repetitions before it is refused, limits of the shop's ledger, and the error.
REFUSED: dict[str, tuple[Play, int, dict[Kind, float], type[SecureVFLError]]] = {
    "a leak that is not accepted": (training(sgd_job(epochs=9, accepts=())), 0, {}, LeakageError),
    "a limit of the ledger": (training(sgd_job()), 0, {"columns": 1}, LeakageError),
    "a second job": (training(sgd_job()), 1, {"columns": 8}, LeakageError),
    "a class that is not there": (training(sgd_job(positive="7")), 0, {}, LabelError),
    "labels that the loss cannot use": (training(sgd_job(model=vfl.Gamma())), 0, {}, LabelError),
    "a look at columns once more": (columns, 9, {}, LeakageError),
    "a limited look": (columns, 0, {"columns": 1}, LeakageError),
    "groups once more": (groups, 9, {}, LeakageError),
    "limited groups": (groups, 0, {"columns": 1}, LeakageError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_not_asked_about(what: str, tmp_path: Path) -> None:
    play, before, limits, error = REFUSED[what]
    ledgers = {name: DisclosureLedger(tmp_path / name, name) for name in ("bank", "shop")}
    for kind, most in limits.items():
        ledgers["shop"].set_limit(kind, Limit(most))
    agreed: list[ConsentSheet] = []

    def plays() -> None:
        for _ in range(before + 1):
            consents: Asked = {"bank": [], "shop": []}
            play(ledgers, consents)
            agreed.extend(consents["shop"])

    with pytest.raises(error):
        plays()
    print(f"{what}: {len(agreed)} agreed to, then refused unasked")

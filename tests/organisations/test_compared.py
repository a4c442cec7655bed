"""Parties compare all bytes of digests and of the names of trainings, tables and jobs before they continue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.consent.agreed_sheets import AgreedSheets
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.credit import correlate, fairness_by_group
from securevfl.credit.joint_statistics import TableShape
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, IdError, ProtocolError
from securevfl.organisations import join, prediction_session
from securevfl.organisations.prediction_session import PredictionHandshake
from securevfl.protocols.shares.share_products import Products
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.model_part import ModelPart
from securevfl.training.run_setup import run_key
from tests.builders import raises_code

ROWS = 1000
PARTY = vfl.Party("bank", np.random.default_rng(0).normal(size=(ROWS, 2)), np.arange(ROWS) % 2, ids=range(ROWS))


def changed(digest: bytes, place: int) -> bytes:
    altered = bytearray(digest)
    altered[place] ^= 1
    return bytes(altered)


class Line:
    """A link whose other parties report this party's row order, except that one byte differs at `amiss` or at all."""

    session, me = bytes(32), "bank"

    def __init__(self, other: Callable[[bytes], Any], place: int, amiss: str = "") -> None:
        self.other, self.place, self.amiss = other, place, amiss

    def permit(self, entry: object) -> None:
        """Accept every disclosure."""

    def send(self, to: str, message: Any, permit: object) -> None:
        self.order = message.order

    def recv(self, sender: str, kind: type) -> Any:
        return self.other(changed(self.order, self.place) if self.amiss in ("", sender) else self.order)


def of_a_look_at_groups(place: int) -> None:
    line: Any = Line(lambda order: TableShape(ROWS, 3, order), place)
    fairness_by_group._exchange_shapes(PARTY, 0, "shop", line)


def of_a_look_at_columns(place: int) -> None:
    line: Any = Line(lambda order: TableShape(ROWS, 2, order), place)
    correlate._exchange_shapes(PARTY, SimpleNamespace(names=("a", "b")), ["bank", "shop"], line)  # type: ignore[arg-type]


def of_rows_to_predict(place: int) -> None:
    handshake = PredictionHandshake("run", 3, bytes(range(32)), "active")
    prediction_session._compare(
        "bank", handshake, "shop", PredictionHandshake("run", 3, changed(handshake.order, place), "passive")
    )


@pytest.mark.parametrize("meet", [of_a_look_at_groups, of_a_look_at_columns, of_rows_to_predict])
@pytest.mark.parametrize("place", [0, 8, 16, 31])
def test_rows_in_another_order_are_refused(place: int, meet: Callable[[int], None]) -> None:
    with raises_code(IdError, "SVFL-ID-ORDER"):
        meet(place)


@pytest.mark.parametrize("amiss", ["shop", "telco", "mill"])
def test_the_order_of_every_other_party_is_compared(amiss: str) -> None:
    line: Any = Line(lambda order: TableShape(ROWS, 2, order), 0, amiss)
    columns: Any = SimpleNamespace(names=("a", "b"))
    with raises_code(IdError, "SVFL-ID-ORDER", peer=amiss):
        correlate._exchange_shapes(PARTY, columns, ["bank", "shop", "telco", "mill"], line)


@pytest.mark.parametrize("place", [0, 8, 32, 63])
def test_parts_of_two_trainings_are_not_put_together(place: int) -> None:
    runs = [bytes(32).hex(), changed(bytes(32).hex().encode(), place).decode()]
    one, other = (PredictionHandshake(run, 3, b"", "active") for run in runs)
    prediction_session._compare("bank", one, "shop", one)
    with raises_code(ConfigError, "SVFL-MODEL-MISMATCH"):
        prediction_session._compare("bank", one, "shop", other)


def rounds_job(**keys: Any) -> vfl.Job:
    defaults = {
        "model": "logistic",
        "optimizer": vfl.FedSGD(lr=0.1),
        "protocol": "open",
        "batch_size": 500,
        "epochs": 1,
    }
    return vfl.Job(**defaults | {"accepts": ["columns", "rank"]} | keys)


def table(**changes: Any) -> vfl.Party:
    """Return the bank's table, or one that differs in one value, one label or one id."""
    X, y, ids = PARTY.X.copy(), np.array(PARTY.y), list(range(ROWS))
    X[-1, -1] += changes.get("value", 0.0)
    y[-1] = (y[-1] + changes.get("label", 0)) % 2
    ids[-1] += changes.get("id", 0)
    return vfl.Party("bank", X, y, ids=ids)


OTHERS: dict[str, tuple[vfl.Job, vfl.Party]] = {
    "a value": (rounds_job(), table(value=1e-9)),
    "a label": (rounds_job(), table(label=1)),
    "an id": (rounds_job(), table(id=1)),
    "a job": (rounds_job(seed=1), table()),
}


@pytest.mark.parametrize("other", OTHERS)
def test_states_and_parts_are_of_one_job_and_table(other: str, tmp_path: Path) -> None:
    """Training is not resumed from a state or part of another job, or of a table with one different entry."""
    arguments, path = (rounds_job(), table()), tmp_path / "part.json"
    assert run_key(*arguments) == run_key(rounds_job(), table()) != run_key(*OTHERS[other])
    run = vfl.simulate(rounds_job(), [table(), vfl.Party("shop", PARTY.X, ids=range(ROWS))])
    run.parts["bank"].save(path)
    states = Checkpoints(tmp_path / "states", "bank")
    part = join._same(path, *arguments, states)
    assert isinstance(part, ModelPart)
    assert join._same(path, *OTHERS[other], states) is None
    assert join._same(path, rounds_job(), replace_name(table()), states) is None
    assert join._same(path, *arguments, None) is None


def replace_name(party: vfl.Party) -> vfl.Party:
    return vfl.Party("lender", party.X, party.y, ids=range(ROWS))


def test_a_sheet_is_agreed_to_by_every_digit_of_its_digest(tmp_path: Path) -> None:
    agreed, sheet = AgreedSheets(DisclosureLedger(tmp_path / "ledger", "bank")), ConsentSheet("discloses nothing")
    agreed.add(sheet)
    assert agreed.has_agreed(ConsentSheet("discloses nothing"))
    assert not agreed.has_agreed(ConsentSheet("discloses nothing."))
    for other in (sheet.digest[:-1], sheet.digest[:8], "", f"{sheet.digest[:-1]}x", f"{sheet.digest}0"):
        assert not agreed.has_digest(other)


@pytest.mark.parametrize("vectors", [1, 2, 4, 6])
def test_a_query_with_unagreed_vectors_is_not_answered(vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither fewer nor more vectors are accepted: each further one would give another
    product of this party's columns.
    """
    products, sent = Products.__new__(Products), list[Any]()
    monkeypatch.setattr(Products, "_products", lambda *_, **__: iter([(b"", np.zeros((5, vectors), np.uint64))]))
    monkeypatch.setattr(Products, "send", lambda self, name, message, permit=None: sent.append(message))
    evaluators: Any = {"shop": None}
    with raises_code(ProtocolError, "SVFL-PROTOCOL-SIZE", party="shop"):
        products.answer_queries(SimpleNamespace(), evaluators, {7: 3}, lambda batch: None)  # type: ignore[arg-type]
    assert not sent


@pytest.mark.parametrize("holder", ["a", "d"])
def test_every_party_s_nonce_is_in_every_coin(holder: str) -> None:
    """A coin (random bytes of all parties) without one party's nonce could repeat if the others repeat their nonces."""
    products = Products.__new__(Products)

    def coin(**others: bytes) -> bytes:
        products._nonces = {name: name.encode() * 32 for name in "abcd"} | others
        return products.coin(holder, 3, "steps")

    unchanged = coin()
    coins = {coin(**{name: changed(name.encode() * 32, place)}) for name in "abcd" for place in (0, 16, 31)}
    assert len(coins | {unchanged}) == 13
    assert (
        len(
            {
                unchanged,
                products.coin(holder, 4, "steps"),
                products.coin(holder, 3, "sums"),
                products.coin("b", 3, "steps"),
            }
        )
        == 4
    )

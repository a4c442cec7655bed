"""Counts of one class in bins: an attack on labels from all columns of a run, and how the counts are charged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score

import securevfl as vfl
from securevfl.audit.attacks.two_values import subset
from securevfl.consent.leak_check import leaks
from securevfl.crypto.kernel import opened_words
from securevfl.crypto.kernel.row_parameters import OPENED_HEADER
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.paillier.paillier_messages import _HEAD as HEAD
from securevfl.crypto.scheme import OpeningShape
from securevfl.data.party import register_of
from securevfl.data.woe import BinIndicators, Woe
from securevfl.disclosure.label_bits import count_singled_out, label_entropy
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import LeakageError, OpeningMismatch, ProtocolError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.protocols import bin_classes
from securevfl.protocols.differentiable import FixedJacobian
from securevfl.protocols.residuals.base import Agreement, Batch
from securevfl.protocols.residuals.sealed_residual import SealedActive
from tests.builders import disclosures_in_run, raises_code
from tests.small_keys import SMALL


def woe_job(woe: Woe, **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.1),
        "batch_size": "all",
        "epochs": 1,
    }
    defaults |= {"protocol": vfl.Protocol(residual=vfl.Ckks()), "prepare": {"woe": woe}, "accepts": ["columns"]}
    return vfl.Job(**defaults | keys)


def noise(rows: int, columns: int, seed: int = 0, positive: float = 0.5) -> list[vfl.Party]:
    """Return a bank with labels that depend on nothing, and a shop with columns of noise."""
    generator = np.random.default_rng(seed)
    y = (generator.random(rows) < positive).astype(int)
    bank = vfl.Party("bank", generator.normal(size=(rows, 2)), y, aligned=True)
    return [bank, vfl.Party("shop", generator.normal(size=(rows, columns)), aligned=True)]


def told(parties: list[vfl.Party], woe: Woe) -> tuple[np.ndarray, np.ndarray]:
    """Return the shop's knowledge after a run: the matrix of its bins (k, n) and the opened counts (k,)."""
    stored: list[Any] = []
    ask = bin_classes.receive_counts

    def watched(context: Any, residual: Any, bins: BinIndicators, rows: Any) -> Any:
        result = ask(context, residual, bins, rows)
        stored.extend((bins[:].T, result))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bin_classes, "receive_counts", watched)
        vfl.simulate(woe_job(woe, accepts=["columns", "rank"]), parties)
    return stored[0], stored[1]


def guess(A: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the least-norm solution of A y = counts."""
    return np.linalg.lstsq(A, counts.astype(float))[0]


def shares(parties: list[vfl.Party], woe: Woe) -> float:
    """Return the share of the labels' information that the leak check charges for the bins."""
    known = pooled_run_facts(woe_job(woe), parties)
    return next(count.share for count in disclosures_in_run(woe_job(woe), known.shape) if count.group == "bins")


def test_only_refused_bins_reveal_all_labels() -> None:
    many = noise(60, 12)
    woe = Woe(bins=3, rows=20)
    A, counts = told(many, woe)
    assert np.linalg.matrix_rank(A) < 60  # linear algebra alone is not enough
    result = subset(A, counts.astype(float))
    assert result is not None
    np.testing.assert_array_equal(result, many[0].y)
    assert shares(many, woe) > 1
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("rank",)):
        vfl.simulate(woe_job(woe), many)

    few = noise(60, 1)
    least = Woe(bins=2, rows=20)
    A, counts = told(few, least)
    assert shares(few, least) == (3 + 3) * 7 / 60  # three counts and three checks, words of 7 bits
    assert {leak.name for leak in leaks(woe_job(least), pooled_run_facts(woe_job(least), few).shape)} <= {"columns"}
    result = subset(A, counts.astype(float))
    assert result is None or not np.array_equal(result, few[0].y)  # many labels fit the counts


@pytest.mark.parametrize(("rows", "columns", "most"), [(2000, 10, 0.66), (600, 4, 0.75)])
def test_counts_rank_labels_no_better_than_their_share(rows: int, columns: int, most: float) -> None:
    """With columns of noise, the excess of the AUC over 0.5 is the information of the counts about each row."""
    parties = noise(rows, columns)
    woe = Woe(bins=8, rows=30)
    A, counts = told(parties, woe)
    assert shares(parties, woe) < 1
    assert 0.5 < roc_auc_score(parties[0].y, guess(A, counts)) < most


def test_rare_labels_contain_less_information() -> None:
    balanced, rare = noise(2000, 5), noise(2000, 5, positive=0.02)
    assert shares(rare, Woe()) > 5 * shares(balanced, Woe())
    assert label_entropy(np.array([True, False])) == 1.0


def test_bins_of_two_columns_that_differ_by_one_row_are_refused() -> None:
    bank, _ = noise(180, 1)
    place = np.arange(180)
    shop = vfl.Party("shop", np.column_stack([place, place > 90]), aligned=True)
    woe = Woe(bins=2, rows=20)
    assert count_singled_out(BinIndicators(np.column_stack([place >= 90, place > 90]).astype(float), woe.slots)) == 1
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("rank",)):
        vfl.simulate(woe_job(woe), [bank, shop])
    A, counts = told([bank, shop], woe)
    assert round(abs(guess(A, counts)[90])) == bank.y[90]


def test_no_more_counts_are_opened_than_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that requests another matrix, with one row for each column, is refused before anything is opened."""

    def rows_apart(context: Any, residual: Any, bins: BinIndicators, rows: Any) -> Any:
        return ask(context, residual, np.eye(len(bins)), np.ones(len(bins), int))

    ask = bin_classes.receive_counts
    monkeypatch.setattr(bin_classes, "receive_counts", rows_apart)
    with raises_code(ProtocolError, "SVFL-PROTOCOL-CHEATING", party="shop"):
        vfl.simulate(woe_job(Woe(bins=2, rows=20)), noise(60, 1))


def test_opened_fractions_do_not_depend_on_labels() -> None:
    """Two label columns with the same counts give fractions of the same distribution."""
    scheme = LatticeGradient()
    holder = scheme.keygen(columns=2)
    evaluator = scheme.evaluator(holder.public)
    place = np.repeat([0.0, 1.0], 40)[:, None]
    bins = BinIndicators(place, 2)
    fractions: list[list[float]] = []
    for later in (np.tile([True, False], 40), np.repeat([True, False, False, True], 20)):
        results = []
        for _ in range(150):
            sealed = holder.encrypt(np.where(later, 1.0, -1.0)[:, None], bound=1.0)
            blinded, r = evaluator.blind(evaluator.transpose_product(evaluator.prepare(bins[:]), sealed))
            opened = evaluator.unblind(holder.open(blinded, OpeningShape(80, 1, 2)), r)[:, 0]
            np.testing.assert_array_equal(np.rint(opened), 0)  # 20 of 40 in each bin
            results += opened.tolist()
        fractions.append(results)
    assert ks_2samp(*fractions).pvalue > 1e-9


def test_the_sheet_states_bins_and_the_ledger_counts_them_once(tmp_path: Path) -> None:
    parties = noise(1000, 4)
    sheet = " ".join(vfl.explain(woe_job(Woe()), parties).split())
    assert "for each of its bins the number of rows of the positive class, for weights of evidence:" in sheet
    assert (
        "41 numbers of 11 bits, with check values. Whatever this party requests, they disclose at most 484 bits"
        in sheet
    )
    assert "Residual from active: plain" in vfl.explain(woe_job(Woe(), protocol="open"), parties)
    ledgers = {name: DisclosureLedger(tmp_path / f"{name}.ledger", name) for name in ("bank", "shop")}
    ledgers["bank"].trust("shop")  # to repeat the same equations if accepted
    named = [vfl.Party(party.name, party.X, party.y, ids=[f"c{k}" for k in range(len(party))]) for party in parties]
    vfl.simulate(woe_job(Woe()), named, ledgers=ledgers)
    once = sum(entry.disclosure.count for entry in ledgers["bank"].read().entries if entry.disclosure.group == "bins")
    assert once == (41 + 3) * bin_classes.count_bits(1000)
    vfl.simulate(woe_job(Woe(), seed=4), named, ledgers=ledgers)  # the same bins and equations again
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("fresh_equations",)):
        vfl.simulate(woe_job(Woe(bins=5)), named, ledgers=ledgers)


class Stopped(Exception):
    """Stops a run once its counts are disclosed."""


@pytest.mark.parametrize("engine", [vfl.Ckks(), vfl.Ckks(library="seal"), SMALL], ids=["ckks", "seal", "paillier"])
def test_chosen_weights_reveal_no_more_labels_than_counted(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    """A malicious party multiplies rows by 1, 2, 4 ... in place of bins.

    Unbounded integers would reveal 14 labels and more each: 112 of 600 where 40 bits were counted. Words reveal the
    number of their bits, and these are counted.
    """
    parties, woe, read = noise(600, 2), Woe(bins=3), dict[int, list[bool]]()
    word = bin_classes.count_bits(600)
    opens, sent = SealedActive._open_one, list[bytes]()

    def opened(self: SealedActive, *arguments: Any) -> bytes:
        sent.append(opens(self, *arguments))
        return sent[-1]

    def ask(count: int) -> Any:
        def asked(context: Any, residual: Any, bins: BinIndicators, rows: Any) -> Any:
            J = np.zeros(bins[:].shape)
            for j in range(J.shape[1]):
                J[j * count : (j + 1) * count, j] = 2.0 ** np.arange(count)[::-1]
            role = residual.passive(context, Agreement(group="bins", word=word))
            with context.channel.gate.about_rows("bins"):
                result = role.reply().gradient(FixedJacobian(), Batch(0, 0, J))[:, 0]
            read[count] = []
            for value in result.tolist():
                for step in range(count)[::-1]:
                    read[count].append(value > 0)
                    value -= (1 if value > 0 else -1) * 2.0**step
            raise Stopped

        return asked

    chosen = woe_job(woe, protocol=vfl.Protocol(residual=engine))
    monkeypatch.setattr(SealedActive, "_open_one", opened)
    train = np.sort(chosen.schedule(register_of(parties)).train)
    labels = parties[0].y[train] == 1
    right = dict[int, int]()
    fits = word - 1 if engine.exact else word - 4  # a lattice scales columns by their norm, and these have few rows
    for count in (fits, 14):
        monkeypatch.setattr(bin_classes, "receive_counts", ask(count))
        with pytest.raises((Stopped, OpeningMismatch, ProtocolError)):
            vfl.simulate(chosen, parties)
        guesses = np.array(read.get(count, []), bool)
        right[count] = int((guesses == labels[: len(guesses)]).sum()) if len(guesses) else 0
    counted = next(
        e.count for e in disclosures_in_run(chosen, pooled_run_facts(chosen, parties).shape) if e.group == "bins"
    )
    assert right[fits] == 7 * fits < counted  # the bits of a word can be read
    assert 2 * right[14] - 7 * 14 <= 7 * word  # and no more: guesses of the others are right half of the time
    assert counted == engine.scheme().opened_bits(600, 7, word)
    values = sent[0][-(7 + 3) * opened_words.word_size(word) :]  # lattice: the words after the header
    if engine.name == "ckks":
        assert len(sent[0]) == OPENED_HEADER.size + len(values)
        full = np.frombuffer(values, "<u2")
        assert (full < 1 << word).all()
    else:
        size = (len(sent[0]) - HEAD.size) // 9  # 7 counts and two checks
        numbers = [int.from_bytes(sent[0][at:][:size], "big") for at in range(HEAD.size, len(sent[0]), size)]
        assert max(numbers[:7]) < 1 << word

"""Attacks on columns and labels from the received messages of a run succeed where they should."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import securevfl as vfl
from securevfl.audit.attacks import ATTACKS
from securevfl.audit.attacks.binary_columns import columns_read, hidden_spaces, two_valued
from securevfl.audit.attacks.column_space import recovery_error, shares_inside, space
from securevfl.audit.findings import Audit
from securevfl.audit.recording.column_numbers import ColumnNumbers, column_numbers
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.audit.report import run_audit
from securevfl.protocols.sums.base import SumProtocol

pytestmark = pytest.mark.exact_outputs

DATA = Path(__file__).parents[3] / "shared" / "data"
BINARY_COLUMNS = ("late", "sex")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


def credit(passives: int = 1, *, n: int = 300, wide: int = 0, seed: int = 0) -> list[vfl.Party]:
    """Return a bank and other parties with eight columns, two of them binary; `wide` adds real columns to the last."""
    generator = np.random.default_rng(seed)
    reals = generator.normal(size=(n, 6)) @ generator.normal(size=(6, 6))
    bits = generator.random((n, 2)) < (0.3, 0.6)
    shop = np.column_stack([bits, reals, generator.normal(size=(n, wide))])
    names = [*BINARY_COLUMNS, *(f"x{j}" for j in range(6 + wide))]
    columns = generator.normal(size=(n, 5))
    y = columns[:, 0] + bits[:, 0] + reals[:, 0] / 3 + generator.normal(size=n) > 0.5
    parts = np.array_split(np.arange(len(names)), passives)
    others = [
        vfl.Party(f"shop{k}", shop[:, j], columns=[names[i] for i in j], aligned=True) for k, j in enumerate(parts)
    ]
    return [vfl.Party("bank", columns, y.astype(int), columns=[f"b{j}" for j in range(5)], aligned=True), *others]


def linear_job(sums: SumProtocol | str = "auto", residual: object = "open", **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {"model": vfl.Logistic(l2=1e-3), "optimizer": vfl.FedBCD(local_steps=5, lr=0.3)}
    defaults |= {"batch_size": 150, "epochs": 12}
    return vfl.Job(**(defaults | keys), protocol=vfl.Protocol(sum=sums, residual=residual))  # type: ignore[arg-type]


HIDING = [vfl.PairwiseSum(), vfl.TreeSum(), vfl.CipherSum()]
OTHERS = [("auto", vfl.Ckks(), 1), ("direct", vfl.Ckks(), 2), *((sums, vfl.Ckks(), 3) for sums in HIDING)]


@pytest.mark.parametrize(("sums", "residual", "passives"), OTHERS, ids=repr)
def test_a_long_run_reveals_columns_through_every_sum(sums: SumProtocol | str, residual: object, passives: int) -> None:
    pair = RealIdealPair(linear_job(sums, residual), credit(passives), 0)
    score = ATTACKS["column_space"].score(pair)
    assert score.real > 0.999 > 0.2 > score.chance
    assert score.simulated == pytest.approx(score.real, abs=1e-3)  # the sums are declared
    full = [
        numbers
        for numbers in column_numbers(pair, pair.real_run[1])
        if len(numbers.about) == (1 if sums == "direct" else passives)
    ]
    for batch in full:
        assert space(batch).shape[1] == batch.truth.shape[1]
        error = recovery_error(batch, space(batch), 40)
        assert error < (0.3 if isinstance(sums, vfl.CipherSum) else 1e-6)  # encrypted sums are rounded
    bits = ATTACKS["binary_columns"].score(pair)
    assert bits.real == 1
    assert all(name in bits.detail for name in BINARY_COLUMNS)


def test_a_short_run_reveals_part_of_the_columns() -> None:
    pair = RealIdealPair(linear_job(epochs=3), credit(), 0)
    score = ATTACKS["column_space"].score(pair)
    assert 0.3 < score.real < 0.9
    assert "no column inside" in score.detail
    control = column_numbers(pair, pair.real_run[1])[0]
    noise = replace(control, numbers=np.random.default_rng(0).normal(size=control.numbers.shape))
    assert np.nanmean(shares_inside(noise.truth, space(noise))) < 0.1


def test_an_open_residual_reveals_the_columns_of_all_others() -> None:
    pair = RealIdealPair(linear_job(vfl.PairwiseSum(), "open", epochs=20), credit(2), 0)
    detail = ATTACKS["column_space"].score(pair).detail
    assert "shop0 about bank, shop1: 9 of 9 columns inside (b0, b1, b2, b3, b4, " in detail
    sealed = RealIdealPair(linear_job(vfl.PairwiseSum(), vfl.Ckks(), epochs=20), credit(2), 0)
    assert "shop0 about" not in ATTACKS["column_space"].score(sealed).detail


@pytest.mark.parametrize("model", [vfl.Square(), vfl.Softmax(), vfl.Logistic()], ids=lambda model: model.name)
def test_open_residuals_of_every_loss_reveal_other_parts(model: object) -> None:
    softmax = isinstance(model, vfl.Softmax)
    parties = [party.take(np.arange(600)) for party in vfl.datasets.digits(3)] if softmax else credit(2)
    job = linear_job(epochs=30, model=model, batch_size=150, optimizer=vfl.FedBCD(local_steps=2, lr=0.1))
    pair = RealIdealPair(job, parties, 0)
    results = [numbers for numbers in column_numbers(pair, pair.real_run[1]) if numbers.learner != "bank"]
    assert {numbers.learner for numbers in results} == {party.name for party in parties[1:]}
    for numbers in results:
        assert np.nanmean(shares_inside(numbers.truth, space(numbers))) > 0.99


def test_evaluations_reveal_columns_of_held_out_rows() -> None:
    pair = RealIdealPair(linear_job(epochs=4, test_fraction=0.2, evaluate_every=1), credit(), 0)
    result = column_numbers(pair, pair.evaluated_run[1])
    held_out = next(item for item in result if np.array_equal(item.rows, pair.schedule.test))
    assert held_out.numbers.shape[1] == 4 * pair.schedule.batches + 1
    assert np.nanmin(shares_inside(held_out.truth, space(held_out))) > 0.999
    training = next(item for item in result if len(item.rows) != len(held_out.rows) and item.learner == "bank")
    assert training.numbers.shape[1] == 4
    assert len(pair.job.accepts) > 1  # a pair may run a job that the leak checks refuse


def test_fewer_numbers_than_columns_reveal_binary_columns() -> None:
    generator = np.random.default_rng(0)
    X = (generator.random((80, 12)) < generator.uniform(0.2, 0.8, 12)).astype(float)
    numbers = (X - X.mean(axis=0)) @ generator.normal(size=(12, 1))
    assert max(np.nanmin(shares_inside(X[:34], hidden)) for hidden in hidden_spaces(numbers[:34], 12)) == pytest.approx(
        1
    )
    names = tuple(f"c{j}" for j in range(12))
    batch = ColumnNumbers("bank", ("shop",), np.arange(80), numbers, X, names, 12)
    assert columns_read(batch) == set(names)
    blurred = numbers + generator.normal(size=numbers.shape) * 1e-4
    assert not columns_read(replace(batch, numbers=blurred))


def test_binary_vectors_are_found_in_small_and_large_spaces() -> None:
    generator = np.random.default_rng(2)
    for reals in (3, 20):
        X = np.column_stack([generator.random((400, 3)) < 0.4, generator.normal(size=(400, reals))])
        names = tuple(map(str, range(3 + reals)))
        numbers = X @ generator.normal(size=(3 + reals, 3 + reals))
        columns = space(ColumnNumbers("bank", ("shop",), np.arange(400), numbers, X, names, 3 + reals))
        basis = np.column_stack([np.full(400, 400**-0.5), columns])
        vectors = two_valued(basis)
        result = {vector.tobytes() for vector in vectors} | {(~vector).tobytes() for vector in vectors}
        assert {(X[:, j] > 0).tobytes() for j in range(3)} <= result
        assert len(result) == 6


def test_a_first_difference_is_a_part_only_in_sequential_mode() -> None:
    optimizer = vfl.FedBCD(local_steps=3, lr=0.3, mode="sequential")
    job = linear_job(vfl.PairwiseSum(), vfl.Ckks(), optimizer=optimizer, epochs=1)
    score = ATTACKS["first_difference"].score(RealIdealPair(job, credit(3), 0))
    assert score.real == pytest.approx(2 / 3)  # the last party moves after the last sum of the iteration
    assert "shop0, shop1" in score.detail
    assert ATTACKS["first_difference"].skip_reason(linear_job(vfl.PairwiseSum()))
    assert ATTACKS["first_difference"].skip_reason(
        job.model_copy(update={"protocol": vfl.Protocol(residual="open", sum="direct")})
    )


@pytest.mark.parametrize("residual", ["open", vfl.Ckks()], ids=str)
@pytest.mark.parametrize("sums", ["direct", "pairwise"])
def test_a_partial_score_ranks_labels_under_any_protocol(sums: str, residual: object) -> None:
    parties = vfl.datasets.breast_cancer(2 if sums == "direct" else 3)
    score = ATTACKS["partial_score"].score(RealIdealPair(linear_job(sums, residual, batch_size=284), parties, 0))
    assert score.real > (0.97 if sums == "direct" else 0.8)
    assert score.real == pytest.approx(score.simulated, abs=1e-3)


@pytest.fixture(scope="module")
def refused() -> Audit:
    return run_audit(linear_job(residual=vfl.Ckks()), credit(), seeds=(0,))


def test_an_audit_fails_and_names_the_disclosed_columns(refused: Audit) -> None:
    assert refused.exit_code == 1
    text = "\n".join(refused.exceeding)
    assert "would be refused: disclosure to bank: it receives 13 numbers" in text
    for name in (*BINARY_COLUMNS, *(f"x{j}" for j in range(6))):
        assert name in text
    assert "bank reads 2 of 2 binary columns of shop0: late, sex" in text
    assert not refused.findings


def test_the_audit_passes_if_the_job_accepts_the_leak() -> None:
    audit = run_audit(linear_job(residual=vfl.Ckks(), accepts=["columns"]), credit(), seeds=(0,))
    assert audit.exit_code == 0, audit.exceeding
    assert any(leak.startswith("accepted: disclosure to bank: it receives") for leak in audit.leaks)
    assert any("8 of 8 columns inside" in inference.detail for inference in audit.inferences)


@pytest.mark.slow
def test_the_audit_passes_with_a_sum_over_enough_columns() -> None:
    audit = run_audit(linear_job("pairwise", vfl.Ckks()), credit(3, wide=40), seeds=(0,))
    assert audit.exit_code == 0, audit.exceeding


def test_an_audit_reports_parts_from_sequential_sums() -> None:
    optimizer = vfl.FedBCD(local_steps=3, lr=0.3, mode="sequential")
    job = linear_job("pairwise", vfl.Ckks(), optimizer=optimizer, epochs=2, accepts=["columns"])
    audit = run_audit(job, credit(3), seeds=(0,))
    assert audit.exit_code == 1
    assert any("first difference: part of shop0, shop1" in line for line in audit.exceeding)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.skipif(not DATA.is_dir(), reason="needs the real tables")
def test_the_columns_of_the_credit_table() -> None:
    """Of eleven columns the four binary ones are read; 14 known rows of a batch determine the others."""
    import csv
    import gzip

    with gzip.open(DATA / "UCI_Credit_Card.csv.gz", "rt") as file:
        head, *rows = csv.reader(file)
    raw = dict(zip(head, np.array(rows, dtype=np.float64)[:1500].T, strict=True))
    bits = {"sex": raw["SEX"] == 1, "married": raw["MARRIAGE"] == 1, "university": raw["EDUCATION"] == 2}
    shop = bits | {"late": raw["PAY_0"] > 0, "limit": raw["LIMIT_BAL"], "age": raw["AGE"]}
    shop |= {name: raw[name] for name in ("PAY_AMT1", "PAY_AMT2", "PAY_AMT3", "BILL_AMT1", "BILL_AMT2")}
    bank = np.column_stack([raw[name] for name in ("PAY_2", "PAY_3", "BILL_AMT3", "BILL_AMT4", "PAY_AMT4")])
    parties = [
        vfl.Party("bank", bank, raw["default.payment.next.month"].astype(int), aligned=True),
        vfl.Party("shop", np.column_stack(list(shop.values())), columns=list(shop), aligned=True),
    ]
    keys: dict[str, Any] = {"batch_size": 750, "optimizer": vfl.FedBCD(lr=0.1), "prepare": {"tails": "keep"}}
    long = RealIdealPair(linear_job(residual=vfl.Ckks(), epochs=20, **keys), parties, 0)
    score = ATTACKS["column_space"].score(long)
    assert score.real > 0.999999
    assert "14 known rows determine them" in score.detail
    short = RealIdealPair(linear_job(residual=vfl.Ckks(), epochs=5, **keys), parties, 0)  # 4 are sometimes too few
    for pair in (long, short):
        assert ATTACKS["binary_columns"].score(pair).real == 1
    assert ATTACKS["column_space"].score(short).real < 0.8

"""Defaults of a job. Alone, a model key trains on shares and scores as scikit-learn does.

With rounds it trains as long as leak checks allow.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import REAL_TABLES, raises_code, random_parties
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import securevfl as vfl
from securevfl.consent.leak_check import leaks
from securevfl.consent.settle_job import most_epochs, settle_job, with_allowed_epochs
from securevfl.data.location_scale import QUARTILES
from securevfl.errors import ConfigError, DataNotice, LeakageError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.table_preparation import prepare_parties
from securevfl.optim.defaults import DEFAULT_ITERATIONS, EVALUATE_SAFE_STEPS_EVERY, HELD_OUT_FRACTION, why_not_on_shares
from securevfl.organisations.join import check_role
from securevfl.transport.peers import Peers

ROOT = Path(__file__).parents[2]
real = [pytest.mark.realdata, pytest.mark.skipif(not REAL_TABLES.exists(), reason="needs the real tables")]


@pytest.fixture
def first_job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that measures the model of the job with one key."""
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("no checkout")
    monkeypatch.syspath_prepend(str(ROOT))
    return import_module("benchmarks.first_job")


@pytest.fixture
def read_table(first_job: Any) -> Callable[[str], list[vfl.Party]]:
    """Read a real table by its name."""
    return lambda name: first_job.TABLES[name](REAL_TABLES)


SIX = ("default_credit", "a9a", "ijcnn1", "phishing", "adult", "support2")


@pytest.mark.parametrize("bins", [False, True])
@pytest.mark.parametrize("name", [pytest.param(table, marks=[*real, pytest.mark.slow]) for table in SIX])
@pytest.mark.filterwarnings("ignore::securevfl.errors.DataNotice")
@pytest.mark.timeout(1200)
def test_a_model_alone_scores_as_pooled_regression_does(name: str, bins: bool, first_job: Any) -> None:
    """Compared with scikit-learn on the same columns; with bins, on weights of evidence with equal numbers of bins."""
    apart = [first_job.measured(name, REAL_TABLES, split, bins=bins)["difference"] for split in first_job.SPLITS]
    assert min(apart) >= -0.003
    assert bins or np.mean(apart) >= -0.0005


@pytest.mark.long
def test_bins_rank_as_weights_of_evidence_of_the_pooled_table_do(first_job: Any) -> None:
    """On generated loans, the AUC is above the bound by at least .02, so random rounding cannot fail the test."""
    parties, job = vfl.datasets.loans(1_600), first_job.alone(0, bins=True)
    assert vfl.simulate(job, parties).metrics["auc"] >= first_job.pooled_auc(parties, job) - 0.003


def test_a_model_alone_trains_on_shares(first_job: Any) -> None:
    job = vfl.Job(model="logistic")
    assert job == vfl.Job(model=vfl.Logistic(), protocol="shares") == vfl.Job.from_dict(job.to_dict())
    assert job.protocol.shares is not None
    assert (job.optimizer.name, job.batch_size, job.epochs) == ("block_descent", "growing", DEFAULT_ITERATIONS)
    assert (job.test_fraction, job.evaluate_every, job.accepts) == (HELD_OUT_FRACTION, EVALUATE_SAFE_STEPS_EVERY, ())
    assert job.patience is None
    parties = vfl.datasets.breast_cancer()
    run = vfl.simulate(job, parties)
    assert run.metrics["auc"] >= first_job.pooled_auc(parties, job) - 0.01


def made_up(rows: int, widths: Sequence[int]) -> list[vfl.Party]:
    """Return parties of these widths with skewed, binary and correlated columns, and labels."""
    draw = np.random.default_rng(rows)
    X = draw.normal(size=(rows, sum(widths)))
    X += 0.5 * X[:, :1]
    X[:, 1::4], X[:, 2::4] = np.exp(X[:, 1::4] / 2), X[:, 2::4] > 1
    f = (X - X.mean(axis=0)) / X.std(axis=0) @ draw.normal(size=X.shape[1]) / len(widths) - 1
    y = (draw.random(rows) < 1 / (1 + np.exp(-f))).astype(int)
    parts = np.split(X, np.cumsum(widths)[:-1], axis=1)
    return [
        vfl.Party(name, part, y if name == "a" else None, aligned=True)
        for name, part in zip("abcd", parts, strict=False)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(4, 4), (3, 3, 2)])
def test_rows_beyond_the_full_bit_width_train_by_default(widths: Sequence[int], first_job: Any) -> None:
    """With 400,000 rows, a quarter held out: two parties had bits for 262,144 rows at once, three for 174,762."""
    parties, job = made_up(400_000, widths), vfl.Job(model="logistic")
    run, rows = vfl.simulate(job, parties), job.schedule(parties[0].register).test
    assert parties[0].y is not None
    auc = roc_auc_score(parties[0].y[rows], run.decision({party.name: party.X[rows] for party in parties})[:, 0])
    assert auc >= first_job.pooled_auc(parties, job) - 0.0005  # metrics are of a part of the rows


def test_the_job_of_one_key_trains_on_parts_that_grow(first_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations of models of fewer rows neither end the training nor are stored."""
    for name, value in (("MIN_GROWING_ROWS", 1000), ("MIN_SUBSET_ROWS", 200)):
        monkeypatch.setattr(f"securevfl.data.schedule.{name}", value)
    parties, job = made_up(4_000, (3, 3)), vfl.Job(model="logistic")
    run = vfl.simulate(job, parties)
    assert run.costs.rounds == DEFAULT_ITERATIONS
    assert run.metrics["auc"] >= first_job.pooled_auc(parties, job) - 0.01
    # the first 16 iterations use subsets, so that an early stop evaluates after 18 and can end the training after 30
    stopping = vfl.Job(model="logistic", optimizer=vfl.BlockDescent(early_stop=9.0))
    assert "3 sums of losses" in vfl.explain(stopping, parties)
    stopped = vfl.simulate(stopping, parties)
    assert [record["round"] for record in stopped.history if "loss" in record] == [18, 30]
    assert {part.rounds for part in stopped.parts.values()} == {30}


def test_parts_that_grow_are_for_block_descent() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="batch_size"):
        vfl.Job(model="logistic", optimizer=vfl.FedSGD(lr=0.1), batch_size="growing")


def test_without_held_out_rows_nothing_is_watched() -> None:
    job = vfl.Job(model="logistic", test_fraction=0)
    assert job.patience is None
    assert job.evaluation_interval == 0


@pytest.mark.parametrize(
    ("keys", "label", "optimizer"),
    [
        ({"model": "square"}, "shares", "block_descent"),
        ({"model": "one_vs_rest"}, "shares", "block_descent"),
        ({"model": "softmax"}, "direct/ckks", "block_newton"),
        ({"model": "neural"}, "direct/ckks", "fedbcd"),
        ({"model": "logistic", "protocol": "ckks"}, "direct/ckks", "block_newton"),
        ({"model": "logistic", "protocol": "paillier"}, "direct/paillier", "block_newton"),
        ({"model": "logistic", "protocol": "open"}, "direct/open", "block_newton"),
        ({"model": "logistic", "optimizer": {"name": "fedsgd", "lr": 0.1}}, "shares", "fedsgd"),
        ({"model": "logistic", "optimizer": "fedbcd"}, "direct/ckks", "fedbcd"),
        ({"model": "logistic", "optimizer": {"name": "fedsgd", "lr": 0.1, "rule": "adam"}}, "direct/ckks", "fedsgd"),
    ],
)
def test_what_is_left_out_is_the_safest_that_fits(keys: dict[str, object], label: str, optimizer: str) -> None:
    job = vfl.Job(**keys)
    assert (job.protocol.label(1), job.optimizer.name, job.accepts) == (label, optimizer, ())
    sealed_for = "protocol" not in keys and label != "shares"
    assert bool(why_not_on_shares(job.model, job.optimizer)) == (label != "shares")
    if sealed_for and keys["model"] == "logistic":
        sheet = vfl.explain(job, vfl.datasets.breast_cancer())
        assert f"not on shares, because {why_not_on_shares(job.model, job.optimizer)}" in sheet


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "logistc"}, "model: there is no model of this name; choose one of logistic"),
        ({}, "model: the option is missing"),
        ({"model": "logistic", "protocol": "sharez"}, 'or protocol = "shares"'),
        ({"model": "softmax", "protocol": "shares"}, "use one_vs_rest"),
        ({"model": "neural", "protocol": "shares"}, 'use protocol = "ckks"'),
    ],
)
def test_one_slip_is_one_line(keys: dict[str, object], message: str) -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as raised:
        vfl.Job(**keys)
    assert len(str(raised.value).splitlines()) == 1
    assert message in str(raised.value)


@pytest.mark.parametrize("optimizer", [None, "fedbcd", "fedsgd", "block_newton", "block_descent", "fdskl"])
@pytest.mark.parametrize("model", ["neural", "transfer", "kernel"])
def test_a_job_with_the_named_protocol_has_another_error_or_none(model: str, optimizer: str | None) -> None:
    """Models that cannot be trained on shares: the protocol that the error names is one that the model has."""
    keys = {"model": {"name": model} | ({"gamma": 0.1} if model == "kernel" else {}), "protocol": "shares"}
    if optimizer is not None:
        keys["optimizer"] = {"name": optimizer} | ({"lr": 0.1} if optimizer in ("fedbcd", "fedsgd") else {})
    with raises_code(ConfigError, "SVFL-JOB-OPTION") as raised:
        vfl.Job(**keys)
    named = {'use protocol = "ckks"': "ckks", 'use protocol = {sum = "auto"}': {"sum": "auto"}}
    (keys["protocol"],) = [protocol for remedy, protocol in named.items() if remedy in str(raised.value)]
    errors = list[str]()
    try:
        vfl.Job(**keys)
    except ConfigError as error:
        errors.append(str(error))
    assert not any(error.startswith("protocol") for error in errors)


def test_columns_with_values_far_out_are_squashed_and_named() -> None:
    heavy = np.append(np.linspace(-1, 1, 399), 1e6)
    usual = np.sin(np.arange(400.0))
    far = vfl.Party("bank", np.column_stack([heavy, usual]), np.arange(400) % 2, aligned=True, columns=["sum", "age"])
    job = vfl.Job(model="logistic", test_fraction=0)
    with pytest.warns(DataNotice, match=r'bank: .*squashed by asinh: sum; prepare\.tails = "keep"'):
        squashed = prepare_parties(job, [far])[0]
    assert np.array_equal(squashed.X[:, 1], usual)
    first, median, last = np.quantile(heavy, [0.25, 0.5, 0.75])
    assert np.allclose(squashed.X[:, 0], np.arcsinh((heavy - median) / (last - first) * QUARTILES), rtol=1e-12)
    for other in ({"prepare": KEPT}, {"scale": "none"}, {"prepare": {"clip": 0.01}}):
        prepared = prepare_parties(vfl.Job(model="logistic", test_fraction=0, **other), [far])[0]
        assert prepared.X[-1, 0] == (1e6 if "clip" not in str(other) else np.quantile(heavy, 0.99))


EXPECTED_ROUNDS = {
    "support2": (2, 1),
    "default_credit": (3, 2),
    "a9a": (3, 2),
    "breast": (7, 6),
}  # shares of held-out rows
QUICK_TABLES = ("support2", "breast")
KEPT = {"tails": "keep"}  # as scikit-learn's own preparation


def pooled(parties: list[vfl.Party], job: vfl.Job, *, held_out: bool) -> float:
    """Return the AUC of scikit-learn's own preparation and logistic regression on the pooled columns."""
    y, schedule = parties[0].y, job.schedule(parties[0].register)
    assert y is not None
    table = np.hstack([party.X.astype(object) for party in parties])
    names = [column for party in parties for column in party.columns]
    texts = [names.index(column) for party in parties for column in party.categories]
    numbers = [j for j in range(len(names)) if j not in texts]
    fill = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    prepared = make_column_transformer((fill, numbers), (OneHotEncoder(handle_unknown="ignore"), texts))
    model = make_pipeline(prepared, LogisticRegression(max_iter=1000)).fit(table[schedule.train], y[schedule.train])
    rows = schedule.test if held_out else schedule.train
    return float(roc_auc_score(y[rows], model.decision_function(table[rows])))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(table, marks=[*real, *[pytest.mark.slow] * (table not in QUICK_TABLES)])
        for table in EXPECTED_ROUNDS
    ],
)
def test_three_lines_train_as_long_as_guards_let_them(name: str, read_table: Callable[[str], list[vfl.Party]]) -> None:
    (held_out, training), parties = EXPECTED_ROUNDS[name], read_table(name)
    job = vfl.Job(model="logistic", protocol="ckks", test_fraction=0.25, prepare=KEPT)
    run = vfl.simulate(job, parties)
    assert run.job.epochs == held_out
    # breast: 0.9952 over 25 runs, whose outputs are rounded at random, with a deviation of 0.0002; pooled 1
    assert run.metrics["auc"] == pytest.approx(pooled(parties, job, held_out=True), abs=0.007)

    job = vfl.Job(model="logistic", protocol="open", accepts=["columns"], prepare=KEPT)
    assert vfl.simulate(job, parties).metrics["auc"] == pytest.approx(pooled(parties, job, held_out=False), abs=0.005)
    assert settle_job(vfl.Job(model="logistic", protocol="ckks", prepare=KEPT), parties).epochs == training


@pytest.mark.parametrize(
    "test_fraction", [pytest.param(fraction, marks=[*real, pytest.mark.slow]) for fraction in (0.0, 0.25)]
)
def test_a_table_of_few_values_stays_refused_but_for_one_line(
    test_fraction: float, read_table: Callable[[str], list[vfl.Party]]
) -> None:
    parties = read_table("adult")
    job = vfl.Job(model="logistic", protocol="ckks", test_fraction=test_fraction, prepare=KEPT)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("columns",)):
        vfl.simulate(job, parties)
    job = job.model_copy(update={"accepts": ("columns",)})
    expected = pooled(parties, job, held_out=test_fraction > 0)
    assert vfl.simulate(job, parties).metrics["auc"] == pytest.approx(expected, abs=0.005)


def test_one_epoch_more_would_be_refused() -> None:
    parties = vfl.datasets.breast_cancer(3)
    job = vfl.Job(model="logistic", protocol="ckks", test_fraction=0.25)
    run = vfl.simulate(job, parties)
    assert 0 < run.job.epochs < most_epochs(job)
    assert "would be refused" not in vfl.explain(job, parties)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        vfl.simulate(job.model_copy(update={"epochs": run.job.epochs + 1}), parties)
    assert settle_job(job.model_copy(update={"accepts": ("columns",)}), parties).epochs == most_epochs(job)
    assert settle_job(job.model_copy(update={"epochs": 3}), parties).epochs == 3


def test_between_organisations_a_job_names_its_epochs() -> None:
    bank, shop = vfl.datasets.breast_cancer()
    job = vfl.Job(model="logistic", protocol="ckks")
    peers = Peers(active="bank", passives=("shop",), address={"bank": "127.0.0.1:7300", "shop": "127.0.0.1:7301"})
    for what in (lambda: check_role(job, bank, peers), lambda: vfl.explain(job, [shop], others={"bank": 3})):
        with raises_code(ConfigError, "SVFL-JOB-COMBINATION"):
            what()


def test_an_open_job_has_the_most_epochs_without_a_leak() -> None:
    """The bisection finds the same number as a search over all numbers, whether some are refused or none is."""
    parties = random_parties(3, 200)
    job = vfl.Job(model="logistic", protocol="ckks", epochs=1)
    facts = pooled_run_facts(job, parties)
    refused = {
        epochs: any(leak.name == "columns" for leak in leaks(longer(job, epochs), replace(facts.shape, epochs=epochs)))
        for epochs in range(1, 21)
    }
    first_refused = min(epochs for epochs in refused if refused[epochs])
    assert 1 < first_refused < 20
    for longest in range(1, 21):
        allowed = max(epochs for epochs in range(1, longest + 1) if not refused[epochs])
        assert with_allowed_epochs(longer(job, longest), facts).epochs == allowed


def longer(job: vfl.Job, epochs: int) -> vfl.Job:
    return job.model_copy(update={"epochs": epochs})

"""The value of a partner's columns: figures equal scikit-learn's and those of separate runs, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import raises_code
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.data.party import register_of
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.errors import ConfigError, LeakageError
from securevfl.models.metrics import area_under_curve
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.training.comparison import INTERACTIONS, Comparison, compared_jobs, pooled_party
from securevfl.training.local_baseline import local_metrics

sklearn = pytest.importorskip("sklearn.linear_model")
JOB = vfl.Job(model=vfl.Trees(trees=4, depth=2, boosted_score=False))  # small trees, and logistic regression by default


def tables(rows: int = 1600, *, worth: float = 1.0, parties: int = 2) -> list[vfl.Party]:
    """Return tables with a label that depends on three of the bank's nine columns, and to
    a given degree on the others'.
    """
    draw = np.random.default_rng(0)
    blocks = [draw.normal(size=(rows, 9)) for _ in range(parties)]
    sums = [block[:, :3].sum(axis=1) for block in blocks]
    f = sums[0] + worth * sum(sums[1:], np.zeros(rows))
    y = (f + draw.logistic(size=rows) > 0).astype(int)
    names = ["bank", "shop", "telco"]
    ids = np.arange(rows)
    return [vfl.Party(names[k], block, None if k else y, ids=ids) for k, block in enumerate(blocks)]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, dict[str, DisclosureLedger]]:
    """Return the result of a comparison, with the ledgers that have counted it."""
    parties, folder = tables(), tmp_path_factory.mktemp("ledgers")
    ledgers = {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}
    return vfl.compare(JOB, parties, ledgers=ledgers), ledgers


@pytest.fixture(scope="module")
def comparison(counted: tuple[Comparison, dict[str, DisclosureLedger]]) -> Comparison:
    return counted[0]


def test_joint_models_reach_pooled_models_of_scikit_learn(comparison: Comparison) -> None:
    bank, shop = tables()
    schedule = JOB.schedule(register_of([bank, shop]))
    X = np.hstack([bank.X, shop.X])
    model = sklearn.LogisticRegression(C=1e6).fit(X[schedule.train], bank.y[schedule.train])
    expected = area_under_curve(bank.y[schedule.test] == 1, model.decision_function(X[schedule.test]))
    pooled = {row.model: row for row in comparison.pooled}
    assert list(pooled) == ["logistic", "bins", "trees"]
    assert pooled["logistic"].auc == pytest.approx(expected, abs=0.002)
    for row in comparison.rows[3:5]:  # without trees, whose shapes are random
        assert row.auc == pytest.approx(pooled[row.model].auc, abs=0.01)
    assert str(comparison).count("pooled") == 3


def test_tables_with_texts_and_equal_names_are_pooled() -> None:
    draw = np.random.default_rng(1)
    rows, branches = np.arange(300), np.array(["north", "south", "west"])
    city = branches[draw.integers(0, 3, 300)]
    y = np.where(draw.random(300) < np.where(city == "west", 0.8, 0.2), "late", "paid")
    bank = vfl.Party("bank", {"income": draw.normal(size=300), "city": draw.permutation(city)}, y, ids=rows)
    shop = vfl.Party("shop", {"city": city, "dropped": draw.normal(size=300)}, ids=rows)
    job = vfl.Job(model=vfl.Logistic(), prepare=vfl.Preparation(drop=("dropped",)))
    pooled = pooled_party([bank, shop.without(["dropped"])])
    assert pooled.columns == ["income", "city", "shop.city"]
    assert pooled.categories["shop.city"] == shop.categories["city"]
    assert local_metrics(job, pooled)["auc"] > 0.7 > local_metrics(job, bank)["auc"]
    assert bank.columns == ["income", "city"]


FACETS = ("number", "text", "date", "percent", "constant", "special", "bins")


def facet_party(name: str, facets: Sequence[str]) -> vfl.Party:
    """Return a party of 40 rows with columns c0, c1 .. of these kinds."""
    draw, rows, declared = np.random.default_rng([len(name), len(facets)]), np.arange(40), dict[str, Any]()
    frame = dict[str, Any]()
    for k, facet in enumerate(facets):
        column = f"c{k}"
        frame[column] = {
            "text": draw.choice(np.array(["a", "b", name], object), 40),
            "date": (rows * (k + 1) % 31).astype("M8[D]"),
            "percent": np.array([f"{value}%" for value in draw.integers(0, 99, 40)], object),
            "constant": np.full(40, 3.0),
        }.get(facet, draw.normal(size=40))
        declared |= {"special": {column: {"special": ["-9"]}}, "bins": {column: {"bins": [0.5]}}}.get(facet, {})
    return vfl.Party(name, frame, rows % 2 if name == "bank" else None, ids=rows, columns=declared)


def facts(party: vfl.Party, column: str) -> dict[str, Any]:
    """Return all that a party's attributes state about a column."""
    return {
        "values": party.X[:, party.columns.index(column)].tolist(),
        "categories": party.categories.get(column),
        "is date": column in party.dates,
        "is percent": column in party.percents,
        "is constant": column in party.constant,
        "type": party.types.get(column),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shift", range(len(FACETS)))
def test_a_pooled_column_is_what_it_is_at_its_party(shift: int) -> None:
    """Each kind of column shares its name with other kinds at other parties, and each is left out once."""
    turned = [*FACETS[shift:], *FACETS[:shift]]
    parties = [facet_party("bank", FACETS), facet_party("shop", turned), facet_party("telco", turned[::-1])]
    for dropped in ([], [f"c{shift}"]):
        present = [party.without(dropped) if dropped else party for party in parties]
        pooled = pooled_party(present)
        owners = [(party, column) for party in present for column in party.columns]
        assert len(set(pooled.columns)) == len(pooled.columns) == len(owners)
        for name, (party, column) in zip(pooled.columns, owners, strict=True):
            assert name in (column, f"{party.name}.{column}")
            assert facts(pooled, name) == facts(party, column), name
        for party in (pooled, *present):
            stated = {*party.categories, *party.dates, *party.percents, *party.constant, *party.types}
            assert stated <= set(party.columns), party.name


@pytest.mark.long
def test_models_alone_are_those_of_scikit_learn_on_the_same_rows(comparison: Comparison) -> None:
    bank, shop = tables()
    schedule = JOB.schedule(register_of([bank, shop]))
    model = sklearn.LogisticRegression(C=1e6).fit(bank.X[schedule.train], bank.y[schedule.train])
    f = model.decision_function(bank.X[schedule.test])
    alone = next(row for row in comparison.rows if (row.columns, row.model) == ("bank alone", "logistic"))
    assert alone.auc == pytest.approx(area_under_curve(bank.y[schedule.test] == 1, f), abs=0.002)
    assert comparison.held_out == len(schedule.test)


def test_models_together_are_those_of_trainings_by_themselves(comparison: Comparison) -> None:
    run = vfl.simulate(compared_jobs(JOB)["bins"], tables())
    together = next(row for row in comparison.rows if (row.columns, row.model) == ("bank, shop", "bins"))
    assert together.auc == pytest.approx(run.metrics["auc"], abs=0.01)
    # of two trainings, whose sums are rounded at random: of differences with a standard deviation of .0024
    assert together.log_loss == pytest.approx(run.metrics["log_loss"], abs=0.02)


def test_what_the_other_columns_are_worth_is_said(comparison: Comparison) -> None:
    assert [(row.columns, row.model) for row in comparison.rows] == [
        (columns, model) for columns in ("bank alone", "bank, shop") for model in ("logistic", "bins", "trees")
    ]
    assert comparison.gain > 0.05
    assert "rises by" in comparison.conclusion
    none = vfl.compare(JOB, tables(worth=0.0))
    assert none.gain < 2 * none.gain_error
    assert "chance" in none.conclusion


def test_nothing_but_figures_comes_back(comparison: Comparison) -> None:
    for row in comparison.rows:
        assert all(isinstance(value, str | float) for value in astuple(row))
    disclosed = {row.disclosed for row in comparison.rows if row.columns == "bank alone"}
    assert disclosed == {"nothing"}


def test_held_out_labels_do_not_move_a_local_model() -> None:
    """Inverted labels of held-out rows invert the AUC exactly, so nothing was fitted to them."""
    bank, _ = tables()
    test_rows = JOB.schedule(bank.register).test
    turned = np.asarray(bank.y).copy()
    turned[test_rows] = 1 - turned[test_rows]
    other = vfl.Party("bank", bank.X, turned, ids=np.arange(len(bank)))
    for name in ("logistic", "bins"):
        job = compared_jobs(JOB)[name]
        assert local_metrics(job, bank)["auc"] + local_metrics(job, other)["auc"] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.slow
def test_three_parties_are_compared(comparison: Comparison) -> None:
    of_three = vfl.compare(JOB, tables(parties=3))
    assert of_three.rows[-1].columns == "bank, shop, telco"
    assert of_three.gain > comparison.gain - 0.05


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (vfl.Job(model=vfl.Logistic(), protocol="ckks"), "must use secret shares"),
        (vfl.Job(model=vfl.OneVsRest()), "two classes"),
        (vfl.Job(model=vfl.Square()), "two classes"),
        (vfl.Job(model=vfl.Logistic(), test_fraction=0.0), "held-out rows, and this job has none"),
    ],
)
def test_jobs_that_cannot_be_compared_are_refused(job: vfl.Job, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        vfl.compare(job, tables(200))
    assert says in str(refused.value)


def test_ledgers_admit_all_models_before_anything_is_disclosed(tmp_path: Path) -> None:
    """The shop's ledger permits four measurements of 400 rows: two were made, and three more are requested."""
    parties = tables(1600)
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    test_rows = JOB.schedule(register_of(parties)).test
    measured = ScoreLedger(ledgers["shop"].path)
    for _ in range(2):
        measured.record_evaluation("bank", [parties[1].keys[row].tobytes() for row in test_rows])
    seen: list[str] = []
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED", peer="bank", limit=4):
        vfl.compare(JOB, parties, ledgers=ledgers, on_model=seen.append)
    assert not seen
    assert not any(ledger.read().entries for ledger in ledgers.values())


def test_what_was_compared_is_counted_and_cannot_be_scored(
    counted: tuple[Comparison, dict[str, DisclosureLedger]],
) -> None:
    _, ledgers = counted
    assert len({entry.run for entry in ledgers["shop"].read().entries}) == 3
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        vfl.compare(JOB, tables(), ledgers=ledgers)
    opened = JOB.model_copy(update={"protocol": vfl.Protocol(shares=vfl.Shares(open_weights=("shop",)))})
    for job in compared_jobs(opened).values():
        assert (job.protocol.shares.scores, job.protocol.shares.open_weights) == ("none", ())


def test_the_command_prints_the_table_and_writes_a_page(tmp_path: Path) -> None:
    for party in tables(600):
        names = [f"{party.name}{j}" for j in range(party.X.shape[1])] + ["y"] * party.active
        rows = party.X if party.y is None else np.column_stack([party.X, party.y])
        lines = [
            ",".join([f"client of {party.name}", *names]),
            *(f"{k}," + ",".join(map(str, row)) for k, row in enumerate(rows.tolist())),
        ]
        (tmp_path / f"{party.name}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "job.toml").write_text('model = { name = "trees", trees = 4, depth = 2, boosted_score = false }\n')
    words = ["compare", str(tmp_path / "job.toml"), "--html", str(tmp_path / "page.html")]
    for name in ("bank", "shop"):
        words += ["--data", f"{name}={tmp_path / name}.csv", "--id", f"{name}=client of {name}"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for word in ("bank alone", "bank, shop", "logistic", "bins", "trees", "log loss"):
        assert word in done.stdout
        assert word in (tmp_path / "page.html").read_text()
    assert max(map(len, done.stdout.splitlines()[:8])) <= 80
    notices = [line for line in done.stderr.splitlines() if "metrics are of 150 rows" in line]
    assert len(notices) == 1  # one notice in all, not one for each model


@pytest.mark.slow
def test_interactions_are_one_more_joint_model(tmp_path: Path) -> None:
    """The label is the exclusive or of the signs of a column of each party, which trees of one party do not learn."""
    draw, rows = np.random.default_rng(3), 3200
    blocks = [draw.normal(size=(rows, 9)) for _ in range(2)]
    y = (blocks[0][:, 0] > 0) ^ (blocks[1][:, 0] > 0)
    parties = [vfl.Party("bank", blocks[0], y, ids=np.arange(rows)), vfl.Party("shop", blocks[1], ids=np.arange(rows))]
    ledgers = {party.name: DisclosureLedger(tmp_path / f"{party.name}.ledger", party.name) for party in parties}
    result = vfl.compare(JOB, parties, ledgers=ledgers, interactions=True)
    models = [(row.columns, row.model) for row in result.rows]
    assert models[3:] == [("bank, shop", name) for name in ("logistic", "bins", "trees", INTERACTIONS)]
    assert len(models) == 7
    assert [row.model for row in result.pooled] == ["logistic", "bins", "trees"]
    assert result.interactions is not None
    assert result.interactions.gain == pytest.approx(result.rows[-1].auc - result.rows[-2].auc)
    assert result.interactions.gain > 0.2
    assert result.interactions.is_certain
    assert "Interactions" in str(result)
    assert result.plain()["interactions"]["is_certain"]
    assert len({entry.run for entry in ledgers["shop"].read().entries}) == 4


def test_pairs_of_the_job_are_those_of_one_model() -> None:
    for model in (vfl.Trees(trees=4, pairs=3), vfl.Logistic(pairs=3)):
        jobs = compared_jobs(vfl.Job(model=model, test_fraction=0.25))
        assert [compared.model.pairs for compared in jobs.values()] == [0, 0, 0, 3]
    jobs = compared_jobs(JOB, interactions=True)
    assert jobs[INTERACTIONS].model == JOB.model.model_copy(update={"pairs": 16})
    assert INTERACTIONS not in compared_jobs(JOB)


def test_interactions_that_cannot_be_compared_are_refused_first() -> None:
    seen: list[str] = []
    hinge = vfl.Job(model=vfl.Trees(loss="smooth_hinge"), test_fraction=0.25)
    for job, parties in ((JOB, tables(200, parties=3)), (hinge, tables(200))):
        with raises_code(ConfigError, "SVFL-JOB-UNSUPPORTED"):
            vfl.compare(job, parties, interactions=True, on_model=seen.append)
    assert not seen


def test_compared_jobs_do_not_depend_on_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    job = vfl.Job(model=vfl.Logistic(), test_fraction=0.25)
    expected = {name: compared.digest for name, compared in compared_jobs(job).items()}
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert {name: compared.digest for name, compared in compared_jobs(job).items()} == expected

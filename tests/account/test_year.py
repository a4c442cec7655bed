"""The forecast of a year's disclosures equals the ledgers after all trainings of the year."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.consent.settle_job import settle_job
from securevfl.disclosure.ledger import DisclosureLedger, total_of, total_to
from securevfl.disclosure.limits import DISCLOSURE_KINDS, Limit
from securevfl.families.run_facts import pooled_run_facts
from securevfl.protocols.score_ledger.score_limits import SCORE_BIT_BUDGET
from securevfl.training.year_forecast import YearForecast, YearPlan, forecast_year
from tests.builders import raises_code, random_parties, write_tables

ROWS, CHANGED = 240, 12
PLAN = YearPlan(compares=False, searched=0)
JOB = vfl.Job(model="logistic", epochs=1, test_fraction=0.3, accepts=["small_metrics", "scores"])


def _month(first: int) -> list[vfl.Party]:
    """Return the tables of a month: `ROWS` customers, of whom the first ones have left."""
    parties = random_parties(rows=ROWS + 12 * CHANGED, ids=True)
    return [party.take(np.arange(first, first + ROWS)) for party in parties]


def _ledgers(folder: Path, parties: list[vfl.Party]) -> dict[str, DisclosureLedger]:
    return {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}


def _of(forecast: YearForecast, party: str) -> dict[tuple[str, str], tuple[int, float]]:
    """Return the count and the share of each kind of disclosure to each receiver."""
    (year,) = (item for item in forecast.parties if item.party == party)
    return {(total.kind, total.learner): (total.count, total.share) for total in year.totals}


@pytest.mark.parametrize("months", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_monthly_trainings_count_as_forecast(months: int, tmp_path: Path) -> None:
    """Trainings on the same rows, and on rows that change by a twentieth each month; a whole year in `make soak`."""
    forecast = forecast_year(JOB, _month(0), plan=YearPlan(months, compares=False, searched=0))
    for changed in (0, CHANGED):
        ledgers = _ledgers(tmp_path / str(changed), _month(0))
        for month in range(months):
            vfl.simulate(JOB, _month(changed * month), ledgers=ledgers)
        for party in _month(changed * (months - 1)):
            entries = ledgers[party.name].counted_for(party.register)
            totals = {
                (kind, learner): total_to(entries, kind, learner)
                for kind, learner in _of(forecast, party.name)
                if learner != "all peers"
            }
            counts = {key: (total.count, pytest.approx(total.share)) for key, total in totals.items()}
            expected = {key: count for key, count in _of(forecast, party.name).items() if key[1] != "all peers"}
            if changed:
                for key, (count, share) in expected.items():
                    assert totals[key].count <= count
                    assert totals[key].share <= 1.5 * share  # bits about earlier rows are charged to the shared rows
                assert total_of(entries, "columns").share > 0 or party.name == "bank"
            else:
                assert counts == expected, party.name


def test_the_forecast_names_the_month_in_which_a_limit_refuses(tmp_path: Path) -> None:
    parties, one_month = _month(0), forecast_year(JOB, _month(0), plan=YearPlan(1, compares=False, searched=0))
    ledgers = _ledgers(tmp_path, parties)
    kind, share = next(
        (kind, share) for (kind, learner), (_, share) in _of(one_month, "shop").items() if learner == "bank" and share
    )
    assert kind in DISCLOSURE_KINDS
    ledgers["shop"].set_limit(kind, Limit(2 * share + 1e-6, share=True))
    forecast = forecast_year(JOB, parties, plan=PLAN, ledgers=ledgers)
    (shop,) = (item for item in forecast.parties if item.party == "shop")
    assert [when for when, reason in shop.refusals if f"the limit {kind}" in reason] == ["the training of month 3"]
    for _ in range(2):
        vfl.simulate(JOB, parties, ledgers=ledgers)
    with raises_code(vfl.errors.LeakageError, "SVFL-LIMIT-REACHED"):
        vfl.simulate(JOB, parties, ledgers=ledgers)
    again = forecast_year(JOB, parties, plan=PLAN, ledgers=ledgers)
    (shop,) = (item for item in again.parties if item.party == "shop")
    assert [when for when, reason in shop.refusals if f"the limit {kind}" in reason] == ["the training of month 1"]


def test_the_limit_on_measured_rows_is_forecast(tmp_path: Path) -> None:
    """480 held-out rows may be measured four times, so that the ledger refuses the fifth training."""
    parties = random_parties(rows=1600, columns=9, ids=True)
    job = vfl.Job(model="logistic", epochs=1, test_fraction=0.3, accepts=["scores"])
    (shop,) = (year for year in forecast_year(job, parties, plan=PLAN).parties if year.party == "shop")
    reason = "480 rows may be used for at most 4 evaluations over all runs, and this is 5"
    assert ("the training of month 5", reason) in shop.refusals
    ledgers = _ledgers(tmp_path, parties)
    for _ in range(4):
        vfl.simulate(job, parties, ledgers=ledgers)
    with raises_code(vfl.errors.LeakageError, "SVFL-LIMIT-REACHED"):
        vfl.simulate(job, parties, ledgers=ledgers)


def test_the_command_prints_a_year(tmp_path: Path) -> None:
    files = write_tables(tmp_path, _month(0))
    (tmp_path / "job.toml").write_text('test_fraction = 0.3\nmodel = "logistic"\nepochs = 2\n')
    words = ["explain", str(tmp_path / "job.toml"), "--year", "--scores", "1200", "--searched", "2"]
    done = CliRunner().invoke(app, [*words, *(f"--data={name}={path}" for name, path in files.items())])
    assert done.exit_code == 0, done.output
    assert "12 monthly trainings, one comparison, one search of 2 trainings, 1,200 scores" in done.stdout
    assert "bits about them" in done.stdout


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_scores_of_every_output_count_in_a_year(classes: int) -> None:
    """A score of k bits for each of c outputs discloses c * k bits."""
    parties = random_parties(rows=ROWS, labels=classes, ids=True)
    model = "logistic" if classes == 2 else "one_vs_rest"
    job = settle_job(vfl.Job(model=model, epochs=1, test_fraction=0.3, accepts=["small_metrics", "scores"]), parties)
    shape = pooled_run_facts(job, parties).shape

    def bits(scores: int) -> int:
        plan = YearPlan(compares=False, searched=0, scores=scores)
        (shop,) = (year for year in forecast_year(job, parties, plan=plan).parties if year.party == "shop")
        return shop.bits

    assert shape.outputs == (1 if classes == 2 else classes)
    assert bits(1200) - bits(0) == 1200 * job.family.score_bits(job, shape) * shape.outputs > 0


@pytest.mark.parametrize(("trainings", "scores"), [(1, 7), (5, 3), (7, 100), (12, 1205)])
def test_every_score_of_a_year_counts(trainings: int, scores: int) -> None:
    """The scores are divided over the months without a remainder."""
    parties = _month(0)
    bits = []
    for number in (0, scores):
        plan = YearPlan(trainings, compares=False, searched=0, scores=number)
        (shop,) = (year for year in forecast_year(JOB, parties, plan=plan).parties if year.party == "shop")
        bits.append(shop.bits)
    assert bits[1] - bits[0] == scores * JOB.family.score_bits(JOB, pooled_run_facts(JOB, parties).shape) > 0


@pytest.mark.parametrize(("trainings", "scores"), [(1, 10), (3, 300), (4, 300), (12, 5), (12, 1200), (24, 1200)])
def test_scores_of_a_row_end_with_its_bits(trainings: int, scores: int) -> None:
    """Only months with scores count, in a plan of any number of trainings."""
    parties = random_parties(rows=ROWS, columns=20, ids=True)
    plan = YearPlan(trainings, compares=False, searched=0, scores=scores)
    (shop,) = (year for year in forecast_year(JOB, parties, plan=plan).parties if year.party == "shop")
    shape = pooled_run_facts(JOB, parties).shape
    allowed = int(shape.information["shop"].bits * SCORE_BIT_BUDGET // JOB.family.score_bits(JOB, shape))
    assert allowed == 3
    months = [
        month for month in range(1, trainings + 1) if scores * month // trainings > scores * (month - 1) // trainings
    ]
    expected = [f"scores of the same row from month {month} on" for month in months[allowed : allowed + 1]]
    assert [when for when, _ in shop.refusals if "same row" in when] == expected

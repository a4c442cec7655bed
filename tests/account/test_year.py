"""The forecast of a year, against the ledgers after the year was really run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.disclosure.ledger import DisclosureLedger, total_of, total_to
from securevfl.disclosure.limits import DISCLOSURE_KINDS, Limit
from securevfl.training.year_forecast import YearForecast, YearPlan, forecast_year
from tests.builders import raises_code, random_parties, write_tables

ROWS, CHANGED = 240, 12
PLAN = YearPlan(compares=False, searched=0)


def _tables(first: int) -> list[vfl.Party]:
    """Return the tables of a month: `ROWS` customers, of whom the first ones have left."""
    parties = random_parties(rows=ROWS + 12 * CHANGED, ids=True)
    return [party.take(np.arange(first, first + ROWS)) for party in parties]


def _job() -> vfl.Job:
    return vfl.Job(model="logistic", epochs=1, test_fraction=0.3, accepts=["small_metrics", "scores"])


def _ledgers(folder: Path, parties: list[vfl.Party]) -> dict[str, DisclosureLedger]:
    return {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}


def _of(forecast: YearForecast, party: str) -> dict[tuple[str, str], int]:
    (year,) = (item for item in forecast.parties if item.party == party)
    return {(total.kind, total.learner): total.count for total in year.totals}


def test_a_year_of_trainings_counts_as_forecast(tmp_path: Path) -> None:
    """Twelve trainings, on the same rows and on rows that change by a twentieth each month."""
    forecast = forecast_year(_job(), _tables(0), plan=PLAN)
    for changed in (0, CHANGED):
        ledgers = _ledgers(tmp_path / str(changed), _tables(0))
        for month in range(12):
            vfl.simulate(_job(), _tables(changed * month), ledgers=ledgers)
        for party in _tables(changed * 11):
            entries = ledgers[party.name].counted_for(party.register)
            counts = {
                (kind, learner): total_to(entries, kind, learner).count
                for kind, learner in _of(forecast, party.name)
                if learner != "all peers"
            }
            expected = {key: count for key, count in _of(forecast, party.name).items() if key[1] != "all peers"}
            if changed:
                assert all(counts[key] <= count for key, count in expected.items()), party.name
                assert total_of(entries, "scores").count > 0 or party.name == "bank"
            else:
                assert counts == expected, party.name


def test_the_forecast_names_the_month_in_which_a_limit_refuses(tmp_path: Path) -> None:
    parties, one_month = _tables(0), forecast_year(_job(), _tables(0), plan=YearPlan(1, compares=False, searched=0))
    ledgers = _ledgers(tmp_path, parties)
    kind, count = next(
        (kind, count) for (kind, learner), count in _of(one_month, "shop").items() if learner == "bank" and count
    )
    assert kind in DISCLOSURE_KINDS
    ledgers["shop"].set_limit(kind, Limit(5 * count))
    forecast = forecast_year(_job(), parties, plan=PLAN, ledgers=ledgers)
    (shop,) = (item for item in forecast.parties if item.party == "shop")
    assert [when for when, reason in shop.refusals if f"the limit {kind}" in reason] == ["the training of month 6"]
    for _ in range(5):
        vfl.simulate(_job(), parties, ledgers=ledgers)
    with raises_code(vfl.errors.LeakageError, "SVFL-LIMIT-REACHED"):
        vfl.simulate(_job(), parties, ledgers=ledgers)
    again = forecast_year(_job(), parties, plan=PLAN, ledgers=ledgers)
    (shop,) = (item for item in again.parties if item.party == "shop")
    assert [when for when, reason in shop.refusals if f"the limit {kind}" in reason] == ["the training of month 1"]


def test_the_limit_on_measured_rows_is_forecast(tmp_path: Path) -> None:
    """480 held-out rows may be measured four times, so that the ledger refuses the fifth training."""
    parties = random_parties(rows=1600, ids=True)
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
    files = write_tables(tmp_path, _tables(0))
    (tmp_path / "job.toml").write_text('test_fraction = 0.3\nmodel = "logistic"\nepochs = 2\n')
    words = ["explain", str(tmp_path / "job.toml"), "--year", "--scores", "1200", "--searched", "2"]
    done = CliRunner().invoke(app, [*words, *(f"--data={name}={path}" for name, path in files.items())])
    assert done.exit_code == 0, done.output
    assert "12 monthly trainings, one comparison, one search of 2 trainings, 1,200 scores" in done.stdout
    assert "bits about them" in done.stdout

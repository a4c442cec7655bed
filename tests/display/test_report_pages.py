"""One browser opens reports of every protocol family and every kind of label; each axis and each text is legible."""

from __future__ import annotations

import re
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import labels_for, make_job, parties_of, random_blocks, random_parties

import securevfl as vfl
from securevfl.families import FAMILIES, leak_kinds
from securevfl.training.local_baseline import baseline_figures
from securevfl.training.run_page import write_report
from tests.disclosure.disclosed_jobs import cases
from tests.display.test_browser import BROWSER, SCREENS, faults
from tests.training.test_checkpoint import interrupted

ACCEPTED: dict[str, Any] = {"accepts": [*leak_kinds()], "optimizer": vfl.FedBCD(lr=0.05)}
LABELS: dict[str, tuple[str | int, Any]] = {
    "two classes": (2, "logistic"),
    "ten classes": (10, "softmax"),
    "counts": ("counts", "poisson"),
    "amounts": ("amounts", "gamma"),
    "square loss": ("numbers", "square"),
    "quantile": ("numbers", vfl.Quantile(quantile=0.8)),
}
FAMILY_JOBS = [*(next(iter(kind().example_jobs())) for kind in FAMILIES.values()), "shares, trees", "neural"]
LONG_WORDS = [f"a class with a long name, such as a sentence, number {number}" for number in (0, 1)]


def report_of(path: Path, job: vfl.Job, parties: list[Any], **keys: Any) -> vfl.Run:
    """Train, and write the report with the metrics of the label party alone and with the consent sheet."""
    run = vfl.simulate(job, parties, **keys)
    lead = next(party for party in parties if isinstance(party, vfl.Party) and party.active)
    run.report(path, alone=baseline_figures(run.job, lead), sheet=vfl.explain(job, parties).first_screen)
    return run


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reports")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _write_reports(folder)
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.html"))}


def _write_reports(folder: Path) -> None:
    for name, (kind, model) in LABELS.items():
        job = make_job(model=model, evaluate_every=1, **ACCEPTED)
        report_of(folder / f"{name}.html", job, random_parties(2, 600, labels=kind))
    examples = cases()
    for name in FAMILY_JOBS:
        job, parties = examples[name]
        if isinstance(job.model, vfl.Trees):
            job = job.model_copy(update={"model": job.model.model_copy(update={"boosted_score": False})})
        report_of(folder / f"{name}.html", job, parties)
    blocks, job = random_blocks(2, 600), make_job(**ACCEPTED)
    labels = labels_for(blocks)
    report_of(folder / "rare label.html", job, parties_of(blocks, np.arange(600) % 60 == 0))
    report_of(folder / "tiny table.html", job, random_parties(2, 24))
    words = parties_of(blocks, np.asarray(LONG_WORDS)[labels], names=["bank-" * 12, "shop-" * 12])
    report_of(folder / "long words.html", job, words)
    weights = np.linspace(1, 2, 600)
    weighted = parties_of([np.column_stack([blocks[0], weights]), blocks[1]], labels)
    column = {"column": weighted[0].columns[-1]}
    report_of(folder / "weights.html", make_job(weights=column, **ACCEPTED), weighted)
    often = make_job(batch_size="all", epochs=60, evaluate_every=1, **ACCEPTED)
    report_of(folder / "sixty evaluations.html", often, random_parties(2, 600))
    again = interrupted(make_job(evaluate_every=1, **ACCEPTED), random_parties(2, 600), folder / "checkpoints", 6)
    again.report(folder / "resumed.html")
    never = make_job(test_fraction=0.0, evaluate_every=0, **ACCEPTED)
    run = report_of(folder / "no evaluation.html", never, random_parties(3, 200))
    write_report(folder / "partner alone.html", run.parts["shop"], alone=None, sheet="")
    run.save(folder / "model")
    vfl.Run.load(folder / "model").report(folder / "from files.html")


@pytest.mark.skipif(not BROWSER, reason="needs chromium")
@pytest.mark.parametrize(("colours", "width"), SCREENS)
@pytest.mark.long
def test_every_report_can_be_read(colours: str, width: int, reports: dict[str, str], tmp_path: Path) -> None:
    assert len(reports) == len(LABELS) + len(FAMILY_JOBS) + 9
    assert faults([*reports.values()], colours, tmp_path, [width]) == []


@pytest.mark.long
def test_seconds_of_every_report_add_up(reports: dict[str, str]) -> None:
    for name, page in reports.items():
        if "Model files do not store costs" in page:
            assert name == "from files"
            continue
        table = page[page.index("<th>seconds of</th>") :].partition("</table>")[0]
        rows = [[float(cell) for cell in re.findall(r">([\d.]+)</td>", row)] for row in table.split("<tr>")[1:]]
        *kinds, sums = [row for row in rows if row]
        assert len(kinds) == 4
        assert [sum(column) for column in zip(*kinds, strict=True)] == pytest.approx(sums), name
        assert all(sum(row[:-1]) == pytest.approx(row[-1]) for row in (*kinds, sums)), name


@pytest.mark.long
def test_axes_of_metrics_span_four_standard_errors(tmp_path: Path) -> None:
    """An AUC that hardly moves fills a small part of its chart."""
    job = make_job(batch_size="all", epochs=40, evaluate_every=1, **ACCEPTED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = report_of(tmp_path / "run.html", job, random_parties(2, 600))
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    chart = next(part for part in page.split("<figure>") if part.startswith("<figcaption>AUC on"))
    labels = [float(label) for label in re.findall(r'class="tick-y"[^>]*>([\d.]+)<', chart)]
    assert len(labels) >= 2
    assert all(low < high for low, high in pairwise(labels))
    assert labels[-1] - labels[0] >= 4 * run.metric_std_errors["auc"] - 1e-9


@pytest.mark.long
def test_reports_state_the_prediction_and_every_output(reports: dict[str, str]) -> None:
    titles = {"ten classes": "10 classes", "counts": "a count", "amounts": "an amount", "square loss": "a number"}
    for name, title in titles.items():
        assert f"<h1>Prediction of {title} by bank with shop</h1>" in reports[name]
    assert "nothing about any row" in reports["shares"]
    for name, page in reports.items():
        assert ("Model files do not store what a run disclosed" in page) == (name == "from files")
        assert page.count("<details>") >= 3, name

"""A run as a page, a notebook cell and a picture: its figures are the run's, and it needs nothing else."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from builders import raises_code

import securevfl as vfl
from securevfl.display import html
from securevfl.display.svg import SERIES_COLOURS
from securevfl.errors import DataError
from securevfl.runtime.costs import Stage
from securevfl.training.run_charts import curve, lifts, roc
from securevfl.training.run_page import write_report


@pytest.fixture(scope="module")
def three_parties() -> list[vfl.Party]:
    return vfl.datasets.breast_cancer(parties=3)


@pytest.fixture(scope="module")
def run(three_parties: list[vfl.Party]) -> vfl.Run:
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        epochs=2,
        test_fraction=0.25,
        evaluate_every=1,
        accepts=["columns"],
    )
    return vfl.simulate(job, three_parties)


def test_the_page_has_the_figures_of_the_run(run: vfl.Run, tmp_path: Path) -> None:
    run.report(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    for name, value in run.metrics.items():
        cell = f">{html.with_error(value, run.metric_std_errors[name])}</td>"
        assert page.count(cell) == (name != "error"), name  # no metric appears twice: loss is log_loss here
    assert "The number after ± is the standard error" in page
    assert run.job.digest.hex()[:16] in page
    assert f"{run.costs.bytes:,}" in page
    for word in ("bank", "shop", "telco", "ResidualCiphertext", "encrypt", "pairwise/ckks", "columns", "held-out rows"):
        assert word in page
    assert page.count("<svg") == 9  # AUC; lift, calibration, ROC; loss and AUC by round and second; costs
    for output in run.active.outputs_of_run:
        assert f'<td data-head="Learns">{output.name}' in page
        assert f'<td data-head="Values">{output.amount}</td>' in page
    figure = r'<td class="figure">(%s)</td>'
    rows = re.findall(rf"<tr>{figure % '[^<]+'}{figure % '[^<]+'}{figure % '[0-9]+'}</tr>", page)
    assert len(rows) == len(run.calibration)
    rows = [int(row[2]) for row in rows]
    assert sum(rows) == run.active.held_out


def test_the_page_compares_one_party_with_all_and_has_the_sheet(run: vfl.Run, tmp_path: Path) -> None:
    alone = run.metrics | {"auc": 0.5432}
    run.report(tmp_path / "run.html", alone=alone, sheet="bank learns a < b")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    heads = page.index("bank alone</th>")
    with_error = html.with_error(run.metrics["auc"], run.metric_std_errors["auc"])
    figures = page.index(f'0.5432</td><td class="figure">{with_error}</td>')
    assert heads < figures < page.index("How the scores perform") < page.index("<pre>bank learns a &lt; b</pre>")
    assert f"rises from 0.5432 to {html.cell_text(run.metrics['auc'])}, a gain of " in page
    part = run.parts["shop"]
    write_report(tmp_path / "shop.html", part, alone=None, sheet="sheet of shop")
    shop_page = (tmp_path / "shop.html").read_text(encoding="utf-8")
    assert "sheet of shop" in shop_page
    assert "How good the model is" not in shop_page
    assert f"{sum(part.counters.bytes_sent(stage) for stage in (Stage.OFFLINE, Stage.TRAIN)):,}" in shop_page


def test_lift_is_that_of_the_rows_with_the_highest_scores() -> None:
    tenths = [[0.1, 0.0, 50.0], [0.4, 0.2, 50.0], [0.9, 0.8, 100.0]]  # 90 positives of 200
    assert lifts(tenths) == [(0.5, pytest.approx(80 / 90 / 0.5)), (0.75, pytest.approx(90 / 90 / 0.75)), (1.0, 1.0)]


def test_the_page_needs_no_other_file_and_runs_nothing(run: vfl.Run, tmp_path: Path) -> None:
    run.report(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert not re.search(r"<script|\ssrc=|href=|url\(|@import|https?:", page)
    assert page.count("<section") == page.count("</section>") > 5


def test_a_run_from_files_has_a_page_without_costs(run: vfl.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "model")
    vfl.Run.load(tmp_path / "model").report(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "Model files do not store costs" in page
    assert "Model files do not store what a run disclosed" in page
    assert f"{html.with_error(run.metrics['auc'], run.metric_std_errors['auc'])}</td>" in page


def test_notebooks_show_jobs_runs_costs_and_sheets(run: vfl.Run, three_parties: list[vfl.Party]) -> None:
    assert run.job.digest.hex()[:16] in run.job._repr_html_()
    assert "<th>optimizer.lr</th><td>0.1</td>" in run.job._repr_html_()
    assert f"{html.with_error(run.metrics['auc'], run.metric_std_errors['auc'])}</td>" in run._repr_html_()
    assert "<svg" in run._repr_html_()
    assert f"{run.costs.bytes:,}" in run.costs._repr_html_()
    sheet = vfl.explain(run.job, three_parties)
    assert isinstance(sheet, str)
    assert "bank (active, holds the labels)" in sheet._repr_html_()
    assert repr(sheet) == sheet.first_screen  # an interpreter prints it with its line breaks


def test_the_picture_has_the_run(run: vfl.Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = run.plot()
    by_round, main, split = figure.axes
    assert [by_round.get_xlabel(), main.get_xlabel()] == ["round", "round"]
    assert [by_round.get_ylabel(), main.get_ylabel(), split.get_ylabel()] == ["loss", "AUC", "seconds"]
    drawn = [tuple(map(float, point)) for point in by_round.get_lines()[0].get_xydata()]
    assert drawn == curve(run.history, "round", "batch_loss")
    heights = [bar.get_height() for bar in split.patches]
    assert sum(heights) == pytest.approx(run.costs.total)
    (line,) = main.get_lines()
    assert [tuple(map(float, point)) for point in line.get_xydata()] == curve(run.history, "round", "auc")
    low, high = main.get_ylim()
    assert high - low >= 4 * run.metric_std_errors["auc"] - 1e-12
    figure.savefig(tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_progress_of_a_simulation_is_told_to_the_caller_as_well(three_parties: list[vfl.Party]) -> None:
    heard: list[tuple[int, int]] = []
    job = vfl.Job(
        model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=0.1), protocol=vfl.Protocol(residual="open"), epochs=1,
        accepts=["columns"],
    )  # fmt: skip
    vfl.simulate(job, three_parties, progress=True, on_round=lambda done, of: heard.append((done, of)))
    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_the_page_states_rows_class_weights_and_calibration(run: vfl.Run, tmp_path: Path) -> None:
    run.report(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert f"Positive class: {run.positive}." in page
    assert run.active.trained + run.active.held_out == 569
    assert f"{run.active.held_out} held-out rows; trained on {run.active.trained} rows." in page
    for part in run.parts.values():
        assert f"<td>{len(part.columns)}</td><td>{len(part.features)}</td>" in page.replace(' class="figure"', "")
        name, (weight,) = next(iter(part.coefficients().items()))
        assert f"{weight:.4g}" in page
        assert name in page
    tenths = [[float(value) for value in row] for row in run.calibration]
    points = roc(tenths)
    assert (points[0], points[-1]) == ((0.0, 0.0), pytest.approx((1.0, 1.0)))
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    assert area == pytest.approx(run.metrics["auc"], abs=0.05)


def test_what_files_do_not_keep_is_not_shown_as_measured(run: vfl.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "model")
    again = vfl.Run.load(tmp_path / "model")
    assert run.costs.measured
    assert not again.costs.measured
    last = again.costs.table().splitlines()[-1]
    assert "0.000" not in last
    assert last.split()[-6:] == ["-"] * 6
    assert again.costs.row()["bytes"] is None
    assert (again.active.trained, again.active.held_out) == (run.active.trained, run.active.held_out)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "securevfl.part/9", "x": 1}', "unsupported model file schema securevfl.part/9"),
        ('{"schema": "secret words", "x": 1}', "schema of another program"),
        ('{"schema": "securevfl.part/5", "na', "is damaged, incomplete or was changed by hand"),
        ('{"schema": "securevfl.part/4"}', "unsupported model file schema securevfl.part/4"),
        ("[1]", "schema of another program"),
    ],
)
def test_each_kind_of_bad_model_file_is_named(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "bank.json").write_text(text)
    with raises_code(DataError, "SVFL-MODEL-FILE") as refused:
        vfl.Run.load(tmp_path)
    assert says in str(refused.value)


def test_a_notebook_shows_the_picture_in_the_colours_of_the_page(run: vfl.Run) -> None:
    pytest.importorskip("matplotlib")
    figure = run.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    colours = [bar.get_facecolor()[:3] for bar in figure.axes[2].patches]
    kinds = [pytest.approx([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for colour in SERIES_COLOURS[:4]]
    # one bar for each phase, with a part for each kind of work
    assert colours == [colour for colour in kinds for _ in range(3)]


def test_a_picture_without_evaluations_has_the_calibration() -> None:
    pytest.importorskip("matplotlib")
    job = vfl.Job(model="logistic", protocol="open", epochs=4, evaluate_every=0, accepts=["columns", "rank"])
    run = vfl.simulate(job, vfl.datasets.loans(800))
    _, second, split = run.plot().axes
    exact, model = second.get_lines()
    assert [tuple(point) for point in model.get_xydata()] == [(row[0], row[1]) for row in run.calibration]
    assert (exact.get_xdata() == exact.get_ydata()).all()
    legend, axes = split.get_legend().get_window_extent(), split.get_window_extent()
    assert legend.y1 <= axes.y0 + 1  # the legend covers no bar

"""Every figure of two classes is about the positive class, whatever its label and its name are."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from builders import raises_code, write_table
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.credit.fairness_by_group import local_group_rates, simulate_group_rates
from securevfl.errors import ClassError, LabelError
from securevfl.models import metrics, pair_metrics
from securevfl.models.group_metrics import metrics_by_group
from securevfl.models.losses import LOSSES

N = 900
DRAW = np.random.default_rng(3)
POSITIVE = DRAW.random(N) < 0.3
F = (2 * POSITIVE - 1 + DRAW.normal(size=N))[:, None]
GROUPS = np.repeat(["east", "west"], [500, 400])

Figures = Callable[[Any, Any, Any], Any]
FIGURES: dict[str, Figures] = {
    "metrics": lambda loss, y, classes: metrics.evaluate(loss, F, y, classes),
    "by group": lambda loss, y, classes: metrics_by_group(loss, F, y, classes, GROUPS),
    "of levels": lambda loss, y, classes: pair_metrics.class_metrics(loss, F, (y == classes[1])[:, None], classes),
}


@pytest.mark.parametrize("loss", ["logistic", "smooth_hinge"])
@pytest.mark.parametrize("figures", FIGURES)
def test_figures_describe_the_second_class_whatever_its_name(figures: str, loss: str) -> None:
    def output(first: Any, second: Any) -> Any:
        classes = np.array([first, second])
        return FIGURES[figures](LOSSES[loss], np.where(POSITIVE, classes[1], classes[0]), classes)

    usual = output(0, 1)
    for first, second in ((1, 0), ("a", "z"), ("z", "a"), (-1.0, 7.0), (7.0, -1.0)):
        np.testing.assert_equal(output(first, second), usual)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "between two"])
def test_rates_of_groups_are_those_of_the_class_that_is_named(alone: bool) -> None:
    """Counts of the named class complement those of the other one, and so do the false positives."""
    y, predicted = POSITIVE.astype(int), (F[:, 0] > 0).astype(int)
    bank = vfl.Party("bank", F, y, ids=range(N))
    shop = vfl.Party("shop", F, ids=range(N))
    count = (
        partial(local_group_rates, bank, predicted, GROUPS)
        if alone
        else partial(simulate_group_rates, bank, predicted, shop, GROUPS)
    )
    near = 1e-12 if alone else 0.3  # counts of 100 rows and more, rounded to 8: six deviations
    usual, named, other = (count(**keys) for keys in ({}, {"positive": "1"}, {"positive": "0"}))
    for group in usual:
        of = {
            kind: np.array(list(rates[group].values())[1:])
            for kind, rates in zip("uno", (usual, named, other), strict=True)
        }
        np.testing.assert_allclose(of["n"], of["u"], atol=near)
        rate, selected, hit, false = of["n"]
        np.testing.assert_allclose(of["o"], [1 - rate, 1 - selected, 1 - false, 1 - hit], atol=near)
    with raises_code(ClassError, "SVFL-LABEL-CLASSES"):
        count(positive="yes")


NAMED: list[tuple[tuple[Any, Any], Callable[[Any], Any]]] = [
    ((0, 1), lambda predicted: predicted.astype(float)),
    ((0, 1), lambda predicted: predicted.astype(float).astype(str)),
    ((0.0, 1.0), lambda predicted: predicted.astype(str)),
    ((False, True), lambda predicted: predicted.astype(bool)),
    (("006", "007"), lambda predicted: np.where(predicted == 1, "007", "006")),
    (("6", "007"), lambda predicted: np.where(predicted == 1, "007", "6.0")),
]


@pytest.mark.parametrize(("labels", "write"), NAMED)
def test_rates_of_groups_know_each_form_of_a_predicted_class(labels: Any, write: Callable[[Any], Any]) -> None:
    y, predicted = POSITIVE.astype(int), (F[:, 0] > 0).astype(int)
    usual = local_group_rates(vfl.Party("bank", F, y, ids=range(N)), predicted, GROUPS)
    bank = vfl.Party("bank", F, np.array(labels)[y], ids=range(N))
    assert local_group_rates(bank, write(predicted), GROUPS) == usual
    assert usual["east"]["selected"] > 0.2


@pytest.mark.parametrize("predicted", [F[:, 0] > 0, F[:, 0], np.where(F[:, 0] > 0, "yes", "no")])
def test_rates_of_groups_refuse_predictions_of_other_classes(predicted: Any) -> None:
    with raises_code(LabelError, "SVFL-LABEL-CLASSES"):
        local_group_rates(vfl.Party("bank", F, POSITIVE.astype(int), ids=range(N)), predicted, GROUPS)


COMMANDS = {
    "describe": ([], lambda output: (output["positive"]["class"], output["columns"][0]["auc"])),
    "bins": (["--column", "a"], lambda output: (output["positive"], output["bins"][0]["rate"])),
    "fairness": (
        ["--party", "bank", "--predictions", "predicted.csv", "--group", "a"],
        lambda output: (output["positive"], next(iter(output["groups"].values()))["rate"]),
    ),
}
"""Every command that reads labels without a job, and how to read its positive class and one of its figures. If the
other class is the positive one, the figure p becomes 1 - p."""


@pytest.fixture
def labelled_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    ids = [f"k{row}" for row in range(400)]
    ranks = np.round(F[:400, 0])
    write_table(tmp_path / "b.csv", {"id": ids, "a": ranks % 2, "b": ranks, "y": np.where(POSITIVE[:400], "m", "n")})
    write_table(tmp_path / "predicted.csv", {"id": ids, "prediction": np.where(F[:400, 0] > 0, "m", "n")})
    return ["--data", "b.csv"]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_without_a_job_know_the_positive_class(command: str, labelled_table: list[str]) -> None:
    words, read = COMMANDS[command]

    def output(*more: str) -> tuple[str, float]:
        done = CliRunner().invoke(app, [command, *labelled_table, *words, "--json", "found.json", *more])
        assert done.exit_code == 0, done.output
        return read(json.loads(Path("found.json").read_text()))

    usual, rare, common = output(), output("--positive", "m"), output("--positive", "n")
    assert usual == rare
    assert (rare[0], common[0]) == ("m", "n")
    assert common[1] == pytest.approx(1 - rare[1])
    assert common[1] != pytest.approx(0.5)
    for more in (["--positive", "z"], ["--positive", "m", "--label", "b"]):  # an unknown class, and many classes
        done = CliRunner().invoke(app, [command, *labelled_table, *words, *more])
        assert (done.exit_code, "SVFL-LABEL-CLASSES" in done.output) == (2, True), done.output


def test_every_command_with_labels_and_without_a_job_is_tried() -> None:
    group: Any = typer.main.get_command(app)
    parameters = {name: group.get_command(None, name).params for name in group.list_commands(None)}
    names = {name: {parameter.name for parameter in parameters[name]} for name in parameters}
    with_labels = {name for name in names if "label_column" in names[name] and "job_file" not in names[name]}
    assert with_labels - {"correlate"} == set(COMMANDS)  # which leaves the labels out

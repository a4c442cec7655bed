"""Uses of a party's model part: Shapley values, reason codes, an ONNX graph."""

from __future__ import annotations

import csv
import io
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import raises_code
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.credit.explanations import importance, reasons, shapley
from securevfl.credit.onnx_export import to_onnx
from securevfl.disclosure.information_content import code_bits
from securevfl.errors import ConfigError

N = 400
DRAW = np.random.default_rng(2)
OWN, OTHER = DRAW.normal(size=(N, 3)), DRAW.normal(size=(N, 3))
OTHER[DRAW.random(N) < 0.1, 1] = np.nan
OTHER[:3, 2] *= 1e4
Y = (OWN[:, 0] + OTHER[:, 0] + DRAW.normal(size=N) > 0).astype(int)


def train(model: Any = None, **keys: Any) -> vfl.Run:
    options: dict[str, Any] = {"model": model or vfl.Logistic(), "protocol": "open", "batch_size": "all", "epochs": 6}
    options["accepts"] = ["columns", "rank", "label_auc", "fresh_equations"]
    parties = [
        vfl.Party("bank", OWN, Y, ids=range(N)),
        vfl.Party("shop", OTHER, ids=range(N), columns=["c", "gaps", "far"]),
    ]
    return vfl.simulate(vfl.Job(**(options | keys)), parties)


@pytest.mark.parametrize("prepare", [{}, {"bins": 4}, {"woe": {"bins": 4, "rows": 30}}], ids=str)
@pytest.mark.parametrize("kind", ["open", "ckks"])
def test_values_of_all_parties_sum_to_f_less_its_mean(prepare: dict[str, Any], kind: str) -> None:
    run = train(prepare=prepare, protocol=kind)
    f = run.decision({"bank": OWN, "shop": OTHER})
    total = sum(shapley(run.parts[name], X).sum(axis=1) for name, X in (("bank", OWN), ("shop", OTHER)))
    np.testing.assert_allclose(total, f - f.mean(axis=0), atol=1e-9)


def test_values_are_the_mean_over_all_orders_of_columns() -> None:
    """Compute Shapley values slowly: the increments of a column in all orders, with other columns at training means."""
    run = train(prepare={"tails": "keep", "missing": "indicator"})
    part = run.parts["bank"]
    row, mean = OWN[0], OWN.mean(axis=0)

    def f(known: tuple[int, ...]) -> float:
        x = np.array([row[j] if j in known else mean[j] for j in range(3)])
        return float((part.rows(x[None]) @ part.theta[:3])[0, 0])

    orders = list(permutations(range(3)))
    slow = [
        np.mean([f(order[: order.index(j) + 1]) - f(order[: order.index(j)]) for order in orders]) for j in range(3)
    ]
    np.testing.assert_allclose(shapley(part, OWN[:1])[0, :, 0], slow, atol=1e-9)


def test_codes_name_the_columns_that_raise_the_score_most() -> None:
    part = train().parts["shop"]
    values, codes = shapley(part, OTHER)[:, :, 0], {"c": "R01", "gaps": "R02"}
    for row, names in enumerate(reasons(part, OTHER, most=2, codes=codes)):
        ranked = [j for j in np.argsort(-values[row], kind="stable") if values[row, j] > 0][:2]
        assert names == [["R01", "R02", "far"][j] for j in ranked]
    assert code_bits(10, 3) == pytest.approx(np.log2(10 * 9 * 8))
    assert code_bits(2, 5) == 1
    sizes = {name: float(np.mean([abs(value) for value in values[:, j]])) for j, name in enumerate(part.columns)}
    assert importance(part, OTHER) == pytest.approx(sizes)
    assert list(importance(part, OTHER)) == sorted(sizes, key=lambda name: -sizes[name])
    with raises_code(ConfigError, "SVFL-TABLE-COLUMNS", columns=("z",)):
        reasons(part, OTHER, codes={"z": "R09"})


@pytest.mark.parametrize(
    "keys",
    [{}, {"prepare": {"bins": 4}}, {"prepare": {"woe": {"bins": 4, "rows": 30}}}, {"prepare": {"clip": 0.05}},
     {"model": vfl.Softmax()}, {"scale": "robust"}],
    ids=str,
)  # fmt: skip
def test_the_graph_says_what_the_part_says(keys: dict[str, Any]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    run = train(**keys)
    new = {"bank": DRAW.normal(size=(50, 3)), "shop": OTHER[100:150]}
    total = 0.0
    for name, X in new.items():
        session = runtime.InferenceSession(to_onnx(run.parts[name]), providers=["CPUExecutionProvider"])
        total = total + session.run(["part"], {"X": np.asarray(X, np.float64)})[0]
    np.testing.assert_allclose(total, run.decision(new), atol=1e-5)


def test_what_a_party_does_not_know_is_not_exported() -> None:
    pytest.importorskip("onnx")
    shares = {"optimizer": vfl.BlockDescent(), "epochs": 12}
    hidden = train(protocol=vfl.Protocol(shares=vfl.Shares()), **shares)
    for export in (to_onnx, lambda part: shapley(part, OTHER)):
        with raises_code(ConfigError, "SVFL-MODEL-NO-WEIGHTS"):
            export(hidden.parts["shop"])
    opened = train(protocol=vfl.Protocol(shares=vfl.Shares(open_weights=("shop",))), **shares)
    assert to_onnx(opened.parts["shop"])
    with raises_code(ConfigError, "SVFL-MODEL-NO-WEIGHTS"):
        to_onnx(opened.parts["bank"])


def test_the_commands(tmp_path: Path) -> None:
    run = train()
    run.save(tmp_path)
    with (tmp_path / "new.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "c", "gaps", "far"])
        lines.writerows([k, *("" if np.isnan(value) else value for value in row)] for k, row in enumerate(OTHER[:20]))
    (tmp_path / "codes.json").write_text(json.dumps({"c": "R01"}))
    model, out = str(tmp_path / "shop.json"), tmp_path / "reasons.csv"
    words = ["reasons", model, "--data", str(tmp_path / "new.csv"), "--codes", str(tmp_path / "codes.json")]
    result = CliRunner().invoke(app, [*words, "--csv", str(out), "--top", "2"])
    assert result.exit_code == 0, result.output
    assert "up to 2.6 bits" in result.output
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    expected = reasons(run.parts["shop"], OTHER[:20], most=2, codes={"c": "R01"})
    assert [[row["reason 1"], row["reason 2"]] for row in rows] == [[*codes, "", ""][:2] for codes in expected]
    graph = tmp_path / "shop.onnx"
    pytest.importorskip("onnx")
    assert CliRunner().invoke(app, ["export", model, "--out", str(graph)]).exit_code == 0
    assert graph.read_bytes() == to_onnx(run.parts["shop"])

"""Wide & Deep and DSSM networks: codes and the embedding of unknown codes, derivatives, and training."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from builders import raises_code  # noqa: E402

import securevfl as vfl  # noqa: E402
from securevfl.errors import ConfigError  # noqa: E402
from securevfl.models import torch_block  # noqa: E402
from securevfl.models.torch_block import TorchBlock  # noqa: E402
from securevfl.models.torch_top import TorchTop  # noqa: E402

clicks = pytest.importorskip("benchmarks.papers.clicks", reason="not in a checkout").clicks

torch.set_num_threads(1)
REAL = Path(__file__).parents[3] / "shared" / "data"
FIELDS = vfl.towers.Fields((0, 3), {1: 4, 2: 6})
SMALL_TOWER = {"size": 3, "hidden": (5,)}
GENERATOR = np.random.default_rng(0)
TOWER_ROWS = np.column_stack(
    [GENERATOR.normal(size=9), GENERATOR.integers(0, 4, 9), GENERATOR.integers(0, 6, 9), GENERATOR.normal(size=9)]
)
MODULES = {
    "wide and deep": lambda: vfl.towers.WideDeep(FIELDS, 2, **SMALL_TOWER).double(),
    "dssm": lambda: vfl.towers.Dssm(FIELDS, 2, **SMALL_TOWER).double(),
}
TOPS = {
    "wide and deep": lambda passives: vfl.towers.WideDeepTop(
        FIELDS, 2, passives=passives, top=(4,), **SMALL_TOWER
    ).double(),
    "dssm": lambda passives: vfl.towers.DssmTop(FIELDS, 2, passives=passives, **SMALL_TOWER).double(),
}


@pytest.mark.parametrize("name", MODULES)
def test_derivatives_are_those_of_differences(name: str) -> None:
    part = TorchBlock("shop", vfl.TorchModel(MODULES[name]), 4, 2, l2=0.0)
    part.theta = part.theta + 0.3 * np.random.default_rng(1).normal(size=part.parameters)
    J = part.jacobian(TOWER_ROWS).matrix[:]
    theta, step = part.theta, 1e-6
    for k in range(part.parameters):
        moved = []
        for sign in (1, -1):
            part.theta = theta + sign * step * np.eye(part.parameters)[k]
            moved.append(part.forward(TOWER_ROWS).ravel())
        np.testing.assert_allclose(J[:, k], (moved[0] - moved[1]) / (2 * step), atol=1e-6)
    part.theta = theta
    g = np.random.default_rng(2).normal(size=(9, 2))
    np.testing.assert_allclose(part.vjp(TOWER_ROWS, g), J.T @ g.ravel(), atol=1e-10)


@pytest.mark.parametrize("name", MODULES)
def test_a_code_that_has_no_row_has_the_spare_one(name: str) -> None:
    part = TorchBlock("shop", vfl.TorchModel(MODULES[name]), 4, 2, l2=0.0)
    spare = TOWER_ROWS.copy()
    spare[:, 1] = 0
    for strange in (4, 17, -1, 1e9):
        unknown = TOWER_ROWS.copy()
        unknown[:, 1] = strange
        np.testing.assert_array_equal(part.forward(unknown), part.forward(spare))
    known = TOWER_ROWS.copy()
    known[:, 1] = 3
    assert (part.forward(known) != part.forward(spare)).any()


@pytest.mark.parametrize("passives", [1, 3])
@pytest.mark.parametrize("name", TOPS)
def test_a_top_model_sends_its_derivatives_once_a_round(name: str, passives: int) -> None:
    top = TorchTop("bank", vfl.TorchModel(lambda: TOPS[name](passives)), 4, 1, l2=0.0, fed=2 * passives, bound=9.0)
    fed = np.random.default_rng(3).normal(size=(9, 2 * passives))
    g = np.random.default_rng(4).normal(size=(9, 1))
    down = top.output_gradient(TOWER_ROWS, fed, g)
    for k in range(fed.shape[1]):
        moved = [(top.combine(TOWER_ROWS, fed + sign * 1e-6 * np.eye(fed.shape[1])[k])) for sign in (1, -1)]
        np.testing.assert_allclose(down[:, k, None], g * (moved[0] - moved[1]) / 2e-6, atol=1e-5)
    before = top.gradient(TOWER_ROWS, fed, g)
    top.theta = top.theta + 0.1
    after, other = top.gradient(TOWER_ROWS, fed, g), top.gradient(TOWER_ROWS, fed, 2 * g)
    assert not np.allclose(before, after)
    np.testing.assert_allclose(other, 2 * after)


@pytest.mark.parametrize("name", MODULES)
def test_a_step_goes_through_a_module_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, row weights and derivatives come from one pass, unless weights or rows change or there are many rows."""
    ways: list[str] = []

    def counted(module: torch.nn.Module) -> vfl.TorchModel:
        module.register_forward_hook(lambda *_: ways.append("through"))
        return vfl.TorchModel(module)

    def steps(rows: np.ndarray) -> tuple[list[np.ndarray], int]:
        shop = TorchBlock("shop", counted(MODULES[name]()), 4, 2, l2=0.0)
        bank = TorchTop("bank", counted(TOPS[name](1)), 4, 1, l2=0.0, fed=2, bound=9.0)
        for part in (shop, bank):
            part.theta = 0.3 * np.random.default_rng(part.parameters).normal(size=part.parameters)
        ways.clear()
        Z, f = shop.forward(rows), bank.combine(rows, fed)
        results = [Z, f, shop.vjp(rows, fed), bank.output_gradient(rows, fed, g), bank.gradient(rows, fed, 2 * g)]
        return results, len(ways)

    fed = np.random.default_rng(3).normal(size=(9, 2))
    g = np.random.default_rng(4).normal(size=(9, 1))
    first_results, through = steps(TOWER_ROWS)
    assert through == 2
    monkeypatch.setattr(torch_block, "MAX_TRACED_ROWS", len(TOWER_ROWS) - 1)
    again, through = steps(TOWER_ROWS)
    assert through == 5
    for one, other in zip(first_results, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_wide_model_has_one_weight_for_each_code_and_number() -> None:
    module = vfl.towers.WideDeep(FIELDS, 1, **SMALL_TOWER).double()
    module.wide.table.weight.data = torch.arange(10.0, dtype=torch.float64)[:, None]
    torch.nn.init.zeros_(module.tower[-1].weight)
    torch.nn.init.zeros_(module.tower[-1].bias)
    expected = TOWER_ROWS[:, 1] + (4 + TOWER_ROWS[:, 2])
    w = module.weights
    expected = expected + TOWER_ROWS[:, [0, 3]] @ w.weight.detach().numpy()[0] + w.bias.item()
    np.testing.assert_allclose(module(torch.tensor(TOWER_ROWS)).detach().numpy()[:, 0], expected)


def test_a_module_of_other_columns_is_refused() -> None:
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        TorchBlock("shop", vfl.TorchModel(MODULES["dssm"]), 2, 2, l2=0.0)


def adagrad_job(joint: str, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Neural(joint=joint, width=8),
        "optimizer": vfl.FedSGD(lr=0.03, rule="adagrad"),
        "protocol": vfl.Protocol(sum="direct", residual="open"),
        "prepare": {"texts": "codes", "missing": "fill", "rare": 0.0},
        "batch_size": 512,
        "epochs": 3,
        "test_fraction": 0.25,
        "accepts": ["columns"],
    }
    return vfl.Job(**(defaults | keys))


def with_modules(parties: list[vfl.Party], name: str, joint: str) -> list[vfl.Party]:
    t, passives = vfl.towers, len(parties) - 1
    for party in parties:
        fields = t.Fields.of(party)
        if joint == "top" and party.active:
            top = t.WideDeepTop if name == "wide and deep" else t.DssmTop
            party.model = vfl.TorchModel(lambda f=fields, top=top: top(f, 8, passives=passives))
        else:
            bottom, outputs = t.WideDeep if name == "wide and deep" else t.Dssm, 8 if joint == "top" else 1
            party.model = vfl.TorchModel(lambda f=fields, bottom=bottom, outputs=outputs: bottom(f, outputs))
    return parties


@pytest.mark.parametrize(
    ("name", "joint", "count"), [("wide and deep", "top", 2), ("wide and deep", "sum", 3), ("dssm", "top", 3)]
)
def test_clicks_are_learned_from_columns_of_all(name: str, joint: str, count: int, tmp_path: Path) -> None:
    tables = with_modules(clicks(8_000).parties(count), name, joint)
    run = vfl.simulate(adagrad_job(joint), tables)
    assert 0.6 < run.metrics["auc"] < 0.85
    new = {party.name: party.table for party in tables}
    f = run.decision(new)
    run.save(tmp_path)
    loaded = vfl.Run.load(tmp_path)
    for party in tables:
        loaded.parts[party.name].model = party.model
    np.testing.assert_array_equal(loaded.decision(new), f)


def test_sealed_training_is_training_in_the_open() -> None:
    tables = [party.take(np.arange(600, dtype=np.intp)) for party in clicks(2_000).parties()]
    fields = [vfl.towers.Fields((0, 1), {7: 3}), vfl.towers.Fields((0,), {6: 4})]
    for party, field in zip(tables, fields, strict=True):
        party.model = vfl.TorchModel(lambda field=field: vfl.towers.WideDeep(field, 1, size=2, hidden=(2,)).double())
    keys = {"batch_size": 300, "epochs": 3, "accepts": ["columns", "fresh_equations"]}
    plain, sealed = (
        vfl.simulate(adagrad_job("sum", protocol=vfl.Protocol(residual=residual), **keys), tables)
        for residual in ("open", "ckks")
    )
    for name, part in plain.parts.items():
        np.testing.assert_allclose(sealed.parts[name].theta, part.theta, atol=1e-3)


@pytest.mark.slow
@pytest.mark.realdata
@pytest.mark.skipif(not REAL.is_dir(), reason="there are no real tables")
@pytest.mark.parametrize("name", ["wide and deep", "dssm"])
def test_on_real_tables(name: str) -> None:
    """Results exceed logistic regression on either side alone; adult has texts, default_credit only numbers."""
    tables = pytest.importorskip("benchmarks.tables")
    for parties, alone in ((tables.adult(REAL), 0.825), (tables.READERS["default_credit"](REAL), 0.720)):
        run = vfl.simulate(adagrad_job("top", batch_size=1024, epochs=2), with_modules(parties, name, "top"))
        assert run.metrics["auc"] > alone + 0.02


@pytest.mark.parametrize("passives", [1, 2, 3])
@pytest.mark.parametrize("width", [2, 3])
def test_the_top_of_dssm_adds_the_vectors_of_the_others(passives: int, width: int) -> None:
    top = vfl.towers.DssmTop(FIELDS, width, passives=passives, **SMALL_TOWER).double()
    x, z = torch.from_numpy(TOWER_ROWS), torch.from_numpy(GENERATOR.normal(size=(len(TOWER_ROWS), passives * width)))
    f, vectors = top(x, z).detach().numpy(), top.bottom(x).detach().numpy()
    factors, (bias,) = top.linear.weight.detach().numpy()[0], top.linear.bias.detach().numpy()
    for row, vector in enumerate(vectors):
        others = np.zeros(width)
        for party in range(passives):
            others += z[row, party * width : (party + 1) * width].numpy()
        cosine = vector @ others / (np.linalg.norm(vector) * np.linalg.norm(others))
        expected = 3.0 * cosine + np.concatenate([vector, others]) @ factors + bias
        assert f[row, 0] == pytest.approx(expected, abs=1e-9)

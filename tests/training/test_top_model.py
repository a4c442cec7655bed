"""A top model (layers on all parties' outputs) at the active party: compared with torch, encrypted, and refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from builders import raises_code  # noqa: E402

import securevfl as vfl  # noqa: E402
from securevfl.errors import ConfigError  # noqa: E402

nn = torch.nn
torch.set_num_threads(1)
ROWS, TOP_WIDTH = 200, 3


class Top(nn.Module):
    """The active party's bottom model, and the top model on all outputs."""

    def __init__(self, columns: int, passives: int) -> None:
        super().__init__()
        self.local = nn.Linear(columns, 2).double()
        self.top = nn.Sequential(nn.Tanh(), nn.Linear(2 + passives * TOP_WIDTH, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([self.local(x), z], dim=1))


def bottom(columns: int) -> torch.nn.Module:
    return nn.Sequential(nn.Linear(columns, 3), nn.Tanh(), nn.Linear(3, TOP_WIDTH)).double()


def standardized_parties(count: int) -> list[vfl.Party]:
    tables = [party.take(np.arange(ROWS, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=count)]
    for party in tables:
        party.X = (party.X - party.X.mean(axis=0)) / party.X.std(axis=0)
        d = party.X.shape[1]
        make = (lambda d=d: Top(d, count - 1)) if party.y is not None else (lambda d=d: bottom(d))
        party.model = vfl.TorchModel(make)
    return tables


def top_model_job(residual: object = "open", **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Neural(joint="top", width=TOP_WIDTH),
        "optimizer": vfl.FedSGD(lr=0.5),
        "protocol": vfl.Protocol(sum="direct", residual=residual),  # type: ignore[arg-type]
        "batch_size": "all",
        "epochs": 1,
        "scale": "none",
        "accepts": ["columns", "fresh_equations"],
    }
    return vfl.Job(**(defaults | keys))


@pytest.mark.parametrize("count", [2, 3])
def test_a_step_is_that_of_the_pooled_model(count: int) -> None:
    tables = standardized_parties(count)
    before, after = (vfl.simulate(top_model_job(optimizer=vfl.FedSGD(lr=lr)), tables) for lr in (1e-12, 0.5))
    modules = {party.name: party.model.make() for party in tables}  # type: ignore[attr-defined]
    for name, module in modules.items():
        torch.nn.utils.vector_to_parameters(torch.tensor(before.parts[name].theta), module.parameters())
    Z = torch.cat([modules[party.name](torch.tensor(party.X)) for party in tables[1:]], dim=1)
    f = modules["bank"](torch.tensor(tables[0].X), Z)
    mean = nn.functional.softplus(-f[:, 0] * torch.tensor(np.where(tables[0].y == 1, 1.0, -1.0))).mean()
    for name, module in modules.items():
        tensors = list(module.parameters())
        gradients = torch.autograd.grad(mean, tensors, retain_graph=True)
        expected = torch.cat([(w - 0.5 * g).reshape(-1) for w, g in zip(tensors, gradients, strict=True)])
        np.testing.assert_allclose(after.parts[name].theta, expected.detach().numpy(), atol=1e-9)
    np.testing.assert_allclose(
        before.decision({party.name: party.X for party in tables}), f.detach().numpy(), atol=1e-9
    )


@pytest.mark.parametrize("count", [2, 3])
def test_sealed_training_is_training_in_the_open(count: int) -> None:
    steps: dict[str, object] = {"optimizer": vfl.FedBCD(local_steps=3, lr=0.3), "epochs": 15}
    plain, sealed = (
        vfl.simulate(top_model_job(residual, **steps), standardized_parties(count)) for residual in ("open", "ckks")
    )
    for name, part in sealed.parts.items():
        reference = plain.parts[name].theta
        assert np.linalg.norm(part.theta - reference) < 1e-3 * np.linalg.norm(reference)
    assert sealed.metrics["auc"] > 0.95


def test_without_modules_it_is_a_dense_layer_over_dense_layers() -> None:
    tables = standardized_parties(3)
    for party in tables:
        party.model = None
    assert (
        vfl.simulate(top_model_job(optimizer=vfl.FedBCD(lr=0.3, mode="sequential"), epochs=10), tables).metrics["auc"]
        > 0.95
    )


def test_residuals_are_cut_to_what_was_agreed() -> None:
    tables = standardized_parties(2)
    tight = top_model_job(model=vfl.Neural(joint="top", width=TOP_WIDTH, clip=1e-9))
    still = vfl.simulate(top_model_job(optimizer=vfl.FedSGD(lr=1e-12)), tables).parts["shop"].theta
    moved = vfl.simulate(tight, tables).parts["shop"].theta
    assert np.abs(moved - still).max() < 1e-6
    assert tight.model.residual_bound == 1e-9


def test_a_top_model_declares_outputs_and_refuses_hidden_sums() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION", option="protocol.sum"):
        top_model_job(protocol=vfl.Protocol(sum="pairwise", residual="open"))
    tables = standardized_parties(2)
    sheet = vfl.explain(top_model_job(), tables)
    assert "2 x 3 numbers" in sheet
    assert "learns    f and every Z_k" in sheet
    tables[0].model = vfl.TorchModel(bottom(15))
    with pytest.raises(ConfigError, match="bank: the module fails on rows with 15 and 3 columns"):
        vfl.simulate(top_model_job(), tables)

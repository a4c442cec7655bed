"""Training of neural networks: encrypted as unencrypted, equal to one pooled model, refused, stored and resumed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from builders import raises_code  # noqa: E402

import securevfl as vfl  # noqa: E402
from securevfl.audit.attacks import ATTACKS  # noqa: E402
from securevfl.audit.recording.real_ideal_pair import RealIdealPair  # noqa: E402
from securevfl.errors import ConfigError, LeakageError, PartiesError  # noqa: E402
from securevfl.training.checkpoint import Checkpoints  # noqa: E402
from tests.small_keys import SMALL  # noqa: E402

nn = torch.nn
torch.set_num_threads(1)
ROWS = 240


def network(columns: int, hidden: int, outputs: int = 1) -> Callable[[], torch.nn.Module]:
    return lambda: nn.Sequential(nn.Linear(columns, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def network_parties(*hidden: int, count: int = 2, outputs: int = 1) -> list[vfl.Party]:
    """Return parties whose first ones have hidden layers of these sizes; the others have a dense layer."""
    tables = [party.take(np.arange(ROWS, dtype=np.intp)) for party in vfl.datasets.breast_cancer(parties=count)]
    for party, size in zip(tables, hidden, strict=False):
        party.model = vfl.TorchModel(network(party.X.shape[1], size, outputs))
    return tables


def neural_job(residual: object = "open", **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Neural(),
        "optimizer": vfl.FedBCD(local_steps=2, lr=0.3),
        "protocol": vfl.Protocol(residual=residual),  # type: ignore[arg-type]
        "batch_size": 120,
        "epochs": 3,
        "accepts": ["columns", "fresh_equations"],
    }
    return vfl.Job(**(defaults | keys))


@pytest.mark.long
def test_fifty_sealed_rounds_equal_fifty_open_rounds() -> None:
    keys: dict[str, object] = {"epochs": 25, "optimizer": vfl.FedBCD(local_steps=2, lr=0.3)}
    plain, sealed = (vfl.simulate(neural_job(residual, **keys), network_parties(3, 3)) for residual in ("open", "ckks"))
    assert sealed.costs.rounds == 50
    for name, part in sealed.parts.items():
        reference = plain.parts[name].theta
        assert np.linalg.norm(part.theta - reference) < 1e-3 * np.linalg.norm(reference)
    assert sealed.metrics["auc"] > 0.97


@pytest.mark.long
def test_under_paillier_too() -> None:
    keys: dict[str, object] = {"epochs": 1, "optimizer": vfl.FedSGD(lr=0.3)}
    plain, sealed = (vfl.simulate(neural_job(residual, **keys), network_parties(2, 1)) for residual in ("open", SMALL))
    for name, part in sealed.parts.items():
        np.testing.assert_allclose(part.theta, plain.parts[name].theta, atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_step_is_that_of_the_pooled_model(outputs: int) -> None:
    """FedSGD on one batch of all rows is compared with torch's gradient of the mean loss on the sum of modules."""
    tables = network_parties(3, 4, count=3, outputs=outputs)
    for party in tables:
        party.X = (party.X - party.X.mean(axis=0)) / party.X.std(axis=0)
    if outputs == 3:
        tables[0].y = np.arange(ROWS) % 3
    loss = "logistic" if outputs == 1 else "softmax"
    one = neural_job(
        model=vfl.Neural(loss=loss, l2=0.01), optimizer=vfl.FedSGD(lr=0.5), batch_size=ROWS, epochs=1, scale="none"
    )
    before, after = (
        vfl.simulate(one.model_copy(update={"optimizer": vfl.FedSGD(lr=1e-12)}), tables),
        vfl.simulate(one, tables),
    )
    weights, f = {}, 0.0
    for party in tables:
        hidden = {"bank": 3, "shop": 4}.get(party.name)
        columns = party.X.shape[1]
        module = network(columns, hidden, outputs)() if hidden else nn.Linear(columns, outputs).double()
        torch.nn.utils.vector_to_parameters(torch.tensor(before.parts[party.name].theta), module.parameters())
        weights[party.name] = list(module.parameters())
        f = f + module(torch.tensor(party.X))
    if outputs == 1:
        mean = nn.functional.softplus(-f[:, 0] * torch.tensor(np.where(tables[0].y == 1, 1.0, -1.0))).mean()
    else:
        mean = nn.functional.cross_entropy(f, torch.tensor(tables[0].y))
    for name, tensors in weights.items():
        decay = 0.005 * sum((tensor**2).sum() for tensor in tensors)
        gradients = torch.autograd.grad(mean + decay, tensors, retain_graph=True)
        expected = torch.cat([(w - 0.5 * g).reshape(-1) for w, g in zip(tensors, gradients, strict=True)])
        np.testing.assert_allclose(after.parts[name].theta, expected.detach().numpy(), atol=1e-9)


def test_a_network_as_wide_as_its_batches_is_refused() -> None:
    wide = network_parties(3, 10)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        vfl.simulate(neural_job("ckks"), wide)
    accepted = neural_job("ckks", epochs=1, accepts=["rank", "columns"])
    assert "accepted: disclosure to shop: its opened gradient has 171 parameters" in vfl.explain(accepted, wide)
    worlds = RealIdealPair(accepted, wide, 0)
    assert ATTACKS["residual_sign"].score(worlds).real > 0.999  # g is solved for, and its signs are the labels


def test_the_outputs_of_a_partys_own_network_rank_the_labels() -> None:
    pair = RealIdealPair(neural_job("ckks", epochs=12), network_parties(3, 2), 0)
    assert ATTACKS["partial_score"].score(pair).real > 0.9
    apart = vfl.Protocol(sum="direct", residual="open")
    assert ATTACKS["partial_score"].skip_reason(neural_job(model=vfl.Neural(joint="top"), protocol=apart))


def test_equations_of_a_jacobian_that_moves_are_counted() -> None:
    tables = network_parties(3, 2)  # 2 * 17 + 1 = 35 parameters, 120 residuals
    many = neural_job("ckks", epochs=2, accepts=["columns"])
    assert many.equations == 4
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED"):
        vfl.simulate(many, tables)
    few = many.model_copy(update={"optimizer": vfl.FedSGD(lr=0.3)})
    sheet = vfl.explain(few, tables)
    assert "different in each of 2 local steps of a run because J changes" in sheet
    assert "a run decrypts at most 140 values" in sheet
    assert "fresh_equations" not in sheet


def test_a_part_is_kept_and_predicts_with_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    modules = {"bank": "nets.py:bank", "shop": "nets.py:shop"}
    code = "from torch import nn\ndef {}():\n    return nn.Sequential(nn.Linear(15, 3), nn.ELU(), nn.Linear(3, 1))\n"
    Path("nets.py").write_text(code.format("bank") + code.format("shop"))
    named = neural_job(model=vfl.Neural(modules=modules, module_weights=dict.fromkeys(modules, 52)))
    tables = network_parties()
    for party in tables:
        party.model = vfl.TorchModel(modules[party.name])
    new = {party.name: party.X for party in tables}
    run = vfl.simulate(named, tables)
    run.save("parts")
    loaded = vfl.Run.load("parts", models={name: vfl.TorchModel(named) for name, named in modules.items()})
    np.testing.assert_array_equal(loaded.decision(new), run.decision(new))
    brought = network_parties(3, 3)
    run = vfl.simulate(neural_job(), brought)
    run.save("parts")
    loaded = vfl.Run.load("parts")
    with raises_code(ConfigError, "SVFL-JOB-MODULE"):
        loaded.decision(new)
    for party in brought:
        loaded.parts[party.name].model = party.model
    np.testing.assert_array_equal(loaded.decision(new), run.decision(new))


def test_a_run_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    one = neural_job(optimizer=vfl.FedBCD(local_steps=2, lr=0.1, rule="momentum"))
    undisturbed = vfl.simulate(one, network_parties(3, 3))

    def states() -> dict[str, Checkpoints]:
        return {name: Checkpoints(tmp_path / name, name, every=1) for name in ("bank", "shop")}

    def cut(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vfl.simulate(one, network_parties(3, 3), checkpoints=states(), on_round=cut)
    again = vfl.simulate(one, network_parties(3, 3), checkpoints=states())
    for name, part in undisturbed.parts.items():
        np.testing.assert_array_equal(again.parts[name].theta, part.theta)


def test_a_run_from_files_predicts_with_supplied_modules(tmp_path: Path) -> None:
    members = network_parties(3, 4)
    run = vfl.simulate(neural_job(epochs=1, accepts=["rank", "fresh_equations", "columns"]), members)
    run.save(tmp_path)
    tables = {party.name: party.X[:9] for party in members}
    again = vfl.Run.load(tmp_path, models={party.name: party.model for party in members})
    np.testing.assert_array_equal(again.predict_proba(tables), run.predict_proba(tables))
    with raises_code(PartiesError, "SVFL-PARTIES-NAME"):
        vfl.Run.load(tmp_path, models={"telco": members[0].model})

"""Neural networks between organisations: modules from their owners' files are stored and used again for predictions."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import securevfl as vfl  # noqa: E402
from securevfl.organisations.join import join  # noqa: E402
from securevfl.training.model_part import ModelPart  # noqa: E402

torch.set_num_threads(1)
CODE = """from torch import nn

def net():
    return nn.Sequential(nn.Linear(15, 3), nn.Tanh(), nn.Linear(3, 1)).double()
"""


MODULES = {"bank": "bank_net.py:net", "shop": "shop_net.py:net"}


def together(work: Any, names: list[str]) -> dict[str, Any]:
    """Run work(name) for each name in a separate thread."""
    results: dict[str, Any] = {}
    threads = [threading.Thread(target=lambda name=name: results.setdefault(name, work(name))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert set(results) == set(names)
    return results


def test_modules_stay_with_their_owners(meet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bank", "shop"):
        Path(f"{name}_net.py").write_text(CODE)
    job = vfl.Job(
        model=vfl.Neural(modules=MODULES, module_weights=dict.fromkeys(MODULES, 52)),
        optimizer=vfl.FedBCD(local_steps=2, lr=0.3),
        protocol=vfl.Protocol(residual="ckks"),
        batch_size=190,
        epochs=1,
        test_fraction=0.25,
        accepts=["columns"],
    )
    meeting = meet(job=job)
    assert vfl.Job.load(meeting.kit("shop") / "job.toml").digest == job.digest
    parties = {party.name: party for party in vfl.datasets.breast_cancer()}
    for name, party in parties.items():
        party.model = vfl.TorchModel(MODULES[name])

    def train(name: str) -> ModelPart:
        kit = meeting.kit(name)
        settings = {"timeout": 20, "patience": 5, "save": kit / "part.json", "checkpoints": kit / "states"}
        return join(job, parties[name], kit / "peers.toml", **settings)  # type: ignore[arg-type]

    parts = together(train, ["bank", "shop"])
    run = vfl.simulate(job, list(parties.values()))
    for name, part in parts.items():
        np.testing.assert_allclose(part.theta, run.parts[name].theta, atol=1e-4)

    def predict(name: str) -> Any:
        kit, party = meeting.kit(name), parties[name]
        return vfl.predict_with(
            replace(ModelPart.load(kit / "part.json"), model=party.model),
            party.X,
            kit / "peers.toml",
            ids=party.ids,
            timeout=20,
        )

    predicted = together(predict, ["bank", "shop"])["bank"]
    expected = run.decision({name: party.X for name, party in parties.items()})
    np.testing.assert_allclose(predicted.decision, expected, atol=1e-3)
    assert "nn." not in (meeting.kit("shop") / "part.json").read_text()

"""Bottoms that their owners fit alone: what they gain a linear model; labels and messages have no part in it."""

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import securevfl as vfl  # noqa: E402
from securevfl.errors import ConfigError, DataError  # noqa: E402

nn = torch.nn
torch.set_num_threads(1)
D, H = 6, 16


def network() -> torch.nn.Module:
    return nn.Sequential(nn.Linear(D, H), nn.ReLU())


def rings(rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that no plane parts: near the origin of the first two columns, and far from it."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(rows, D))
    return X, ((X[:, :2] ** 2).sum(axis=1) > 1.4).astype(int)


@pytest.mark.parametrize("pretext", ["autoencoder", "contrastive", "none"])
@pytest.mark.long
def test_a_linear_job_on_its_outputs_tells_what_none_on_the_columns_does(pretext: str) -> None:
    X, y = rings()
    bank = vfl.Party("bank", np.random.default_rng(1).normal(size=(len(X), 2)), y, ids=np.arange(len(X)))
    plain = vfl.Party("shop", X, ids=np.arange(len(X)))
    bottom = vfl.LocalBottom(network, pretext, epochs=15, lr=1e-2)  # type: ignore[arg-type]
    shop = bottom.fit(plain)
    assert (shop.X.shape, shop.columns[:2], shop.order) == ((len(X), H), ["h0", "h1"], plain.order)
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(local_steps=5, lr=0.5),
        protocol=vfl.Protocol(residual="ckks"),
        batch_size="all",
        epochs=8,
        prepare={"tails": "keep"},
        accepts=["columns"],
    )
    without, with_it = (vfl.simulate(job, [bank, each]).metrics["auc"] for each in (plain, shop))
    assert without < 0.65
    assert with_it > 0.78  # 0.801 to 0.839 over eight runs each, with deviations of 0.0014 at most


@pytest.mark.long
def test_no_label_has_a_part_in_it() -> None:
    X, y = rings(200)
    fitted = [vfl.LocalBottom(network, epochs=2).fit(vfl.Party("p", X, each, aligned=True)) for each in (y, 1 - y)]
    np.testing.assert_array_equal(fitted[0].X, fitted[1].X)
    np.testing.assert_array_equal(fitted[0].y, y)
    other = vfl.LocalBottom(network, epochs=2, seed=1).fit(vfl.Party("p", X, aligned=True))
    assert not np.allclose(other.X, fitted[0].X)


def test_the_autoencoder_learns_to_give_columns_back() -> None:
    X, _ = rings(300)
    party = vfl.Party("p", X, aligned=True)
    left = []
    for epochs in (0, 40):
        outputs = vfl.LocalBottom(network, epochs=epochs, lr=1e-2).fit(party).X
        back = outputs @ np.linalg.lstsq(outputs, X)[0]
        left.append(float(((back - X) ** 2).mean()))
    assert left[1] < 0.7 * left[0]


def test_its_numbers_are_kept_without_code(tmp_path: Path) -> None:
    X, _ = rings(100)
    bottom = vfl.LocalBottom(network, epochs=1)
    with pytest.raises(DataError, match="a fitted bottom was expected"):
        bottom.apply(X)
    outputs = bottom.fit(vfl.Party("p", X, aligned=True)).X
    bottom.save(tmp_path / "bottom.npz")
    again = vfl.LocalBottom(network).load(tmp_path / "bottom.npz")
    np.testing.assert_array_equal(again.apply(X), outputs)
    with pytest.raises(DataError, match="rows of 6 columns were expected"):
        again.apply(X[:, :3])
    with pytest.raises(DataError, match="for this module were expected"):
        vfl.LocalBottom(lambda: nn.Linear(D, H)).load(tmp_path / "bottom.npz")
    with pytest.raises(DataError, match="were expected there"):
        vfl.LocalBottom(network).load(tmp_path / "none.npz")
    with pytest.raises(ConfigError, match="pretext: one of autoencoder, contrastive, none"):
        vfl.LocalBottom(network, "labels")  # type: ignore[arg-type]

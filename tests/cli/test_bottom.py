"""`securevfl bottom`: a party's table through a network of its own file, for a job that knows nothing of it."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

import securevfl as vfl  # noqa: E402
from securevfl.cli.main import app  # noqa: E402
from securevfl.data.readers import read_party, read_table  # noqa: E402

CODE = """from torch import nn

def net():
    return nn.Sequential(nn.Linear(15, 4), nn.Tanh()).double()
"""
FIT = ["--module", "net.py:net", "--out", "made.csv", "--weights", "net.npz", "--epochs", "2"]


def written(path: Path, party: vfl.Party, rows: slice, *, turned: bool = False) -> None:
    names = party.columns[::-1] if turned else party.columns
    X = party.X[rows][:, ::-1] if turned else party.X[rows]
    lines = [",".join(["id", *names, *(["y"] if party.active else [])])]
    for k, row in zip(party.ids[rows], X, strict=True):  # type: ignore[index]
        label = [str(party.y[list(party.ids).index(k)])] if party.y is not None else []  # type: ignore[arg-type]
        lines.append(",".join([str(k), *map(repr, row.tolist()), *label]))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    return tmp_path


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["bottom", *words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.long
def test_a_fitted_table_serves_a_job_and_new_rows_follow_it(folder: Path) -> None:
    bank, shop = vfl.datasets.breast_cancer()
    written(folder / "shop.csv", shop, slice(0, 400))
    written(folder / "new.csv", shop, slice(400, None), turned=True)  # columns are found by their names
    assert "15 columns became 4" in run("fit", "shop.csv", *FIT)
    modes = {name: Path(name).stat().st_mode & 0o777 for name in ("net.npz", "made.csv")}
    assert set(modes.values()) == {0o600}
    run("apply", "new.csv", "--module", "net.py:net", "--weights", "net.npz", "--out", "applied.csv")
    made, applied = read_party("shop", "made.csv"), read_table("applied.csv").held
    assert made.columns == applied.names == ["h0", "h1", "h2", "h3"]
    assert made.order == vfl.Party("shop", shop.X[:400], ids=shop.ids[:400]).order
    expected = vfl.LocalBottom("net.py:net", epochs=2)
    fitted = expected.fit(vfl.Party("shop", shop.X[:400], ids=shop.ids[:400]))
    np.testing.assert_allclose(made.X, fitted.X, atol=1e-9)
    np.testing.assert_allclose(applied.X, expected.apply(shop.X[400:]), atol=1e-9)
    job = vfl.Job(
        model=vfl.Logistic(l2=1e-3),
        optimizer=vfl.FedBCD(lr=0.3),
        protocol=vfl.Protocol(residual="ckks"),
        epochs=3,
        accepts=["columns"],
    )
    trained = vfl.simulate(job, [bank.take(np.arange(400, dtype=np.intp)), made])
    proba = trained.predict_proba({"bank": bank.X[400:], "shop": applied.X})
    assert proba.shape == (169, 2)
    assert np.mean(proba.argmax(axis=1) == bank.y[400:]) > 0.85  # type: ignore[index]


def test_labels_stay_in_the_table(folder: Path) -> None:
    bank = vfl.datasets.breast_cancer()[0]
    written(folder / "bank.csv", bank, slice(0, 60))
    run("fit", "bank.csv", *FIT, "--pretext", "none")
    np.testing.assert_array_equal(read_party("bank", "made.csv").y, bank.y[:60])  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fit", "gaps.csv", *FIT], "fill in or leave out: c1"),
        (["fit", "texts.csv", *FIT], "fill in or leave out: c2"),
        (["fit", "shop.csv", *FIT, "--pretext", "labels"], "one of autoencoder, contrastive, none was expected"),
        (["fit", "shop.csv", *FIT[:2], "--out", "made.parquet"], "ends in .csv was expected"),
        (["apply", "shop.csv", *FIT[:6]], "weights of a bottom were expected there"),
        (["fit", "shop.csv", "--module", "other.py:net", "--out", "made.csv"], "a file other.py was expected"),
    ],
)
def test_says_what_is_wrong(folder: Path, words: list[str], told: str) -> None:
    head = ",".join(["id", *(f"c{j}" for j in range(15))])
    rows = [[str(k), *(str(k + j) for j in range(15))] for k in range(5)]
    for name, at, cell in (("gaps", 2, ""), ("texts", 3, "red"), ("shop", 1, "1")):
        table = [list(row) for row in rows]
        table[1][at] = cell
        (folder / f"{name}.csv").write_text("\n".join([head, *map(",".join, table)]) + "\n")
    done = CliRunner().invoke(app, ["bottom", *words])
    assert (done.exit_code, told in " ".join(done.output.split())) == (2, True), done.output
    assert not (folder / "made.csv").exists()

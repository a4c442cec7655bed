"""Each kind of bad input has a separate error, which names the party, the problem and the remedy."""

from pathlib import Path

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from securevfl import errors
from securevfl.training.model_part import ModelPart

X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.arange(40) % 2
SECRET = 987654.125  # must never be seen in a message


def spoilt(value: object) -> np.ndarray:
    table = X.astype(object)
    table[0, 0] = SECRET
    table[3, 1] = value
    return table


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (np.column_stack([X, np.full(40, np.nan)]), "SVFL-TABLE-EMPTY-COLUMN"),
        (spoilt(np.inf), "SVFL-TABLE-MISSING-VALUES"),
        (spoilt("male"), "SVFL-TABLE-TYPE"),
        (spoilt(np.datetime64("2026-01-01")), "SVFL-TABLE-TYPE"),
        (np.ones((40, 3)), "SVFL-TABLE-CONSTANT"),
        (np.empty((40, 0)), "SVFL-TABLE-SHAPE"),
        (np.empty((0, 3)), "SVFL-TABLE-SHAPE"),
        (X[:, 0], "SVFL-TABLE-SHAPE"),
    ],
)
def test_tables(table: np.ndarray, code: str) -> None:
    with raises_code(errors.TableError, code, party="shop") as caught:
        vfl.Party("shop", table, aligned=True)
    assert str(SECRET) not in str(caught.value)
    assert "male" not in str(caught.value)


def test_ids() -> None:
    with raises_code(errors.IdError, "SVFL-ID-DUPLICATE"):
        vfl.Party("shop", X, ids=[7, 7, *range(10, 48)])
    with raises_code(errors.TableError, "SVFL-TABLE-SHAPE"):
        vfl.Party("shop", X, ids=range(39))
    bank = vfl.Party("bank", X, Y, ids=range(40))
    with raises_code(errors.IdError, "SVFL-ID-ORDER"):
        vfl.simulate(CKKS_JOB, [bank, vfl.Party("shop", X, ids=range(1, 41))])
    with raises_code(errors.IdError, "SVFL-ID-NO-MATCH"):
        vfl.align([bank, vfl.Party("shop", X, ids=range(100, 140))])
    with raises_code(errors.IdError, "SVFL-ID-MISSING"):
        vfl.align([bank, vfl.Party("shop", X, aligned=True)])


CKKS_JOB = vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedBCD(lr=0.1), protocol=vfl.Protocol(residual=vfl.Ckks()))


@pytest.mark.parametrize(
    ("parties", "error", "code"),
    [
        ([vfl.Party("bank", X, Y, aligned=True)], errors.PartiesError, "SVFL-PARTIES-COUNT"),
        (
            [vfl.Party("a", X, Y, aligned=True), vfl.Party("b", X, Y, aligned=True)],
            errors.PartiesError,
            "SVFL-PARTIES-LABELS",
        ),
        (
            [vfl.Party("a", X, aligned=True), vfl.Party("b", X, aligned=True)],
            errors.PartiesError,
            "SVFL-PARTIES-LABELS",
        ),
        (
            [vfl.Party("a", X, Y, aligned=True), vfl.Party("a", X, aligned=True)],
            errors.PartiesError,
            "SVFL-PARTIES-NAME",
        ),
        (
            [vfl.Party("a", X, Y, aligned=True), vfl.Party("b", X[:30], aligned=True)],
            errors.TableError,
            "SVFL-TABLE-ROW-COUNT",
        ),
        (
            [vfl.Party("a", X, np.arange(40) % 3, aligned=True), vfl.Party("b", X, aligned=True)],
            errors.LabelError,
            "SVFL-LABEL-CLASSES",
        ),
    ],
)
def test_parties(parties: list[vfl.Party], error: type[errors.SecureVFLError], code: str) -> None:
    with raises_code(error, code):
        vfl.simulate(CKKS_JOB, parties)


def test_labels() -> None:
    with raises_code(errors.LabelError, "SVFL-LABEL-MISSING"):
        vfl.Party("bank", X, np.where(Y, np.nan, 0.0), aligned=True)
    with raises_code(errors.TableError, "SVFL-TABLE-SHAPE"):
        vfl.Party("bank", X, Y[:30], aligned=True)


def test_keys_below_2048_bits_are_refused() -> None:
    with raises_code(errors.KeySizeError, "SVFL-JOB-KEY-SIZE"):
        vfl.Paillier(bits=1024)


def test_a_residual_beyond_its_bound_is_told() -> None:
    y = np.where(np.arange(40) == 0, 1e6, np.arange(40))
    job = vfl.Job(
        model=vfl.Square(),
        optimizer=vfl.FedBCD(lr=50.0),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size=20,
        epochs=40,
        accepts=["columns"],
    )
    with raises_code(errors.SecureVFLError, "SVFL-TRAINING-DIVERGED"):
        vfl.simulate(job, [vfl.Party("bank", X, y, aligned=True), vfl.Party("shop", X + 1, aligned=True)])


def lines(text: str, tmp_path: Path) -> list[str]:
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(errors.ConfigError) as caught:
        vfl.Job.load(tmp_path / "job.toml")
    return str(caught.value).splitlines()


VALID_JOB = """
batch_size = 64
[model]
name = "logistic"
[optimizer]
name = "fedbcd"
lr = 0.3
[protocol]
sum = "auto"
residual = "ckks"
"""


def test_a_job_file_and_its_digest(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(VALID_JOB)
    job = vfl.Job.load(tmp_path / "job.toml")
    expected = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.3),
        protocol=vfl.Protocol(residual=vfl.Ckks()),
        batch_size=64,
    )
    assert job == expected
    assert job.digest == expected.digest
    assert vfl.Job.from_dict(job.to_dict()).digest == job.digest
    (tmp_path / "job.toml").write_text(VALID_JOB.replace("64", "65"))
    assert vfl.Job.load(tmp_path / "job.toml").digest != job.digest


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("batch_size = 64", 'batch_size = "many"', ["batch_size: .*whole number"]),
        ("batch_size = 64", "batchsize = 64", [r"batchsize: unknown option .*known: model, "]),
        ('name = "fedbcd"\nlr = 0.3', 'name = "fdml"', ["optimizer.lr: the option is missing"]),
        ("lr = 0.3", "lr = -1.0\nlocal_steps = 0", ["optimizer.lr: ", "optimizer.local_steps: "]),
        ('"fedbcd"', '"adam"', ["optimizer: there is no optimizer of this name; choose one of fedbcd"]),
        ('"ckks"', '"rsa"', ["protocol.residual: must be one of open, paillier, ckks"]),
        ('"auto"', '"tre"', ["protocol.sum: there is no sum of this name; choose one of direct"]),
        ('"ckks"', '{name = "ckks", profile = "fast"}', ["protocol.residual.profile: "]),
        ('"ckks"', '{name = "paillier", bits = 1024}', ["protocol.residual.*2048"]),
        ("batch_size = 64", 'target = {metric = "r2", value = 1.0}', ["target.metric: must be one of auc"]),
        ("[model]", "[model", ["not valid TOML: .*line 3"]),
    ],
)
def test_a_wrong_job_file_gets_a_line_a_problem(old: str, new: str, expected: list[str], tmp_path: Path) -> None:
    import re

    assert old in VALID_JOB
    problems = lines(VALID_JOB.replace(old, new), tmp_path)
    assert len(problems) == len(expected)
    for line, pattern in zip(problems, expected, strict=True):
        assert re.search(pattern, line), line


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with raises_code(errors.ConfigError, "SVFL-JOB-FILE") as caught:
        vfl.Job.load(tmp_path / "nowhere.toml")
    assert "nowhere.toml" in str(caught.value)


def test_new_rows_that_do_not_fit_are_named() -> None:
    bank, shop = vfl.datasets.breast_cancer()
    run = vfl.simulate(vfl.Job.from_dict(CKKS_JOB.to_dict() | {"epochs": 1}), [bank, shop])
    with raises_code(errors.PartiesError, "SVFL-PARTIES-NAME"):
        run.predict({"bank": bank.X})
    with raises_code(errors.TableError, "SVFL-TABLE-COLUMNS"):
        run.predict({"bank": bank.X, "shop": shop.X[:, :3]})
    with raises_code(errors.TableError, "SVFL-TABLE-ROW-COUNT"):
        run.predict({"bank": bank.X, "shop": shop.X[:3]})
    with raises_code(errors.DataError, "SVFL-MODEL-FILE"):
        ModelPart.load(__file__)


def test_a_copy_with_other_options_is_checked_as_the_first_was() -> None:
    assert CKKS_JOB.model_copy(update={"epochs": 3}) == vfl.Job.from_dict(CKKS_JOB.to_dict() | {"epochs": 3})
    assert CKKS_JOB.model_copy() == CKKS_JOB
    square = vfl.GeneralLinear(loss="square").model_copy(update={"l2": 0.5})
    assert (square.loss_name, square.l2) == ("square", 0.5)
    for update in (
        {"epochs": -1},
        {"epoch": 3},
        {"optimizer": vfl.FDSKL()},
        {"target": vfl.Target(metric="r2", value=1)},
    ):
        with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
            CKKS_JOB.model_copy(update=update)


def test_a_network_by_name_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with raises_code(errors.ConfigError, "SVFL-JOB-OPTION"):
        vfl.simulate(CKKS_JOB, vfl.datasets.breast_cancer(), network="lan")  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""

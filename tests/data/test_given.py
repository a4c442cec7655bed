"""Tables as users pass them: frames, sparse matrices, unusual labels, constant columns, rows without ids."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import make_job, raises_code
from scipy import sparse
from typer.testing import CliRunner

import securevfl as vfl
from securevfl import errors
from securevfl.cli.main import app
from securevfl.training.model_part import ModelPart

N = 60
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, 3))
Y = (X[:, 0] + GENERATOR.normal(size=N) > 0).astype(int)
IDS = np.arange(N)


class Frame:
    """A frame with the members that the package reads: columns, an index with or without a name, and values."""

    def __init__(self, values: Any, index: Any, name: str | None = None) -> None:
        self._values = np.asarray(values)
        self.columns = [f"c{j}" for j in range(self._values.shape[1])] if self._values.ndim == 2 else []
        self.index = Index(index, name)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._values.astype(dtype) if dtype else self._values

    def __getitem__(self, name: str) -> np.ndarray:
        return self._values[:, self.columns.index(name)]

    def __len__(self) -> int:
        return len(self._values)


class Index:
    def __init__(self, values: Any, name: str | None) -> None:
        self.values, self.name = np.asarray(values), name

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


SMALL_BATCHES = {
    "model": vfl.Logistic(l2=1e-3),
    "optimizer": vfl.FedBCD(lr=0.3),
    "protocol": vfl.Protocol(residual="open"),
    "batch_size": 20,
    "epochs": 3,
    "accepts": ["columns"],
}


def labelled(y: Any, **options: Any) -> vfl.Party:
    return vfl.Party("bank", X, y, ids=IDS, **options)


def test_rows_without_ids_need_the_aligned_option() -> None:
    with raises_code(errors.IdError, "SVFL-ID-MISSING"):
        vfl.Party("shop", X)
    with raises_code(errors.IdError, "SVFL-ID-MISSING"):
        vfl.Party("shop", Frame(X, np.arange(N)))  # the index that every frame has
    assert vfl.Party("shop", X, aligned=True).ids is None
    assert vfl.Party("shop", Frame(X, IDS + 5), aligned=True).ids is None


@pytest.mark.parametrize(("index", "name"), [(IDS, "customer"), (IDS + 7, None), (IDS[::-1], None)])
def test_an_index_that_says_something_is_the_ids(index: np.ndarray, name: str | None) -> None:
    bank = vfl.Party("bank", Frame(X, index, name), Frame(Y[:, None], index, name))
    assert bank.ids is not None
    assert bank.ids.tolist() == index.tolist()
    assert bank.columns == ["c0", "c1", "c2"]
    order = GENERATOR.permutation(N)
    shop = vfl.Party("shop", Frame(X[order], index[order], name))
    with raises_code(errors.IdError, "SVFL-ID-ORDER"):
        vfl.simulate(make_job(SMALL_BATCHES), [bank, shop])
    aligned = vfl.align([bank, shop])
    missing = aligned.missing
    assert not any(missing.values())
    np.testing.assert_array_equal(aligned[1].X, X)


def test_labels_of_other_rows_are_refused_and_others_joined() -> None:
    with raises_code(errors.IdError, "SVFL-ID-NO-MATCH"):
        vfl.Party("bank", Frame(X, IDS, "id"), Frame(Y[:, None], IDS + 1, "id"))
    party = vfl.Party("bank", Frame(X, IDS, "id"), Frame(Y[::-1, None], IDS[::-1], "id"))
    np.testing.assert_array_equal(party.labels, Y)


@pytest.mark.parametrize(
    "missing",
    [np.nan, None, float("inf"), "nan", "", "NA", SimpleNamespace()],
    ids=["nan", "None", "inf", "text nan", "empty", "NA", "pandas NA"],
)
def test_missing_labels_are_no_class(missing: Any) -> None:
    if isinstance(missing, SimpleNamespace):
        missing = type("NAType", (), {})()
    y = np.where(Y, "yes", "no").astype(object)
    y[3] = missing
    with raises_code(errors.LabelError, "SVFL-LABEL-MISSING"):
        labelled(y)
    if isinstance(missing, float):
        with raises_code(errors.LabelError, "SVFL-LABEL-MISSING"):
            labelled(y.astype(str) if np.isnan(missing) else y)  # numpy converts it to text


def test_labels_as_objects_keep_their_kind() -> None:
    assert labelled(Y.astype(object)).y.dtype.kind == "i"  # type: ignore[union-attr]
    assert labelled(np.where(Y, "yes", "no").astype(object)).y.dtype.kind == "U"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "y", "code", "advice"),
    [
        (vfl.Logistic(), np.zeros(N), "SVFL-LABEL-CONSTANT", "check the label column"),
        (vfl.Softmax(), np.zeros(N), "SVFL-LABEL-CONSTANT", "check the label column"),
        (vfl.Softmax(), np.arange(N) / 7, "SVFL-LABEL-CLASSES", "use the square loss for numbers"),
        (vfl.Kernel(gamma=0.1, blocks=1, block_size=8), IDS % 3, "SVFL-LABEL-CLASSES", "merge them into two"),
        (vfl.Logistic(), IDS % 3, "SVFL-LABEL-CLASSES", "merge them into two"),
    ],
    ids=["one", "one of softmax", "numbers", "kernel of three", "three"],
)
def test_the_advice_on_labels_fits_the_model(model: Any, y: np.ndarray, code: str, advice: str) -> None:
    kernel = {"optimizer": vfl.FDSKL(), "protocol": vfl.Protocol(sum="direct")}
    job = make_job(SMALL_BATCHES, model=model, **(kernel if isinstance(model, vfl.Kernel) else {}))
    parties = [labelled(y), vfl.Party("shop", X, ids=IDS)]
    for command in (vfl.simulate, vfl.explain):
        with raises_code(errors.LabelError, code) as refused:
            command(job, parties)
        assert advice in str(refused.value).lower()


@pytest.mark.parametrize(
    ("rare", "held_out", "code"),
    [(1, 0.2, "SVFL-LABEL-SPLIT"), (1, 0.9, "SVFL-LABEL-SPLIT"), (0, 0.2, "SVFL-LABEL-CONSTANT")],
)
def test_a_class_too_rare_to_split_is_refused(rare: int, held_out: float, code: str) -> None:
    parties = [labelled((rare > IDS).astype(int)), vfl.Party("shop", X, ids=IDS)]
    with raises_code(errors.LabelError, code):
        vfl.simulate(make_job(SMALL_BATCHES, test_fraction=held_out), parties)


def test_a_sparse_matrix_is_a_table() -> None:
    matrix = sparse.random(N, 5, density=0.5, random_state=0, format="csr")
    party = vfl.Party("shop", matrix, ids=IDS)
    np.testing.assert_array_equal(party.X, matrix.toarray())
    run = vfl.simulate(make_job(SMALL_BATCHES), [labelled(Y), party])
    np.testing.assert_array_equal(
        run.predict_proba({"bank": X, "shop": matrix}), run.predict_proba({"bank": X, "shop": matrix.toarray()})
    )


def test_columns_of_objects_are_named() -> None:
    table = X.astype(object)
    table[:, 1] = [("female",)] * N
    with raises_code(errors.TableError, "SVFL-TABLE-TYPE") as caught:
        vfl.Party("shop", Frame(table, IDS, "id"))
    assert "female" not in str(caught.value)


def test_columns_that_do_not_vary_get_no_weight(tmp_path: Path) -> None:
    table = np.column_stack([X, np.full(N, 7.0)])
    with pytest.warns(errors.DataNotice, match="party shop: columns that do not vary get no weight: x3"):
        shop = vfl.Party("shop", table, ids=IDS)
    for scale in ("standard", "none"):
        job = make_job(SMALL_BATCHES, scale=scale)
        run = vfl.simulate(job, [labelled(Y), shop])
        without = vfl.simulate(job, [labelled(Y), vfl.Party("shop", X, ids=IDS)])
        run.save(tmp_path / scale)
        again = vfl.Run.load(tmp_path / scale)
        new = GENERATOR.normal(size=(5, 4)) * 100
        expected = without.decision({"bank": new[:, :3], "shop": new[:, :3]})
        for either in (run, again):
            np.testing.assert_allclose(either.decision({"bank": new[:, :3], "shop": new}), expected, rtol=1e-12)
    assert "Infinity" not in (tmp_path / "none" / "shop.json").read_text()


def test_a_fold_in_which_a_column_does_not_vary_trains() -> None:
    column = np.where(IDS < 4, 1.0, 0.0)
    fold = IDS[8:]
    with pytest.warns(errors.DataNotice, match="x3"):
        shops = (
            vfl.Party("shop", np.column_stack([X, column]), ids=IDS).take(fold),
            vfl.Party("shop", np.column_stack([X, column])[fold], ids=fold),
        )
    for shop in shops:
        run = vfl.simulate(make_job(SMALL_BATCHES), [labelled(Y).take(fold), shop])
        new = np.column_stack([X, 100 * IDS])
        first = run.decision({"bank": X, "shop": new})
        np.testing.assert_array_equal(first, run.decision({"bank": X, "shop": np.column_stack([X, column])}))


@pytest.mark.parametrize("one", [lambda row: row, lambda row: row[None], lambda row: Frame(row[None], [3])])
def test_one_row_is_predicted(one: Any) -> None:
    names = {"columns": ["c0", "c1", "c2"]}
    run = vfl.simulate(make_job(SMALL_BATCHES), [labelled(Y, **names), vfl.Party("shop", X, ids=IDS, **names)])
    every = run.predict_proba({"bank": X, "shop": X})
    proba = run.predict_proba({"bank": one(X[4]), "shop": one(X[4])})
    np.testing.assert_allclose(proba, every[4:5], rtol=1e-12)
    assert run.predict({"bank": one(X[4]), "shop": one(X[4])}).shape == (1,)
    part: ModelPart = run.parts["shop"]
    with raises_code(errors.TableError, "SVFL-TABLE-COLUMNS"):
        part.table(np.arange(2.0))


def test_the_command_says_what_it_leaves_out(tmp_path: Path) -> None:
    lines = ["id;a;b", *(f"{k};{X[k, 0]};2,5" for k in range(N))]
    (tmp_path / "shop.csv").write_text("\n".join(lines))
    lines = ["id;y;a", *(f"{k};{Y[k]};{X[k, 0]}" for k in range(N))]
    (tmp_path / "bank.csv").write_text("\n".join(lines))
    (tmp_path / "job.toml").write_text(
        'model = "logistic"\nprotocol = {residual = "open"}\noptimizer = {name = "fedbcd", lr = 0.3}\n'
        'accepts = ["columns"]\nbatch_size = 20\nepochs = 1\n'
    )
    data = [f"--data={name}={tmp_path / name}.csv" for name in ("bank", "shop")]
    done = CliRunner().invoke(app, ["train", str(tmp_path / "job.toml"), *data])
    assert done.exit_code == 0, done.output
    assert "party shop: columns that do not vary get no weight: b\n" in done.stderr
    assert "Warning" not in done.stderr


def test_masked_values_are_missing() -> None:
    masked = np.ma.array(X, mask=np.zeros_like(X, bool))
    masked[3:9, 1] = np.ma.masked
    holes = X.copy()
    holes[3:9, 1] = np.nan
    np.testing.assert_array_equal(vfl.Party("shop", masked, ids=IDS).X, holes)
    run = vfl.simulate(make_job(SMALL_BATCHES), [labelled(Y), vfl.Party("shop", masked, ids=IDS)])
    np.testing.assert_array_equal(
        run.predict_proba({"bank": X, "shop": masked}), run.predict_proba({"bank": X, "shop": holes})
    )
    with raises_code(errors.LabelError, "SVFL-LABEL-MISSING"):
        labelled(np.ma.array(Y, mask=IDS == 3))
    with raises_code(errors.LabelError, "SVFL-LABEL-MISSING"):
        run.evaluate({"bank": X, "shop": X}, np.ma.array(Y, mask=IDS == 3))
    with raises_code(errors.IdError, "SVFL-ID-MISSING"):
        vfl.Party("shop", X, ids=np.ma.array(IDS, mask=IDS == 3))


@pytest.mark.parametrize(
    "table",
    ["bank.csv", Path("bank.csv"), iter([[1.0, 2.0]]), [{"a": 1.0}, {"a": 2.0}], {1.0, 2.0}],
    ids=["text", "path", "iterator", "list of dicts", "set"],
)
def test_objects_that_are_no_tables_are_named_by_type(table: Any) -> None:
    with raises_code(errors.TableError, "SVFL-TABLE-SHAPE") as caught:
        vfl.Party("shop", table, aligned=True)
    assert type(table).__name__ in str(caught.value)
    assert "read a file first" in str(caught.value)

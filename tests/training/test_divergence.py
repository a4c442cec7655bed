"""A training that diverges ends with its round and the remedy, under every method, and leaves no model."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_job, raises_code
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.errors import DivergenceError, LabelError, RangeError
from securevfl.families.divergence import (
    DIVERGENCE_FACTOR,
    DIVERGENCE_WINDOW_ROWS,
    DivergenceDetector,
    check_final_loss,
)
from securevfl.models.losses import LOSSES


def numbers(count: int = 3) -> list[vfl.Party]:
    """Return a regression of `count` parties."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 4 * count))
    y, ids = X @ generator.normal(size=4 * count), np.arange(300)
    return [
        vfl.Party(name, X[:, 4 * k : 4 * k + 4], y if k == 0 else None, ids=ids)
        for k, name in enumerate(["bank", "shop", "telco"][:count])
    ]


def square_job(lr: float, residual: Any = "open", sums: Any = "auto", **options: Any) -> vfl.Job:
    optimizer, protocol = vfl.FedBCD(lr=lr, local_steps=2), vfl.Protocol(sum=sums, residual=residual)
    keys = {"batch_size": 60, "epochs": 3, "test_fraction": 0.2, "accepts": ["columns"]} | options
    return make_job(model=vfl.Square(), optimizer=optimizer, protocol=protocol, **keys)


@pytest.mark.parametrize(
    "options",
    [{}, {"residual": vfl.Ckks()}, {"sums": "pairwise"}, {"sums": "cipher"}],
    ids=["open", "ckks", "pairwise", "cipher"],
)
@pytest.mark.long
def test_it_stops_with_the_round_and_the_remedy(options: dict[str, Any]) -> None:
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        vfl.simulate(square_job(5.0, **options), numbers())
    assert vfl.simulate(square_job(0.02, **options), numbers()).metrics["r2"] > 0


@pytest.mark.parametrize("sums", ["pairwise", "cipher"])
def test_a_sum_that_has_no_room_for_a_part_says_so(sums: str) -> None:
    with raises_code(DivergenceError, "SVFL-TRAINING-RANGE"):
        vfl.simulate(square_job(1e12, sums=sums), numbers())


def test_a_kernel_model_stops_too() -> None:
    job = square_job(1e6).model_copy(
        update={
            "model": vfl.Kernel(gamma=0.1, blocks=2, block_size=16, loss="square"),
            "optimizer": vfl.FDSKL(lr=1e6),
            "protocol": vfl.Protocol(sum="direct"),
        }
    )
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        vfl.simulate(job, numbers())


def test_a_last_round_that_explodes_is_seen_in_the_evaluation() -> None:
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        vfl.simulate(square_job(50.0, batch_size=300, epochs=1), numbers())


def test_a_label_far_from_all_others_is_not_called_divergence() -> None:
    parties = numbers(2)
    X, ids = np.random.default_rng(1).normal(size=(9000, 2)), np.arange(9000)
    y = np.zeros(9000)
    y[:9] = 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0, 1e9
    parties = [vfl.Party("bank", X[:, :1], y, ids=ids), vfl.Party("shop", X[:, 1:], ids=ids)]
    with raises_code(LabelError, "SVFL-LABEL-RANGE"):
        vfl.simulate(square_job(0.01, vfl.Ckks(), batch_size=9000, test_fraction=0.0), parties)


@pytest.mark.parametrize("loss", ["logistic", "smooth_hinge", "square"])
def test_few_bad_rows_are_no_divergence_and_many_are(loss: str) -> None:
    watch, y = DivergenceDetector(LOSSES[loss], 10_000), np.ones((8, 1))
    good, bad = np.full((8, 1), 0.9), np.full((8, 1), -30.0)
    for number in range(1, 30):
        watch.add_batch(number, bad if number == 10 and loss != "square" else good, y)
    for number in range(30, 34):
        with suppress(DivergenceError):
            watch.add_batch(number, 100 * bad, y)
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        watch.add_batch(34, 100 * bad, y)
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        DivergenceDetector(LOSSES[loss], 10_000).add_batch(7, np.full((8, 1), np.nan), y)
    check_final_loss(LOSSES[loss], good, y, 3)
    with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
        check_final_loss(LOSSES[loss], 100 * bad, y, 3)
    for row in range(len(good)):
        with raises_code(DivergenceError, "SVFL-TRAINING-DIVERGED"):
            check_final_loss(LOSSES[loss], np.where(np.arange(len(good))[:, None] == row, np.nan, good), y, 3)


def diverged(batches: list[tuple[int, bool]], rows: int) -> int | None:
    """Return the first batch at which the latest batches with at least `rows` rows have too large a loss, by a loop."""
    for last in range(len(batches)):
        window: list[tuple[int, bool]] = []
        for batch in reversed(batches[: last + 1]):
            window.append(batch)
            if sum(size for size, _ in window) >= rows:
                break
        lost = sum(size * (4.9**2 if bad else 0.1**2) for size, bad in window)
        if sum(size for size, _ in window) >= rows and lost > DIVERGENCE_FACTOR * sum(size for size, _ in window):
            return last
    return None


@pytest.mark.parametrize("rows", [24, 64, 200])
@pytest.mark.parametrize("sizes", [[8], [7], [9], [16], [24], [64], [65], [3, 8, 13], [1]])
def test_the_window_is_the_fewest_batches_with_enough_rows(sizes: list[int], rows: int) -> None:
    draw, divergences = np.random.default_rng(len(sizes) * 100 + sizes[0]), 0
    for _ in range(20):
        bad = draw.random(120) < draw.choice([0.2, 0.4, 0.5])
        batches = [(sizes[k % len(sizes)], bool(bad[k])) for k in range(120)]
        watch, raised = DivergenceDetector(LOSSES["square"], rows), None
        for number, (size, is_bad) in enumerate(batches):
            try:
                watch.add_batch(number, np.full((size, 1), 5.9 if is_bad else 1.1), np.ones((size, 1)))
            except DivergenceError:
                raised = number
                break
        assert raised == diverged(batches, min(rows, DIVERGENCE_WINDOW_ROWS))
        divergences += raised is not None
    assert divergences


def test_the_command_says_it_in_a_line_and_saves_nothing(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        'batch_size = 60\naccepts = ["columns"]\nmodel = "square"\nprotocol = {residual = "ckks"}\n'
        'optimizer = {name = "fedbcd", lr = 5}\n'
    )
    for party in numbers(2):
        labels = {} if party.y is None else {"y": party.y}
        np.savez(tmp_path / f"{party.name}.npz", X=party.X, ids=np.arange(300), **labels)
    data = [f"--data={name}={tmp_path / name}.npz" for name in ("bank", "shop")]
    done = CliRunner().invoke(app, ["train", str(tmp_path / "job.toml"), *data, "--save", str(tmp_path / "parts")])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "Lower lr" in done.stderr
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("sums", ["auto", "pairwise", "cipher"])
def test_outputs_that_are_not_finite_are_never_predictions(sums: str) -> None:
    """Weights that have left the numbers, as those of a module may: whichever way parts are added up, no row gets a
    number."""
    parties = numbers()
    run = vfl.simulate(square_job(0.02, sums=sums, epochs=1), parties)
    run.parts["shop"].state["theta"][0] = np.nan
    with pytest.raises((DivergenceError, RangeError)):
        run.predict({party.name: party.X for party in parties})

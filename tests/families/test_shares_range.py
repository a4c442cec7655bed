"""After every chunk of iterations, the parties count the rows whose sums exceed the
lookup table, and open this count.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from builders import raises_code
from typer.testing import CliRunner

import securevfl as vfl
from securevfl.cli.main import app
from securevfl.errors import ConfigError, DivergenceError
from securevfl.families.shares.shares_measures import Measurements
from securevfl.protocols.score_ledger.row_ledger import ScoreLedger
from securevfl.protocols.shares.range_count import COUNT_BITS, OutOfRangeCount
from securevfl.runtime import eventlog
from securevfl.runtime.observer import Event


def whole_batch_job(lr: float, **keys: Any) -> vfl.Job:
    shares = vfl.Protocol(shares=vfl.Shares(chunk=2))
    options = {"batch_size": "all", "epochs": 6, "test_fraction": 0.3, "evaluate_every": 100, "protocol": shares} | keys
    return vfl.Job(model=vfl.Logistic(), optimizer=vfl.FedSGD(lr=lr), **options)


def sure(scale: float) -> list[vfl.Party]:
    """Return tables with separable classes: sums reach 30, and `scale` times as much in 2% of the rows."""
    draw = np.random.default_rng(1)
    X = draw.normal(size=(1200, 14)) * np.where(draw.random((1200, 1)) < 0.02, scale, 1.0)
    y = (X @ np.resize([1.0, -1.0], 14) + 0.1 * draw.normal(size=1200) > 0).astype(int)
    return [vfl.Party("bank", X[:, :6], y=y, aligned=True), vfl.Party("shop", X[:, 6:], aligned=True)]


def played(
    job: vfl.Job, tmp_path: Any, parties: int = 2, tables: list[vfl.Party] | None = None
) -> tuple[list[str], list[OutOfRangeCount]]:
    """Events `far` as they were logged, and the sums that were opened."""
    opened: list[OutOfRangeCount] = []

    def watch(event: Event) -> None:
        if event.direction == "recv" and isinstance(event.message, OutOfRangeCount):
            opened.append(event.message)

    handler = eventlog.write_to(tmp_path / "log")
    try:
        with contextlib.suppress(DivergenceError):  # at its very end
            vfl.simulate(job, tables or vfl.datasets.breast_cancer(parties), workers=1, observe=watch)
    finally:
        handler.close()
        eventlog.LOGGER.removeHandler(handler)
    return [line for line in (tmp_path / "log").read_text().splitlines() if '"far"' in line], opened


@pytest.mark.parametrize("parties", [2, 3])
def test_one_count_is_opened_a_chunk(tmp_path: Any, parties: int) -> None:
    far, opened = played(whole_batch_job(0.1, epochs=4), tmp_path, parties)
    assert not far
    assert len(opened) == 2
    counts = [int.from_bytes(message.total, "little") for message in opened]
    assert all(count < 2**COUNT_BITS for count in counts)  # shares of a sum, each under a separate mask


def test_a_run_beyond_the_table_ends_after_the_first_count(tmp_path: Any) -> None:
    _, opened = played(whole_batch_job(40.0), tmp_path)
    assert len(opened) == 1


def test_the_reported_share_is_one_of_all_sums() -> None:
    """Four classes have four sums a row, nearly all of which are beyond the table after two steps."""
    draw = np.random.default_rng(0)
    X, y = draw.normal(size=(600, 6)), draw.integers(0, 4, 600)
    tables = [vfl.Party("bank", X[:, :3], y, aligned=True), vfl.Party("shop", X[:, 3:], aligned=True)]
    job = vfl.Job(
        model=vfl.GeneralLinear(loss="one_vs_rest"),
        optimizer=vfl.FedSGD(lr=2000.0),
        protocol=vfl.Protocol(shares=vfl.Shares(chunk=2)),
        batch_size="all",
        epochs=4,
        accepts=["small_metrics"],
    )
    with pytest.raises(DivergenceError) as refused:
        vfl.simulate(job, tables)
    assert 0.5 < refused.value.fields["share"] <= 1


@pytest.mark.parametrize("model", ["logistic", "one_vs_rest", "square"])
def test_a_table_that_is_too_small_is_refused_or_covers_all_sums(model: str) -> None:
    """64 entries at distance 1/4 once wrapped without an error; without table_bits, the
    default covers the same sums.
    """
    draw = np.random.default_rng(4)
    X = draw.normal(size=(1500, 6))
    X[::12] *= 1.8  # three times as many sums beyond the small table as the limit, whichever rows are counted
    f = X @ np.array([3.0, -2.0, 1.0, 2.0, -1.0, 1.0])
    y = np.digitize(f, np.quantile(f, [0.02, 0.5])) if model == "one_vs_rest" else (f > np.quantile(f, 0.98)) * 1
    y = f if model == "square" else y
    tables = [vfl.Party("bank", X[:, :3], y, aligned=True), vfl.Party("shop", X[:, 3:], aligned=True)]
    step = 1 / 16 if model == "square" else 0.25
    small = vfl.Job(
        model=model, epochs=16, protocol={"shares": {"step": step, "table_bits": 6}}, accepts=["small_metrics"]
    )
    with pytest.raises(DivergenceError, match="table_bits"):
        vfl.simulate(small, tables)
    wide = vfl.Job(model=model, epochs=16, protocol={"shares": {"step": step}}, accepts=["small_metrics"])
    assert wide.protocol.shares is not None
    assert wide.protocol.shares.table_bits == 8
    vfl.simulate(wide, tables)


def test_a_table_that_covers_next_to_nothing_is_refused() -> None:
    with raises_code(ConfigError, "SVFL-JOB-OPTION"):
        vfl.Job(model="square", protocol={"shares": {"step": 2.0**-6, "table_bits": 6}})


@pytest.mark.parametrize(("scale", "refused"), [(1.5, False), (6.0, True)])
def test_sums_of_rows_that_a_model_is_sure_of_are_covered(scale: float, refused: bool, tmp_path: Any) -> None:
    """Sums of the right sign beyond 32, half of the table, are read correctly; a training with larger ones ends."""
    tables = sure(scale)
    job_file, files = tmp_path / "job.toml", {party.name: tmp_path / f"{party.name}.csv" for party in tables}
    job_file.write_text('model = "logistic"\ntest_fraction = 0\n')
    for party in tables:
        columns = party.X if party.y is None else np.column_stack([party.X, party.y])
        heads = ["id", *(f"{party.name}{j}" for j in range(party.X.shape[1])), *(["y"] if party.active else [])]
        lines = [",".join(map(repr, [k, *row])) for k, row in enumerate(columns.tolist())]
        files[party.name].write_text("\n".join([",".join(heads), *lines]) + "\n")
    data = [word for name, file in files.items() for word in ("--data", f"{name}={file}")]
    printed = CliRunner().invoke(app, ["train", str(job_file), *data])
    assert (printed.exit_code != 0) == refused
    assert ("table_bits by one or two" in " ".join(printed.output.split())) == refused
    if not refused:
        run = vfl.simulate(vfl.Job(model="logistic", test_fraction=0), tables, workers=1)
        sums = np.abs(run.decision({party.name: party.X for party in tables}))
        assert (sums > 32).any()
        assert not (sums > 49).any()


def test_half_the_table_entries_suffice_for_sums_of_thirty() -> None:
    """With tables up to 15 on either side of 0, this training failed."""
    shares = vfl.Protocol(shares=vfl.Shares(table_bits=5))
    run = vfl.simulate(
        whole_batch_job(0.3, epochs=12, batch_size=128, protocol=shares), vfl.datasets.breast_cancer(), workers=1
    )
    assert run.metrics["auc"] > 0.98


def test_counts_are_said_and_counted() -> None:
    parties = vfl.datasets.breast_cancer()
    sheet = vfl.explain(whole_batch_job(0.1), parties)
    assert "3 counts of rows near the end of the lookup table's range" in sheet


@pytest.mark.usefixtures("score_ledgers")
@pytest.mark.parametrize("accepts", [[], ["small_metrics"]])
def test_the_partners_ledger_limits_counts_of_rows(
    accepts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The ledger lets 398 training rows be counted in three of five chunks and in no later run. Training continues."""
    ledger = ScoreLedger(tmp_path / "scores")
    for name in ("check", "_record_evaluation"):
        monkeypatch.setattr(Measurements, name, lambda *_: None)
    monkeypatch.setattr("securevfl.families.shares.shares_participant.ScoreLedger", lambda _: ledger)
    for limit in (3, 0):
        shares = vfl.Protocol(shares=vfl.Shares(chunk=1))
        _, opened = played(whole_batch_job(0.1, epochs=5, accepts=accepts, protocol=shares), tmp_path)
        assert [bool(count.total) for count in opened] == [bool(accepts) or number < limit for number in range(5)]

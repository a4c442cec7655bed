"""The costs that the consent sheet forecasts, compared with the measured costs of the training."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.errors import SecureVFLError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.protocols.shares.preprocessing_store import MemoryStore

ROWS = 12_000


def noise_parties(widths: tuple[int, ...], classes: int = 2, rows: int = ROWS) -> list[vfl.Party]:
    draw = np.random.default_rng(1)
    y = draw.integers(0, classes, rows)
    columns = [draw.normal(size=(rows, d)) for d in widths]
    names = "abc"[: len(widths)]
    return [
        vfl.Party(name, X, y if name == "a" else None, aligned=True) for name, X in zip(names, columns, strict=True)
    ]


def block_descent_job(**keys: Any) -> vfl.Job:
    defaults = {
        "model": "logistic",
        "optimizer": vfl.BlockDescent(),
        "batch_size": "all",
        "epochs": 8,
        "protocol": "shares",
    }
    return vfl.Job(**(defaults | keys))


def printed_number(sheet: str, what: str) -> float:
    """Return the number of bytes that the sheet prints before `what`."""
    number, unit = re.search(rf"([\d.e+]+) (B|kB|MB|GB) {what}", " ".join(sheet.split())).groups()  # type: ignore[union-attr]
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The sizes of the chunks that each party's store has received, in order, with the transfers of chunks on disk."""
    sizes, keep = dict[int, list[int]](), MemoryStore.write

    def noted(self: MemoryStore, number: int, *arguments: Any, **keys: Any) -> None:
        keep(self, number, *arguments, **keys)
        sizes.setdefault(id(self), []).append(self.chunk(number).size)

    for attribute, value in (("write", noted), ("on_disk", True)):
        monkeypatch.setattr(MemoryStore, attribute, value)
    return sizes


@pytest.mark.parametrize(
    ("widths", "keys"),
    [
        ((4, 4), {}),
        ((3, 3, 3), {}),
        ((4, 4), {"model": "one_vs_rest", "epochs": 3}),
        ((4, 4), {"batch_size": "growing", "epochs": 14}),
        ((4, 4), {"epochs": 30}),
    ],
    ids=["two", "three", "classes", "growing", "three chunks"],
)
def test_bytes_and_preprocessing_are_as_forecast(
    widths: tuple[int, ...], keys: dict[str, Any], written: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MIN_GROWING_ROWS", 10_000), ("MIN_SUBSET_ROWS", 2_000)):
        monkeypatch.setattr(f"securevfl.data.schedule.{name}", value)
    rows = ROWS if keys.get("batch_size") == "growing" else 6000
    parties, work = noise_parties(widths, 3 if "model" in keys else 2, rows), block_descent_job(**keys)
    sheet = vfl.explain(work, parties)
    run = vfl.simulate(work, parties)
    assert printed_number(sheet, "sent") == pytest.approx(run.costs.bytes, rel=0.15)
    # a chunk is generated while the one before is in use
    at_a_time = max(sum(sizes[first : first + 2]) for sizes in written.values() for first in range(len(sizes)))
    assert printed_number(sheet, "of preprocessing") == pytest.approx(at_a_time, rel=0.05)


@pytest.mark.parametrize(("limit", "chunks", "epochs"), [(1 << 29, 2, 20), (1 << 19, 3, 14)])
def test_chunks_are_as_large_as_there_is_room(
    limit: int, chunks: int, epochs: int, written: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securevfl.families.shares.chunk_division.MAX_PREPROCESSING_BYTES", limit)
    parties, work = noise_parties((2, 2), rows=600), block_descent_job(epochs=20)
    sheet = vfl.explain(work, parties)
    vfl.simulate(work, parties)
    assert {len(sizes) for sizes in written.values()} == {chunks}
    assert f"(for at most {epochs} epochs)" in sheet


def test_columns_count_as_the_model_makes_them() -> None:
    """Of trees each leaf is one, and each cosine, a third of them: 6 bytes a row of disk; a block of rows with all of
    them is in memory."""
    sheets = [vfl.explain(block_descent_job(model=model), noise_parties((4, 4))) for model in ("logistic", "trees")]
    disk, memory = (
        [printed_number(sheet, what) for sheet in sheets] for what in ("of disk", r"of memory and \S+ \S+ of disk")
    )
    assert disk[1] - disk[0] == pytest.approx(6 * ROWS * 100 * 16, rel=0.15)
    assert memory[1] - memory[0] == pytest.approx(12 * ROWS * 100 * 16, rel=0.15)


def refusal(act: Callable[[], object]) -> tuple[str, str]:
    """Return the code and the text of the error with which an act is refused."""
    with pytest.raises(SecureVFLError) as refused:
        act()
    return refused.value.code, str(refused.value)


TOO_LARGE: dict[str, tuple[int, dict[str, Any], list[dict[str, Any]]]] = {
    "too many bits": (20_000, {"optimizer": vfl.BlockDescent(lr=1e-5)}, [{"optimizer": vfl.BlockDescent(lr=0.5)}]),
    "one batch": (200, {"epochs": 2049}, [{"epochs": 2048}]),
    "several batches": (200, {"epochs": 513, "batch_size": 40}, [{"batch_size": "all"}, {"epochs": 409}]),
}
"""Rows, options that need too much, and changes of options that the error names, each of which suffices."""


@pytest.mark.parametrize("case", TOO_LARGE)
def test_explain_refuses_what_a_run_refuses(case: str) -> None:
    rows, keys, remedies = TOO_LARGE[case]
    parties = noise_parties((2, 2), rows=rows)
    job = block_descent_job(**keys)
    alone = partial(vfl.explain, job, parties[:1], others={parties[1].name: 2})
    refusals = {refusal(act) for act in (lambda: vfl.explain(job, parties), alone, lambda: vfl.simulate(job, parties))}
    assert len(refusals) == 1
    ((code, text),) = refusals
    assert code == "SVFL-JOB-TOO-LARGE"
    for remedy in remedies:
        (option,) = remedy
        assert option in text
        vfl.explain(block_descent_job(**(keys | remedy)), parties)


@pytest.mark.parametrize("rarest", [0, 1, 5])
def test_the_rarest_label_is_counted_among_evaluated_rows(rarest: int) -> None:
    """Also where none of them is held out; the class that only training rows have is the rarest there."""
    job = vfl.Job(model=vfl.OneVsRest(), test_fraction=0.3)
    X = np.random.default_rng(0).normal(size=(900, 4))
    ids = np.arange(900)
    register = vfl.Party("bank", X, np.zeros(900), ids=ids).register
    schedule, labels = job.schedule(register), np.arange(900) % 3
    labels[schedule.train[:40]] = 3
    labels[schedule.test] = np.arange(len(schedule.test)) % 3
    labels[schedule.test[:rarest]] = 3
    parties = [vfl.Party("bank", X[:, :2], labels, ids=ids), vfl.Party("shop", X[:, 2:], ids=ids)]
    assert pooled_run_facts(job, parties).shape.rarest_label_rows == rarest

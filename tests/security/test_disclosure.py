"""Counts of a run's disclosures and refusals by the leak checks, also for the table of a single party."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from builders import disclosures_in_run

import securevfl as vfl
from securevfl.consent.leak_check import leaks
from securevfl.data.schedule import Schedule
from securevfl.disclosure.column_recovery import MAX_NUMBERS_PER_COLUMN, numbers_for_recovery, variance_share
from securevfl.disclosure.counts import Disclosure, RunShape, earlier_share
from securevfl.errors import LeakageError
from securevfl.families.run_shape import derive_run_shape
from tests.builders import raises_code, sheet_part


def counts(job: vfl.Job, known: RunShape) -> list[Disclosure]:
    return disclosures_in_run(job, known)


def sealed_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.1),
        "batch_size": 50,
        "epochs": 4,
    }
    defaults |= {"protocol": vfl.Protocol(residual=vfl.Ckks())}
    return vfl.Job(**(defaults | keys))


def sizes(job: vfl.Job, columns: Mapping[str, int], *, outputs: int = 1, rows: int = 200, **more: object) -> RunShape:
    schedule = Schedule(
        rows,
        batch_size=job.batch_size,
        epochs=job.epochs,
        seed=job.seed,
        test_fraction=job.test_fraction,
        reshuffle=job.reshuffle,
    )
    columns = {"bank": 9} | dict(columns)
    return derive_run_shape(job, schedule, active="bank", columns=columns, outputs=outputs, **more)  # type: ignore[arg-type]


TWO, THREE = {"shop": 20}, {"shop": 20, "post": 30}
SEQUENTIAL_KEYS = {"optimizer": vfl.FedBCD(lr=0.1, mode="sequential")}
ALL_ROWS_KEYS = {"optimizer": vfl.BlockNewton(), "batch_size": "all"}
OPEN = {"protocol": vfl.Protocol(residual="open")}


@pytest.mark.parametrize(
    ("keys", "columns", "outputs", "expected"),
    [
        ({}, TWO, 1, {("bank", ("shop",)): (5, 20)}),  # four epochs and the evaluation at the end
        ({"test_fraction": 0.25}, TWO, 1, {("bank", ("shop",)): (4, 20)}),
        ({}, TWO, 3, {("bank", ("shop",)): (15, 20)}),
        ({"evaluate_every": 2}, TWO, 1, {("bank", ("shop",)): (4 + 16 // 2 + 1, 20)}),
        ({"batch_size": "all"}, TWO, 1, {("bank", ("shop",)): (4, 20)}),  # weights of the first exchange are zero
        (ALL_ROWS_KEYS | {"test_fraction": 0.25}, TWO, 3, {("bank", ("shop",)): (9, 20)}),
        ({}, THREE, 1, {("bank", ("shop", "post")): (5, 50)}),
        (
            {"protocol": vfl.Protocol(sum="direct", residual=vfl.Ckks())},
            THREE,
            1,
            {("bank", ("shop",)): (5, 20), ("bank", ("post",)): (5, 30)},
        ),
        (
            SEQUENTIAL_KEYS,
            THREE,
            1,
            {("bank", ("shop", "post")): (9, 50), ("bank", ("shop",)): (4, 20), ("bank", ("post",)): (4, 30)},
        ),
        (OPEN, TWO, 1, {("bank", ("shop",)): (5, 20), ("shop", ("bank",)): (4, 9)}),
        (
            OPEN,
            THREE,
            1,
            {
                ("bank", ("shop", "post")): (5, 50),
                ("shop", ("bank", "post")): (4, 39),
                ("post", ("bank", "shop")): (4, 29),
            },
        ),
    ],
)
def test_numbers_about_columns(
    keys: dict[str, object], columns: Mapping[str, int], outputs: int, expected: dict[object, tuple[int, int]]
) -> None:
    job = sealed_job(**keys)
    results = {
        (item.learner, item.about): (item.count, item.capacity)
        for item in counts(job, sizes(job, columns, outputs=outputs))
        if item.kind == "columns" and item.group == "training"
    }
    assert results == expected


def test_the_counts_are_those_of_the_sent_numbers() -> None:
    job = sealed_job(test_fraction=0.25, evaluate_every=3, accepts=["columns"])
    parties = vfl.datasets.breast_cancer()
    seen: dict[int, int] = {}
    sent: list[int] = []
    vfl.simulate(job, parties, observe=lambda e: sent.append(len(e.message.values)) if is_part(e) else None)
    schedule = Schedule(569, batch_size=50, epochs=4, seed=0, test_fraction=0.25, reshuffle=False)
    for rows in sent:
        seen[rows == len(schedule.test)] = seen.get(rows == len(schedule.test), 0) + rows
    counted = {
        item.group: item.count for item in counts(job, sizes(job, {"shop": 15}, rows=569)) if item.kind == "columns"
    }
    assert counted == {"training": seen[False] / len(schedule.train), "held out": seen[True] / len(schedule.test)}
    scores = [item for item in counts(job, sizes(job, {"shop": 15}, rows=569)) if item.kind == "scores"]
    assert [item.count for item in scores] == [seen[True]]


def test_the_first_exchange_on_all_rows_reveals_nothing() -> None:
    lines: list[np.ndarray] = []
    vfl.simulate(
        sealed_job(test_fraction=0.25, accepts=["columns"], **ALL_ROWS_KEYS),
        vfl.datasets.breast_cancer(),
        observe=lambda e: lines.append(e.message.values) if is_part(e) else None,  # type: ignore[attr-defined]
    )
    assert [bool(values.any()) for values in lines] == [False, True, True, True, True]


def is_part(event: object) -> bool:
    return type(event.message).__name__ == "Summand" and event.direction == "recv"  # type: ignore[attr-defined]


def test_equations_about_labels() -> None:
    job = sealed_job()
    first, second = (item for item in counts(job, sizes(job, THREE, outputs=2)) if item.kind == "labels")
    assert (first.learner, first.count, first.capacity) == ("shop", 40, 100)
    assert (second.learner, second.count, second.capacity) == ("post", 60, 100)
    shuffled = sealed_job(reshuffle=True)
    assert next(iter(counts(shuffled, sizes(shuffled, TWO)))).count == 4 * 20
    opened = sealed_job(**OPEN)
    assert next(iter(counts(opened, sizes(opened, TWO)))).share == 1


def test_kernel_jobs_count_neither_equations_nor_columns() -> None:
    job = vfl.Job(model=vfl.Kernel(gamma=0.1), optimizer=vfl.FDSKL(), protocol=vfl.Protocol(), batch_size=50)
    assert {item.kind for item in counts(job, sizes(job, THREE))} == {"scores"}


def test_only_different_equations_add_up() -> None:
    job = sealed_job()
    table = {"shop": "digest of the columns"}
    again = next(iter(counts(job, sizes(job, TWO, tables=table))))
    assert earlier_share(again, [again, again]) == 0
    other = next(iter(counts(sealed_job(batch_size=40), sizes(sealed_job(batch_size=40), TWO, tables=table))))
    assert earlier_share(again, [other, other]) == pytest.approx(20 / 40)
    unknown = next(iter(counts(job, sizes(job, TWO))))
    # without digests of the columns, it is unknown whether the earlier jobs had the same table, so both count
    assert earlier_share(unknown, [unknown, unknown]) == pytest.approx(2 * 20 / 50)
    named = {leak.name for leak in leaks(job, sizes(job, TWO, tables=table), [other])}
    assert "fresh_equations" in named
    assert "rank" not in named
    assert "rank" in {leak.name for leak in leaks(job, sizes(job, TWO, tables=table), [other, unknown, unknown])}
    assert not leaks(job, sizes(job, TWO, tables=table), [again])


def test_numbers_about_columns_add_up_over_jobs() -> None:
    job = sealed_job(epochs=1)
    of_this = sizes(job, TWO)
    displayed = next(item for item in counts(job, of_this) if item.kind == "columns")
    assert not leaks(job, of_this, [displayed] * 3)
    assert [leak.name for leak in leaks(job, of_this, [displayed] * 4)] == ["columns"]
    other_name = [replace(displayed, learner=name) for name in ("bank 2", "bank 3", "bank 4", "post")]
    assert not leaks(job, of_this, other_name[:3])
    assert [leak.name for leak in leaks(job, of_this, other_name)] == ["columns"]


def test_label_auc_counts_earlier_equations() -> None:
    job = sealed_job(max_label_auc=0.9)
    assert "label_auc" not in {leak.name for leak in leaks(job, sizes(job, TWO))}
    lines = [Disclosure("labels", "shop", ("bank",), 20, 50)]
    assert "label_auc" in {leak.name for leak in leaks(job, sizes(job, TWO), lines)}


@pytest.mark.parametrize(
    ("keys", "columns", "who"),
    [
        ({"epochs": 9}, TWO, "bank"),
        ({"epochs": 24}, THREE, "bank"),
        (OPEN | {"epochs": 5}, {"shop": 200}, "shop"),
    ],
)
def test_numbers_from_half_of_the_columns_are_refused(
    keys: dict[str, object], columns: Mapping[str, int], who: str
) -> None:
    job = sealed_job(**keys)
    results = [leak for leak in leaks(job, sizes(job, columns, rows=4000)) if leak.name == "columns"]
    assert [leak.who for leak in results] == [who]
    shorter = job.model_copy(update={"epochs": job.epochs - 1})
    assert not leaks(shorter, sizes(shorter, columns, rows=4000))


def test_a_single_column_is_always_refused() -> None:
    job = sealed_job(epochs=1, test_fraction=0.2)
    assert [leak.name for leak in leaks(job, sizes(job, {"shop": 1}))] == ["columns"]


def test_the_remedy_and_the_consent() -> None:
    parties = vfl.datasets.breast_cancer()
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("columns",)):
        vfl.simulate(sealed_job(epochs=10), parties)
    assert vfl.simulate(sealed_job(epochs=10, accepts=["columns"]), parties).costs.rounds > 0
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("columns", "columns")):
        vfl.simulate(sealed_job(epochs=10, **OPEN), parties)
    sheet = vfl.explain(sealed_job(epochs=10), parties)
    assert "11 x 1 numbers about each training row. They reveal 0.73 of the dimensions of the 15 columns" in sheet
    assert "would be refused: disclosure to bank: it receives 11 numbers" in sheet
    assert "accepted: disclosure to bank: it receives" in vfl.explain(
        sealed_job(epochs=10, accepts=["columns"]), parties
    )


def test_sequential_sums_are_refused_and_stated() -> None:
    parties = vfl.datasets.breast_cancer(4)
    job = sealed_job(epochs=1, test_fraction=0.2, **SEQUENTIAL_KEYS)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("sequential",)):
        vfl.simulate(job, parties)
    assert "fewer than" not in vfl.explain(job, parties)
    assert "fewer than" in vfl.explain(sealed_job(), parties)
    direct = job.model_copy(update={"protocol": vfl.Protocol(sum="direct", residual=vfl.Ckks())})
    assert "sequential" not in {leak.name for leak in leaks(direct, sizes(direct, THREE))}


def test_the_sheet_lists_partial_scores_and_session_messages() -> None:
    sheet = vfl.explain(sealed_job(), vfl.datasets.breast_cancer())
    passive = sheet_part(sheet, "shop")
    assert "X_k theta_k, which ranks the labels" in passive
    for message in ("RunHello", "Abort"):
        assert f"{message} from active" in passive
    assert "StopDecision from lead" in passive
    assert "own part" not in vfl.explain(sealed_job(model=vfl.Square()), vfl.datasets.diabetes())


def bits(n: int, d: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.random((n, d)) < generator.uniform(0.2, 0.8, d)).astype(float)


def test_the_numbers_that_determine_a_table() -> None:
    generator = np.random.default_rng(1)
    reals = generator.normal(size=(400, 12))
    assert numbers_for_recovery(reals) == MAX_NUMBERS_PER_COLUMN * 12
    assert numbers_for_recovery(bits(400, 12)) == pytest.approx(12 / 25)
    assert numbers_for_recovery(bits(400, 12) * 7.1 - 3) == pytest.approx(12 / 25)
    assert numbers_for_recovery(np.column_stack([reals[:, :2], bits(400, 5)])) == pytest.approx(1 + 5 / 25)
    together = reals[:, :1] + 0.1 * generator.normal(size=(400, 12))
    assert numbers_for_recovery(together) == 1
    one_hot = np.eye(5)[generator.integers(0, 5, 400)]
    assert numbers_for_recovery(one_hot) == pytest.approx(4 / 25)
    assert numbers_for_recovery(np.ones((10, 2))) == np.inf


def test_the_share_of_columns_that_numbers_contain() -> None:
    reals = np.random.default_rng(0).normal(size=(5000, 10))
    assert variance_share(reals, 5) == pytest.approx(0.5, abs=0.03)
    assert variance_share(np.repeat(reals[:, :2], 5, axis=1), 2) == pytest.approx(1)
    assert variance_share(reals, 40) == pytest.approx(1)


def test_a_party_refuses_by_its_own_table() -> None:
    generator = np.random.default_rng(0)
    bank = vfl.Party("bank", generator.normal(size=(200, 5)), generator.integers(0, 2, 200), aligned=True)
    job = sealed_job(epochs=1)
    assert vfl.simulate(job, [bank, vfl.Party("shop", generator.normal(size=(200, 12)), aligned=True)])
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("columns",)):
        vfl.simulate(job, [bank, vfl.Party("shop", bits(200, 12), aligned=True)])

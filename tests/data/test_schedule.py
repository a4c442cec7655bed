"""The partition of rows into batches depends only on the ids of the table; the seed orders the batches."""

import hashlib
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_job
from hypothesis import given
from hypothesis import strategies as st

import securevfl as vfl
from securevfl.data.id_keys import ID_DIGEST, id_keys, order_by_value, stable_order
from securevfl.data.party import register_of
from securevfl.data.register import Register
from securevfl.data.schedule import (
    MAX_SUBSET_ROWS,
    MIN_GROWING_ROWS,
    MIN_SUBSET_ROWS,
    SUBSET_FACTOR,
    Schedule,
    rows_of_epochs,
    subset_sizes,
)

N = 400
IDS = np.array([f"person-{i}" for i in range(N)])
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N, 3))
Y = (X[:, 0] > 0).astype(int)


def schedule(
    rows: int | Register,
    *,
    batch: int = 50,
    epochs: int = 3,
    seed: int = 0,
    test: float = 0.25,
    reshuffle: bool = False,
    split: int = 0,
) -> Schedule:
    return Schedule(
        rows, batch_size=batch, epochs=epochs, seed=seed, test_fraction=test, reshuffle=reshuffle, split=split
    )


def by_id(plan: Schedule, ids: np.ndarray = IDS) -> tuple[list[str], list[list[str]]]:
    """Return held-out ids, and those of each batch in order."""
    return sorted(ids[plan.test]), [list(ids[rows]) for rows in plan.partition(0)]


def of(ids: np.ndarray) -> Register:
    return Register.of_ids(id_keys("shop", [ids.tolist()]))


@pytest.mark.parametrize("rows", [N, of(IDS)], ids=["numbers", "ids"])
def test_the_seed_orders_visits_and_nothing_else(rows: int | Register) -> None:
    one, other = schedule(rows, seed=1), schedule(rows, seed=2)
    assert by_id(one) == by_id(other)
    assert one.name == other.name
    orders = [[visit.index for visit in plan.iterations()] for plan in (one, other)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    for plan in (one, other):
        parts = plan.partition(0)
        assert all(np.array_equal(visit.rows, parts[visit.index]) for visit in plan.iterations())


def test_batches_part_the_training_rows_evenly() -> None:
    plan = schedule(of(IDS), batch=70)
    parts = plan.partition(0)
    assert sorted(np.concatenate([*parts, plan.test])) == list(range(N))
    assert {len(part) for part in parts} == {plan.smallest_batch} == {60}
    assert len(plan.test) == 100
    np.testing.assert_array_equal(plan.batch_order, np.concatenate(parts))
    np.testing.assert_array_equal(np.sort(plan.batch_order), plan.train)


def test_all_is_one_batch_of_the_training_rows() -> None:
    plan = Schedule(of(IDS), batch_size="all", epochs=2, seed=0, test_fraction=0.25, reshuffle=False)
    assert plan.batches == 1
    assert len(plan) == 2
    assert [sorted(visit.rows) for visit in plan.iterations()] == [plan.train.tolist()] * 2
    assert plan.name == schedule(of(IDS), batch=300).name
    for fits in ("all", 300):
        job = vfl.Job(
            model=vfl.Logistic(),
            optimizer=vfl.FedSGD(lr=1.0),
            protocol=vfl.Protocol(residual="open"),
            batch_size=fits,  # type: ignore[arg-type]
        )
        assert vfl.Job.from_dict(job.to_dict()).batch_size == fits
        assert job.schedule(of(IDS[:300])).batches == 1


@pytest.mark.parametrize("rows", [199_999, 200_000, 262_145, 900_000, 5_000_000])
def test_parts_grow_fourfold_up_to_all_rows_or_the_most(rows: int) -> None:
    parts = subset_sizes(rows)
    assert parts[-1] == min(rows, MAX_SUBSET_ROWS)
    assert all(MIN_SUBSET_ROWS <= one == other // SUBSET_FACTOR for one, other in pairwise(parts))
    assert (len(parts) == 1) == (rows < MIN_GROWING_ROWS)
    assert len(parts) == 1 or parts[0] < SUBSET_FACTOR * MIN_SUBSET_ROWS


def grown(rows: int | Register, *, epochs: int = 30, most: int = 200, split: int = 0) -> Schedule:
    """Return a schedule of growing subsets of 12, 50 and at most 200 rows."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MIN_GROWING_ROWS", 100), ("MIN_SUBSET_ROWS", 10), ("MAX_SUBSET_ROWS", most)):
            patch.setattr(f"securevfl.data.schedule.{name}", value)
        return Schedule(
            rows, batch_size="growing", epochs=epochs, seed=0, test_fraction=0.25, reshuffle=False, split=split
        )


@pytest.mark.parametrize("batch_size", [70, "all", "growing"])
@pytest.mark.parametrize("reshuffle", [False, True])
def test_an_iteration_by_its_number_is_that_of_the_iterator(batch_size: Any, reshuffle: bool) -> None:
    plan = Schedule(
        of(IDS), batch_size=batch_size, epochs=7, seed=0, test_fraction=0.25,
        reshuffle=reshuffle and batch_size == 70,
    )  # fmt: skip
    iterations = list(plan.iterations())
    ahead = [(number, plan.iteration(number), plan.iteration(number + 2)) for number in range(len(plan))]
    for number, iteration, later in ahead:
        for result, expected in ((iteration, iterations[number]), (later, (iterations + [None] * 2)[number + 2])):
            assert (result is None) == (expected is None)
            if result is not None and expected is not None:
                assert (result.index, result.epoch) == (expected.index, expected.epoch)
                np.testing.assert_array_equal(result.rows, expected.rows)
    changed = plan.with_training_rows(plan.train[: len(plan.train) // 2])
    first = changed.iteration(0)
    assert first is not None
    np.testing.assert_array_equal(first.rows, next(changed.iterations()).rows)


@pytest.mark.parametrize("epochs", [0, 1, 4, 5, 10, 30])
def test_subsets_are_nested_and_the_largest_one_is_used_last(epochs: int) -> None:
    plan = grown(of(IDS), epochs=epochs)
    small, middle, large = plan.partition(0)
    assert [len(small), len(middle), len(large)] == [12, 50, 200]
    assert set(small) < set(middle) < set(large) < set(plan.train)
    np.testing.assert_array_equal(np.sort(plan.batch_order), plan.train)
    visits = list(plan.iterations())
    assert [visit.index for visit in visits] == ([0] * 20 + [1] * 6 + [2] * 4)[30 - epochs :]
    assert len(plan) == len(visits) == epochs
    assert plan.subset_iterations == sum(visit.index < 2 for visit in visits)
    assert all(np.array_equal(visit.rows, plan.partition(0)[visit.index]) for visit in visits)


@pytest.mark.parametrize("epochs", [40, 41, 100])
def test_long_trainings_use_the_largest_subset_three_fifths(epochs: int) -> None:
    visits = [visit.index for visit in grown(of(IDS), epochs=epochs).iterations()]
    final = 3 * epochs // 5
    assert visits == [0] * (epochs - final - 6) + [1] * 6 + [2] * final


@pytest.mark.parametrize(("rows", "batch_size"), [(50_000, "growing"), (750_000, "growing"), (750_000, "all"), (9, 3)])
def test_rows_of_epochs_are_those_of_the_schedule(rows: int, batch_size: Any) -> None:
    for epochs in (3, 30, 40):
        own = Schedule(rows, batch_size=batch_size, epochs=epochs, seed=0, test_fraction=0.0, reshuffle=False)
        by_epoch = [0] * epochs
        for visit in own.iterations():
            by_epoch[visit.epoch] += len(visit.rows)
        assert rows_of_epochs(rows, epochs, batch_size) == by_epoch


def test_names_differ_exactly_where_partitions_do() -> None:
    """Over held-out rows, batch sizes and numbers of batches, several of which give equal numbers of batches."""
    plans = [
        schedule(of(IDS), batch=batch, test=test) for batch in (50, 60, 300, 400) for test in (0.0, 0.2, 0.25, 0.3)
    ]
    for one in plans:
        for other in plans:
            assert (one.name == other.name) == (by_id(one) == by_id(other)), (len(one.test), one.batches, other.batches)


def test_parts_are_drawn_by_ids_alone() -> None:
    plan, order = grown(of(IDS)), GENERATOR.permutation(N)
    assert by_id(plan) == by_id(grown(of(IDS[order])), IDS[order])
    others = [grown(of(IDS), split=1), grown(of(IDS), most=100), schedule(of(IDS), batch=300)]
    assert len({plan_of.name for plan_of in (plan, *others)}) == 4


def test_rows_that_inputs_are_made_by_are_drawn_by_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.array_equal(schedule(of(IDS)).fitting_rows, schedule(of(IDS)).train)
    monkeypatch.setattr("securevfl.data.schedule.MAX_FITTING_ROWS", 50)
    order, plan = GENERATOR.permutation(N), schedule(of(IDS))
    other = schedule(of(IDS[order]))
    assert sorted(IDS[plan.fitting_rows]) == sorted(IDS[order][other.fitting_rows])
    for plan_of in (plan, other, schedule(N)):
        assert len(np.unique(plan_of.fitting_rows)) == 50
        assert np.isin(plan_of.fitting_rows, plan_of.train).all()
        assert (np.diff(plan_of.fitting_rows) > 0).all()


def test_a_table_of_few_rows_does_not_grow() -> None:
    small = [
        Schedule(N, batch_size=b, epochs=3, seed=0, test_fraction=0.25, reshuffle=False) for b in ("all", "growing")
    ]
    assert small[0].name == small[1].name
    assert [visit.rows.tolist() for visit in small[0].iterations()] == [
        visit.rows.tolist() for visit in small[1].iterations()
    ]
    assert not small[1].uses_subsets
    assert small[1].subset_iterations == 0


def test_the_order_of_the_rows_does_not_matter() -> None:
    for _ in range(5):
        order = GENERATOR.permutation(N)
        assert by_id(schedule(of(IDS[order])), IDS[order]) == by_id(schedule(of(IDS)))


def test_ids_of_any_type_give_the_same_batches() -> None:
    numbers, text = np.arange(N), np.arange(N).astype(str)
    assert by_id(schedule(of(numbers))) == by_id(schedule(of(text)))


def test_equal_held_out_counts_give_equal_batches() -> None:
    for batch, test in product((43, 49, 50, 50), (0.25, 0.2501, 0.2499)):
        plan = schedule(of(IDS), batch=batch, test=test)
        alike = (plan.batches, len(plan.test)) == (6, 100)
        assert (by_id(plan) == by_id(schedule(of(IDS)))) == alike == (plan.name == schedule(of(IDS)).name)


def batches_by_id(
    *,
    batch: int = 150,
    test: float = 0.1,
    split: int = 0,
    first: int = 0,
    epoch: int = 0,
    numbers: bool = False,
    grows: bool = False,
) -> tuple[list[str], list[set[str]]]:
    """Return the held-out ids and those of each batch, of a table with the ids from number `first` to 1999."""
    ids = np.array([f"p{i}" for i in range(first, 2000)])
    rows = len(ids) if numbers else of(ids)
    fixed = schedule(rows, batch=batch, test=test, split=split, reshuffle=True)
    plan = grown(rows, split=split) if grows else fixed
    return sorted(ids[plan.test]), [set(ids[part]) for part in plan.partition(epoch)]


OTHER_PARTITIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "batches": ({}, {"batch": 170}),
    "held out": ({}, {"test": 0.101}),
    "split": ({}, {"split": 1}),
    "split without held-out rows": ({"test": 0.0}, {"test": 0.0, "split": 1}),
    "split of growing subsets": ({"grows": True}, {"grows": True, "split": 1}),
    "rows": ({}, {"first": 1}),
    "numbers": ({}, {"numbers": True}),
    "epoch": ({}, {"epoch": 1}),
}


@pytest.mark.parametrize("other", OTHER_PARTITIONS)
def test_another_partition_is_unrelated(other: str) -> None:
    """No batch of the one is a batch of the other but for a few rows: their difference would be about these few."""
    mine, theirs = (batches_by_id(**keys) for keys in OTHER_PARTITIONS[other])
    assert (mine[0] == theirs[0]) == (other in ("batches", "epoch", "split without held-out rows"))
    for one, two in product(mine[1], theirs[1]):
        assert len(one & two) < 45  # of some 150, where chance makes 12


def test_reshuffled_batches_are_reproducible_and_start_fixed() -> None:
    one, other = (schedule(of(IDS), seed=seed, reshuffle=True) for seed in (1, 2))
    for epoch in range(3):
        for mine, theirs in zip(one.partition(epoch), other.partition(epoch), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert by_id(one) == by_id(schedule(of(IDS)))
    assert {tuple(sorted(part)) for part in one.partition(0)} != {tuple(sorted(part)) for part in one.partition(1)}
    assert len({visit.index for visit in one.iterations()}) == 18


def test_the_draw_is_what_it_was() -> None:
    """Parties of different machines and versions must draw alike, so the bytes are pinned."""
    plan = schedule(of(IDS))
    drawn = hashlib.sha256(np.concatenate([plan.test, plan.batch_order]).astype("<i8").tobytes()).hexdigest()
    assert drawn[:16] == "fea25bb823cd4651"
    plan = schedule(N)
    drawn = hashlib.sha256(np.concatenate([plan.test, plan.batch_order]).astype("<i8").tobytes()).hexdigest()
    assert drawn[:16] == "b007053dd5a99e1e"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_digests_are_ordered_as_sorted_does(pairs: list[tuple[int, int]]) -> None:
    raw = [high.to_bytes(8, "big") + low.to_bytes(8, "big") for high, low in pairs]
    keys = np.frombuffer(b"".join(raw), np.uint8).reshape(-1, ID_DIGEST)
    assert [raw[row] for row in order_by_value(keys)] == sorted(raw)
    high = [high for high, _ in pairs]
    assert stable_order(np.array(high, np.uint64)).tolist() == sorted(range(len(high)), key=high.__getitem__)


def test_a_party_without_ids_makes_all_go_by_row_numbers() -> None:
    bank, shop = vfl.Party("bank", X, Y, ids=IDS), vfl.Party("shop", X + 1, ids=IDS)
    assert register_of([bank, shop]) == bank.register != Register.of_numbers(N)
    assert register_of([bank, vfl.Party("shop", X, aligned=True)]) == Register.of_numbers(N)


def scheduled_job(**keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.3),
        "batch_size": 50,
        "epochs": 2,
    }
    defaults |= {"protocol": vfl.Protocol(residual="open"), "test_fraction": 0.25, "accepts": ["columns"]}
    return vfl.Job(**(defaults | keys))  # type: ignore[arg-type]


def test_a_run_holds_out_the_rows_of_the_ids(tmp_path: Path) -> None:
    """Mean and deviation are those of the training rows, in the order of their batches: equal to the last bit."""
    plan = schedule(of(IDS), epochs=2)
    for order in (np.arange(N), GENERATOR.permutation(N)):
        bank, shop = vfl.Party("bank", X, Y, ids=IDS).take(order), vfl.Party("shop", X + 1, ids=IDS).take(order)
        for seed in (0, 1):
            part = vfl.simulate(scheduled_job(seed=seed), [bank, shop]).parts["shop"]
            train = (X + 1)[plan.batch_order]
            np.testing.assert_array_equal(part.scaling.mean, train[0] + (train - train[0]).mean(axis=0))
    without = vfl.simulate(scheduled_job(), [bank, vfl.Party("shop", (X + 1)[order], aligned=True)]).parts["shop"]
    assert not np.array_equal(without.scaling.mean, part.scaling.mean)


def test_content_goes_with_the_columns_and_not_with_the_order() -> None:
    shop = vfl.Party("shop", X, ids=IDS)
    order = GENERATOR.permutation(N)
    assert shop.content == shop.take(order).content == vfl.Party("b", X[:, ::-1], ids=IDS).content
    changed = X.copy()
    changed[17, 1] = np.nextafter(changed[17, 1], 9)
    swapped = X.copy()
    swapped[[3, 4], 2] = swapped[[4, 3], 2]
    others = [changed, swapped, X[:, :2], np.column_stack([X, X[:, 0] ** 2])]
    assert len({vfl.Party("shop", other, ids=IDS).content for other in [X, *others]}) == 5
    assert vfl.Party("shop", -X, ids=IDS).content != shop.content


def test_a_sample_reaches_over_the_whole_table() -> None:
    for batch_size in (30, "all"):
        schedule = Schedule(1000, batch_size=batch_size, epochs=1, seed=0, test_fraction=0.2, reshuffle=False)
        sample = schedule.sample(50)
        assert len(set(sample.tolist())) == 50
        assert set(sample) <= set(schedule.train)
        assert sample.min() < 20
        assert sample.max() > 980
        assert np.diff(sample).max() < 40
    assert len(schedule.sample(5000)) == 800


@pytest.mark.parametrize("batch_size", [50, "all", "growing"])
def test_other_training_rows_give_the_sizes_of_a_new_schedule(batch_size: Any) -> None:
    job = make_job(batch_size=batch_size) if isinstance(batch_size, int) else vfl.Job(model="logistic")
    schedule = job.schedule(200_000 if batch_size == "growing" else 1000)
    assert len(schedule.batch_order) == len(schedule.by_ids)
    assert len(schedule.fitting_rows)
    changed = schedule.with_training_rows(schedule.train[: len(schedule.train) // 2])
    n = len(schedule.train) // 2
    assert {len(changed.batch_order), len(changed.by_ids), len(changed.fitting_rows)} == {n}
    assert sum(map(len, changed.partition(0))) == n or changed.uses_subsets
    assert changed.smallest_batch == min(map(len, changed.partition(0)))
    assert len(changed) == len(list(changed.iterations()))

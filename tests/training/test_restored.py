"""What a party stores for a resumed run is restored with every field: each has a value other than its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.families.state import State
from securevfl.organisations.search_record import SearchRecord
from securevfl.training.checkpoint import Checkpoint, Checkpoints
from securevfl.training.model_part import ModelPart, PartStatus
from securevfl.training.public_sizes import PublicSizes
from tests.builders import random_parties

CHECKPOINT = Checkpoint(
    6, "run", [{"loss": 0.5}], {"shop": "ab"}, State(theta=np.arange(3.0), key=b"k", round=2), constant=True,
    preparation=[{"name": "number"}], best=State(theta=np.ones(3)), session="s", over=True,
)  # fmt: skip


def plain(value: Any) -> Any:
    """Return a value as plain data, so that states with arrays can be compared."""
    if isinstance(value, State):
        return value.plain()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def check_no_default(record: Any, but: frozenset[str] = frozenset()) -> None:
    """Check that every field with a default has another value here."""
    for field in dataclasses.fields(record):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if default is not dataclasses.MISSING and field.name not in but:
            assert plain(getattr(record, field.name)) != plain(default), field.name


@pytest.mark.parametrize("constant", [True, False])
def test_a_checkpoint_is_restored_and_only_its_round_is_over(tmp_path: Path, constant: bool) -> None:
    """A party at its own pace loads its newest state for an earlier round, which does not end the training."""
    check_no_default(CHECKPOINT)
    states = Checkpoints(tmp_path, "shop", every=2)
    for rounds in (2, 4, 6):
        states.save(b"job", dataclasses.replace(CHECKPOINT, round=rounds, constant=constant, over=rounds == 6))
    for rounds in (2, 4, 6):
        expected = dataclasses.replace(CHECKPOINT, round=rounds, constant=constant, over=rounds == 6)
        assert plain(Checkpoints(tmp_path, "shop", every=2).load(b"job", rounds)) == plain(expected)


@pytest.mark.parametrize("every", [1, 2])
def test_no_state_is_left_after_the_one_that_a_run_resumes_from(tmp_path: Path, every: int) -> None:
    rounds = [every, 2 * every, 3 * every]
    for last in (0, *rounds):
        states = Checkpoints(tmp_path / str(last), "shop", every=every)
        for number in rounds:
            states.save(b"job", dataclasses.replace(CHECKPOINT, round=number, constant=False))
        states.remove_after(b"job", last)
        assert states.rounds(b"job") == tuple(number for number in rounds if number <= last)


MEASUREMENTS = {"l2 = 1": 3, "l2 = 2": 1}
SIZES = {name: PublicSizes(30, 10, "a" * 32, 2, {"bank": 3, "shop": 4}, {"shop": 5}) for name in MEASUREMENTS}


def store_two_divergences(record: SearchRecord) -> None:
    for name in MEASUREMENTS:
        record.store_divergence(name)


STEPS: dict[str, Callable[[SearchRecord], None]] = {
    "after the consent": lambda record: None,
    "after a measurement": lambda record: record.use_measurement("l2 = 1"),
    "after all measurements": lambda record: record.use_measurement("l2 = 2"),
    "after a divergence": lambda record: record.store_divergence("l2 = 2"),
    "after two divergences": store_two_divergences,
    "after the choice of the first": lambda record: record.store_choice(0),
    "after the choice of another": lambda record: record.store_choice(1),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_search_is_restored(tmp_path: Path, step: str) -> None:
    """Every public attribute is restored after each change; the record of another search
    in the account does not change.
    """
    party = random_parties(2, 20, ids=True)[0]

    def opened(grid: int = 1) -> SearchRecord:
        return SearchRecord(tmp_path / "states", tmp_path / "account", party, {"grid": grid})

    def facts(record: SearchRecord) -> dict[str, Any]:
        return {name: value for name, value in vars(record).items() if not name.startswith("_")}

    record, other = opened(), opened(grid=2)
    for begun in (record, other):
        begun.begin(MEASUREMENTS, SIZES)
    before = facts(other)
    STEPS[step](record)
    assert facts(opened()) == facts(record)
    assert facts(opened(grid=2)) == before
    assert opened().is_agreed
    opened().delete()
    assert facts(opened()) | {"name": ""} == facts(opened(grid=3)) | {"name": ""}
    assert facts(opened(grid=2)) == before


def test_a_measurement_is_used_once_by_all_processes(tmp_path: Path) -> None:
    """This holds if a second process has read the record before the first one used it, and after the search's end."""
    party = random_parties(2, 20, ids=True)[0]

    def opened() -> SearchRecord:
        return SearchRecord(tmp_path / "states", tmp_path / "account", party, {"grid": 1})

    first = opened()
    first.begin(MEASUREMENTS, SIZES)
    second = opened()
    assert [first.use_measurement("l2 = 2"), second.use_measurement("l2 = 2")] == [True, False]
    assert [record.use_measurement("l2 = 1") for record in (first, second, first, second)] == [True, True, True, False]
    assert not second.use_measurement("another")
    again = opened()
    again.delete()
    assert not first.use_measurement("l2 = 1")


@pytest.mark.filterwarnings("ignore")
def test_a_part_of_a_model_is_restored(tmp_path: Path) -> None:
    """The counters, the network and the disclosures of the run are not in a file (docstring of `ModelPart`)."""
    job = vfl.Job(model="one_vs_rest", protocol="open", batch_size="all", epochs=2, test_fraction=0.5,
                  accepts=["columns", "rank", "fresh_equations"])  # fmt: skip
    part = vfl.simulate(job, random_parties(2, 60, labels=3, ids=True)).active
    part = dataclasses.replace(part, notes=["a note"], calibration=[[0.1, 0.2, 30.0]], run="run",
                               metric_std_errors={"auc": 0.1}, by_class={"a": {"auc": 0.7}})  # fmt: skip
    elsewhere = frozenset({"counters", "path", "status", "model", "outputs_of_run"})
    check_no_default(part, elsewhere)
    part.save(tmp_path / "part.json")
    loaded = ModelPart.load(tmp_path / "part.json")
    assert loaded.preparation.plain() == part.preparation.plain()
    for field in dataclasses.fields(part):
        if field.name not in elsewhere | {"preparation"}:
            assert plain(getattr(loaded, field.name)) == plain(getattr(part, field.name)), field.name
    assert loaded.status in PartStatus

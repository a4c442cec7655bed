"""What a party whose weights are opened reads by powers of two: no more bits than everyone has entered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.recording.party_recording import Recording
from securevfl.crypto.kernel.shares import PreparedWords
from securevfl.crypto.share_ring import ShareRing
from securevfl.disclosure.counts import Disclosure
from securevfl.errors import LeakageError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.shares.shares_measures import Measurements
from securevfl.families.shares.shares_plan import weight_levels
from securevfl.protocols.shares import opened_weights
from securevfl.protocols.shares.column_blocks import LocalColumns
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import LabelParty, PartnerParty, TrainingRole
from securevfl.protocols.shares.opened_weights import WeightQuantizer
from securevfl.protocols.shares.residual_tables import ResidualTables

ROWS, COLUMNS = 420, 15
HALF_BIT = 7  # log2 of a residual of 1/2
LEVEL = 6  # bits of a level of the table
LAST = 1  # of two batches


def tables(rows: int = ROWS, columns: int = COLUMNS, parties: int = 2) -> list[vfl.Party]:
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(rows, parties * columns)), rng.integers(0, 2, rows)
    parts = np.split(X, parties, axis=1)
    names = ("bank", "shop", "telco")
    return [vfl.Party(names[k], part, None if k else y, aligned=True) for k, part in enumerate(parts)]


def job(to: str, **keys: Any) -> vfl.Job:
    own: dict[str, Any] = {"epochs": 1, "batch_size": "all", "model": vfl.Logistic(), "optimizer": vfl.FedSGD(lr=0.3)}
    shares = vfl.Shares(open_weights=(to,), chunk=1)
    return vfl.Job(**own | keys, protocol=vfl.Protocol(shares=shares), accepts=("small_metrics", "opened_weights"))


def places(count: int, weights: int, first: int, bits: int) -> np.ndarray:
    """W (count x weights) that puts rows, so many a weight and one after the other, at bits `first` on, each one up."""
    W, a_weight = np.zeros((count, weights), np.int64), -(-count // weights)
    for row in range(count):
        at = row % a_weight
        if at < bits:
            W[row, row // a_weight] = 1 << (first + at)
    return W


def steps_of(monkeypatch: pytest.MonkeyPatch, party: str, chosen: Any) -> None:
    """Have this party multiply residuals by what it likes: chosen(n) (n x d) in place of W, None for its own."""
    honest, made = LocalColumns._integers, LocalColumns.__init__

    def integers(self: LocalColumns, piece: Any) -> Any:
        X, W = honest(self, piece)
        return X, chosen(piece.batch, self._numbers, *W.shape) if self.of == party else W

    def init(self: LocalColumns, numbers: FixedPointEncoding, rate: float, X: Any, *rest: Any) -> None:
        made(self, numbers, rate, X, *rest)
        self.of = X(0).of.__self__._context.me  # type: ignore[attr-defined]

    monkeypatch.setattr(PreparedWords, "check", lambda self, columns: None)  # its own, which is none of the peers'
    monkeypatch.setattr(Measurements, "measure", lambda *_: ({}, [], {}))  # a model that is measured has diverged
    monkeypatch.setattr(LocalColumns, "__init__", init)
    monkeypatch.setattr(LocalColumns, "_integers", integers)


def told(tape: Recording, giver: str, kind: str) -> int:
    entries = [each for each in tape[giver].disclosures if (each.kind, each.group) == (kind, "weights")]
    return sum(each.numbers * each.bits for each in entries)


def labels_read(monkeypatch: pytest.MonkeyPatch, parties: int, *, first: int | None, bits: int) -> tuple[int, int]:
    """How many labels a passive party reads out of its weights surely, and how many bits the bank enters."""
    both, chosen = tables(parties=parties), job("shop")
    schedule = chosen.schedule(both[0].register)
    y = both[0].y[schedule.partition(0)[0]]
    seen: dict[str, Any] = {}

    def powers(batch: int, numbers: FixedPointEncoding, n: int, d: int) -> np.ndarray:
        lowest = weight_levels(chosen, ROWS).shift(numbers) - HALF_BIT if first is None else first
        seen.update(numbers=numbers, lowest=lowest)
        return places(n, d, lowest, bits)

    steps_of(monkeypatch, "shop", powers)
    tape = Recording()
    run = vfl.simulate(chosen, both, observe=tape, workers=1)
    numbers, lowest = seen["numbers"], seen["lowest"]
    theta = run.parts["shop"].theta[:, 0]
    units = -np.rint(np.ldexp(theta, numbers.f_theta - lowest - HALF_BIT)).astype(np.int64)  # sums of g 2^at
    found, a_weight = 0, -(-ROWS // COLUMNS)
    for weight, total in enumerate(units.tolist()):
        used = min(bits, a_weight)
        signs = (total + 2**used - 1) // 2  # residuals of -1/2 and 1/2 as bits
        own = y[weight * a_weight :][:used]
        guess = [(signs >> at) & 1 for at in range(len(own))]
        found += int(np.sum(np.array(guess) == (own == 0)))
    return found, told(tape, "bank", "labels")


@pytest.mark.parametrize("parties", [2, 3])
def test_powers_of_two_read_no_more_labels_than_bits_are_counted(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = weight_levels(job("shop"), ROWS).bits
    found, counted = labels_read(monkeypatch, parties, first=None, bits=bits)
    print(f"{found} of {ROWS} labels agree, {counted} bits counted")
    assert counted == COLUMNS * bits
    assert found <= counted


def test_low_places_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 28 labels lay in each weight: all but the highest ones are below what is told."""
    found, counted = labels_read(monkeypatch, 2, first=0, bits=28)
    print(f"{found} of {ROWS} labels agree, {counted} bits counted")
    assert found <= counted + 6 * np.sqrt((ROWS - counted) / 4) + (ROWS - counted) / 2


def test_unrounded_weights_give_every_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they were: all bits of the ring."""
    monkeypatch.setattr(WeightQuantizer, "shift", lambda self, numbers: 1)
    monkeypatch.setattr(WeightQuantizer, "bits", property(lambda self: 55))
    found, _ = labels_read(monkeypatch, 2, first=4, bits=28)
    assert found == ROWS


def test_every_party_enters_what_a_weight_holds_of_its_own() -> None:
    for to in ("bank", "shop", "telco"):
        tape, both = Recording(), tables(parties=3)
        vfl.simulate(job(to), both, observe=tape, workers=1)
        bits = weight_levels(job(to), ROWS).bits * (COLUMNS + (to == "bank"))
        for party in ("bank", "shop", "telco"):
            assert told(tape, party, "columns") == (0 if party == to else bits)
            assert told(tape, party, "labels") == (bits if party == "bank" != to else 0)
        counted = job(to).family.disclosures(job(to), pooled_run_facts(job(to), both).shape)
        own = [each for each in counted if each.group == "weights"]
        assert {each.about[0] for each in own} == {"bank", "shop", "telco"} - {to}
        assert all(each.numbers * bits == each.numbers * bits for each in own)


def outputs_read(monkeypatch: pytest.MonkeyPatch, *, first: int | None, bits: int) -> tuple[int, int, int]:
    """How many rows' level of H_shop the bank reads to one step, by a table of places and powers of 2^6, of how many
    rows that it asks about; and how many bits of its columns the shop enters."""
    both, chosen = tables(), job("bank", batch_size=ROWS // 2, optimizer=vfl.FedSGD(lr=30.0))
    seen: dict[str, Any] = {}
    states: dict[tuple[str, int], Any] = {}
    a_weight = bits // LEVEL

    def powers(batch: int, numbers: FixedPointEncoding, n: int, d: int) -> np.ndarray:
        lowest = weight_levels(chosen, ROWS).shift(numbers) if first is None else first
        seen.update(numbers=numbers, lowest=lowest)
        W = np.zeros((n, d), np.int64)
        for row in range(d * a_weight if batch == LAST else 0):
            W[row, row // a_weight] = 1 << (lowest + LEVEL * (row % a_weight))
        return W

    def kept(kind: type[TrainingRole]) -> None:
        honest = kind.train

        def train(self: Any, chunk: int, visits: int) -> Any:
            for state in honest(self, chunk, visits):
                states[self._context.me, state.visits] = state
                yield state

        monkeypatch.setattr(kind, "train", train)

    def made(numbers: FixedPointEncoding, residual: Any, targets: Any, centres: Any, smooth: bool) -> Any:
        honest = read(numbers, residual, targets, centres, smooth)
        place = (np.arange(numbers.entries) + numbers.entries // 2) % numbers.entries
        return honest if not seen.get("trained") else np.tile((place << 16).astype(np.int32), len(targets))

    def look_up(
        self: ResidualTables, numbers: FixedPointEncoding, residual: Any, y: Any, least: Any, *, smooth: bool
    ) -> None:
        seen["trained"] = len(seen.setdefault("tables", [])) >= 1
        seen["tables"].append(0)
        init(self, numbers, residual, y, least, smooth=smooth)

    read, init = ResidualTables._made, ResidualTables.__init__
    monkeypatch.setattr(ResidualTables, "_made", staticmethod(made))
    monkeypatch.setattr(ResidualTables, "__init__", look_up)
    kept(LabelParty)
    kept(PartnerParty)
    steps_of(monkeypatch, "bank", powers)
    tape = Recording()
    run = vfl.simulate(chosen, both, observe=tape, workers=1)
    numbers, lowest = seen["numbers"], seen["lowest"]
    ring = ShareRing(numbers.bits)
    theta = numbers.decode_weights(ring.reduce(states["shop", 1].own[0] + states["bank", 1].others["shop"][0]))
    rows = chosen.schedule(both[0].register).partition(0)[LAST][: COLUMNS * a_weight]
    X = both[1].X
    H = ((X[rows] - X.mean(axis=0)) / X.std(axis=0) @ theta)[:, 0]
    own = np.rint(np.ldexp(-run.parts["bank"].theta[:COLUMNS, 0], numbers.f_theta - lowest)).astype(np.int64)
    levels = [((total >> (LEVEL * at)) & (2**LEVEL - 1)) - 2 ** (LEVEL - 1) for total in own for at in range(a_weight)]
    off = np.abs(np.array(levels) - (H - 1))  # a place stands for the entry one above
    assert H.std() > 3
    return int((off <= 1).sum()), len(rows), told(tape, "shop", "columns")


def test_a_table_of_powers_tells_no_more_bits_of_columns_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = weight_levels(job("bank"), ROWS).bits
    found, rows, counted = outputs_read(monkeypatch, first=None, bits=bits)
    print(f"levels of {found} of {rows} rows, {LEVEL * found} bits, {counted} bits counted")
    assert found >= 0.8 * rows  # what is counted is not a word more than what can be read
    assert LEVEL * found <= counted == (COLUMNS + 1) * bits


def test_unrounded_weights_give_the_other_party_s_part_of_most_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightQuantizer, "shift", lambda self, numbers: 1)
    monkeypatch.setattr(WeightQuantizer, "bits", property(lambda self: 47))
    found, rows, _ = outputs_read(monkeypatch, first=2, bits=30)
    assert rows == 5 * COLUMNS
    assert found >= 0.9 * rows


@pytest.mark.parametrize("to", ["bank", "shop"])
def test_half_of_the_bits_and_as_many_weights_as_rows_are_refused(to: str) -> None:
    """For each receiver, with labels or not; half of the bits between organisations alone."""
    without = {"accepts": ("small_metrics",)}
    many = tables(rows=80, columns=90)
    with pytest.raises(LeakageError, match=rf"{to}: its weights, which are opened to it, are 9\d numbers for 80"):
        vfl.simulate(job(to).model_copy(update=without), many)
    few = tables(rows=100, columns=10 if to == "shop" else 60)
    few[1 if to == "bank" else 0] = vfl.Party(
        "shop" if to == "bank" else "bank", few[0].X[:, :2], None if to == "bank" else few[0].y, aligned=True
    )
    made = job(to).model_copy(update=without)
    leaks = made.family.leaks(made, pooled_run_facts(made, few).shape)
    (own,) = [leak for leak in leaks if leak.name == "opened_weights"]
    assert own.apart
    assert "rank" not in [leak.name for leak in leaks]


def test_bits_of_earlier_jobs_add_up() -> None:
    made, both = job("shop").model_copy(update={"accepts": ("small_metrics",)}), tables(rows=2000)
    sizes = pooled_run_facts(made, both).shape
    own = [each for each in made.family.disclosures(made, sizes) if each.group == "weights"]
    share = max(each.share for each in own)
    jobs, before = 0, list[Disclosure]()
    while not made.family.leaks(made, sizes, before):
        before, jobs = [*before, *own], jobs + 1
    assert jobs == int(np.ceil(0.5 / share)) - 1


@pytest.mark.parametrize("rows", [100, 10_000, 1_000_000])
def test_rounding_stays_below_its_part_of_a_standard_error(rows: int) -> None:
    """Both shares of two holders are cut: the error is that of two uniform fractions."""
    levels = WeightQuantizer.of(rows, 0.25)
    rng = np.random.default_rng(0)
    cut = rng.random((20_000, 2)).sum(axis=1) - 1
    off = cut.std() * 2.0**-levels.fraction
    assert off <= 1.02 * opened_weights.MAX_ROUNDING_ERROR * 2 / np.sqrt(rows)
    assert off >= 0.2 * opened_weights.MAX_ROUNDING_ERROR * 2 / np.sqrt(rows)


def test_the_rounded_weights_are_what_is_served(tmp_path: Path) -> None:
    both = tables()
    run = vfl.simulate(job("shop", epochs=3), both, workers=1)
    levels = weight_levels(job("shop"), ROWS)
    shop, bank = run.parts["shop"], run.parts["bank"]
    assert not np.any(bank.state["others"]["shop"])
    assert np.array_equal(np.unique(shop.state["own"][1:]), np.unique(shop.state["own"][1:]) * 0)
    assert np.abs(shop.theta).max() < 2 ** (levels.bits - levels.fraction - 1)

"""A party whose weights are opened reads no more bits of labels and columns than everyone has recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import disclosures_in_run

import securevfl as vfl
from securevfl.audit.recording.party_recording import Recording
from securevfl.crypto.kernel.shares import PreparedWords
from securevfl.crypto.share_ring import ShareRing
from securevfl.disclosure.counts import Disclosure
from securevfl.errors import LeakageError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.run_outputs import run_leaks
from securevfl.families.score_results import Measurement
from securevfl.families.shares.shares_measures import Measurements
from securevfl.families.shares.shares_plan import weight_levels
from securevfl.protocols.shares import opened_weights
from securevfl.protocols.shares.column_blocks import LocalColumns
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import LabelParty, PartnerParty, TrainingRole
from securevfl.protocols.shares.opened_weights import WeightQuantizer
from securevfl.protocols.shares.residual_tables import ResidualTables
from tests.builders import raises_code

ROWS, COLUMNS = 420, 15
HALF_BIT = 7  # log2 of a residual of 1/2
LEVEL = 6  # bits of a level of the table
LAST = 1  # in two batches


def binary_parties(rows: int = ROWS, columns: int = COLUMNS, parties: int = 2) -> list[vfl.Party]:
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(rows, parties * columns)), rng.integers(0, 2, rows)
    parts = np.split(X, parties, axis=1)
    names = ("bank", "shop", "telco")
    return [vfl.Party(names[k], part, None if k else y, aligned=True) for k, part in enumerate(parts)]


def opened_weights_job(to: str, **keys: Any) -> vfl.Job:
    defaults: dict[str, Any] = {
        "epochs": 1,
        "batch_size": "all",
        "model": vfl.Logistic(),
        "optimizer": vfl.FedSGD(lr=0.3),
    }
    shares = vfl.Shares(open_weights=(to,), chunk=1)
    return vfl.Job(**defaults | keys, protocol=vfl.Protocol(shares=shares), accepts=("small_metrics", "opened_weights"))


def places(count: int, weights: int, first: int, bits: int) -> np.ndarray:
    """Return W (count, weights) that puts rows at ascending bits from `first` on, a number of rows in each weight."""
    W, a_weight = np.zeros((count, weights), np.int64), -(-count // weights)
    for row in range(count):
        at = row % a_weight
        if at < bits:
            W[row, row // a_weight] = 1 << (first + at)
    return W


def steps_of(monkeypatch: pytest.MonkeyPatch, party: str, chosen: Any) -> None:
    """Let this party multiply residuals by chosen(n) (n, d) in place of W; None keeps W."""
    honest, generated = LocalColumns._integers, LocalColumns.__init__

    def integers(self: LocalColumns, piece: Any) -> Any:
        X, W = honest(self, piece)
        return X, chosen(piece.batch, self._encoding, *W.shape) if self.of == party else W

    def init(self: LocalColumns, numbers: FixedPointEncoding, rate: float, X: Any, *remaining: Any) -> None:
        generated(self, numbers, rate, X, *remaining)
        self.of = X(0).compute.__self__._context.me  # type: ignore[attr-defined]

    monkeypatch.setattr(PreparedWords, "check", lambda self, columns: None)  # the party's state, not that of a peer
    monkeypatch.setattr(Measurements, "measure", lambda *_, **__: Measurement())  # the evaluated model has diverged
    monkeypatch.setattr(Measurements, "_refuse", lambda *_: None)  # and its sums have left the table
    monkeypatch.setattr(LocalColumns, "__init__", init)
    monkeypatch.setattr(LocalColumns, "_integers", integers)


def told(tape: Recording, giver: str, kind: str) -> int:
    entries = [
        disclosure for disclosure in tape[giver].disclosures if (disclosure.kind, disclosure.group) == (kind, "weights")
    ]
    return sum(disclosure.numbers * disclosure.bits for disclosure in entries)


def labels_read(monkeypatch: pytest.MonkeyPatch, parties: int, *, first: int | None, bits: int) -> tuple[int, int]:
    """Return how many labels a passive party reads from its weights, and how many bits the bank records."""
    both, chosen = binary_parties(parties=parties), opened_weights_job("shop")
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
    result, a_weight = 0, -(-ROWS // COLUMNS)
    for weight, total in enumerate(units.tolist()):
        used = min(bits, a_weight)
        signs = (total + 2**used - 1) // 2  # residuals of -1/2 and 1/2 as bits
        local = y[weight * a_weight :][:used]
        guess = [(signs >> at) & 1 for at in range(len(local))]
        result += int(np.sum(np.array(guess) == (local == 0)))
    return result, told(tape, "bank", "labels")


@pytest.mark.parametrize("parties", [2, 3])
def test_powers_of_two_read_no_more_labels_than_counted(parties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bits = weight_levels(opened_weights_job("shop"), ROWS).bits
    result, counted = labels_read(monkeypatch, parties, first=None, bits=bits)
    print(f"{result} of {ROWS} labels agree, {counted} bits counted")
    assert counted == COLUMNS * bits
    assert result <= counted


def test_low_bits_reveal_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each weight contained 28 labels, all but the highest bits are below the disclosed precision."""
    result, counted = labels_read(monkeypatch, 2, first=0, bits=28)
    print(f"{result} of {ROWS} labels agree, {counted} bits counted")
    assert result <= counted + 6 * np.sqrt((ROWS - counted) / 4) + (ROWS - counted) / 2


def test_unrounded_weights_reveal_every_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rounding, all bits of the ring were disclosed."""
    monkeypatch.setattr(WeightQuantizer, "shift", lambda self, numbers: 1)
    monkeypatch.setattr(WeightQuantizer, "bits", property(lambda self: 55))
    result, _ = labels_read(monkeypatch, 2, first=4, bits=28)
    assert result == ROWS


def test_every_party_records_its_bits_in_a_weight() -> None:
    for to in ("bank", "shop", "telco"):
        tape, both = Recording(), binary_parties(parties=3)
        vfl.simulate(opened_weights_job(to), both, observe=tape, workers=1)
        bits = weight_levels(opened_weights_job(to), ROWS).bits * (COLUMNS + (to == "bank"))
        for party in ("bank", "shop", "telco"):
            assert told(tape, party, "columns") == (0 if party == to else bits)
            assert told(tape, party, "labels") == (bits if party == "bank" != to else 0)
        counted = disclosures_in_run(opened_weights_job(to), pooled_run_facts(opened_weights_job(to), both).shape)
        selected = [item for item in counted if item.group == "weights"]
        assert {item.about[0] for item in selected} == {"bank", "shop", "telco"} - {to}
        assert all(item.numbers * bits == item.numbers * bits for item in selected)


def outputs_read(monkeypatch: pytest.MonkeyPatch, *, first: int | None, bits: int) -> tuple[int, int, int]:
    """Return how many rows' level of H_shop the bank reads, by a table of positions and powers of 2^6.

    Returns:
        The number of rows read to one step, the number of rows that it requests, and the bits of its columns that the
        shop records.
    """
    both, chosen = binary_parties(), opened_weights_job("bank", batch_size=ROWS // 2, optimizer=vfl.FedSGD(lr=30.0))
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
                states[self._context.me, state.iterations] = state
                yield state

        monkeypatch.setattr(kind, "train", train)

    def made(numbers: FixedPointEncoding, residual: Any, targets: Any, centres: Any, smooth: bool) -> Any:
        honest = read(numbers, residual, targets, centres, smooth)
        place = (np.arange(numbers.entries) + numbers.entries // 2) % numbers.entries
        if not seen.get("trained"):
            return honest
        return np.tile((place << 16).astype(np.int32), len(targets)), np.zeros(len(targets), np.int64)

    def look_up(
        self: ResidualTables, numbers: FixedPointEncoding, residual: Any, y: Any, least: Any, *, smooth: bool
    ) -> None:
        seen["trained"] = len(seen.setdefault("tables", [])) >= 1
        seen["tables"].append(0)
        init(self, numbers, residual, y, least, smooth=smooth)

    read, init = ResidualTables._compute, ResidualTables.__init__
    monkeypatch.setattr(ResidualTables, "_compute", staticmethod(made))
    monkeypatch.setattr(ResidualTables, "__init__", look_up)
    kept(LabelParty)
    kept(PartnerParty)
    steps_of(monkeypatch, "bank", powers)
    tape = Recording()
    run = vfl.simulate(chosen, both, observe=tape, workers=1)
    numbers, lowest = seen["numbers"], seen["lowest"]
    ring = ShareRing(numbers.bits)
    shares = states["shop", 1].own_share[0] + states["bank", 1].peer_shares["shop"][0]
    theta = numbers.decode_weights(ring.reduce(shares))
    rows = chosen.schedule(both[0].register).partition(0)[LAST][: COLUMNS * a_weight]
    X = both[1].X
    H = ((X[rows] - X.mean(axis=0)) / X.std(axis=0) @ theta)[:, 0]
    columns = np.rint(np.ldexp(-run.parts["bank"].theta[:COLUMNS, 0], numbers.f_theta - lowest)).astype(np.int64)
    levels = [
        ((total >> (LEVEL * at)) & (2**LEVEL - 1)) - 2 ** (LEVEL - 1) for total in columns for at in range(a_weight)
    ]
    off = np.abs(np.array(levels) - (H - 1))  # a position is that of the entry one above
    assert H.std() > 3
    return int((off <= 1).sum()), len(rows), told(tape, "shop", "columns")


def test_a_table_of_powers_reads_no_more_bits_than_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = weight_levels(opened_weights_job("bank"), ROWS).bits
    result, rows, counted = outputs_read(monkeypatch, first=None, bits=bits)
    print(f"levels of {result} of {rows} rows, {LEVEL * result} bits, {counted} bits counted")
    assert result >= 0.8 * rows  # the count exceeds the readable bits by less than a word
    assert LEVEL * result <= counted == (COLUMNS + 1) * bits


def test_unrounded_weights_reveal_other_parts_of_most_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WeightQuantizer, "shift", lambda self, numbers: 1)
    monkeypatch.setattr(WeightQuantizer, "bits", property(lambda self: 47))
    result, rows, _ = outputs_read(monkeypatch, first=2, bits=30)
    assert rows == 5 * COLUMNS
    assert result >= 0.9 * rows


@pytest.mark.parametrize("to", ["bank", "shop"])
def test_half_of_the_bits_or_a_weight_a_row_is_refused(to: str) -> None:
    """Both hold for receivers with and without labels; half of the bits are refused between organisations only."""
    without = {"accepts": ("small_metrics",)}
    many = binary_parties(rows=80, columns=90)
    with raises_code(LeakageError, "SVFL-LEAK-NOT-ACCEPTED", leaks=("rank",)) as refused:
        vfl.simulate(opened_weights_job(to).model_copy(update=without), many)
    assert str(refused.value).startswith(f"disclosure to {to}:")
    few = binary_parties(rows=100, columns=10 if to == "shop" else 60)
    few[1 if to == "bank" else 0] = vfl.Party(
        "shop" if to == "bank" else "bank", few[0].X[:, :2], None if to == "bank" else few[0].y, aligned=True
    )
    generated = opened_weights_job(to).model_copy(update=without)
    leaks = run_leaks(generated.family, generated, pooled_run_facts(generated, few).shape)
    (local,) = [leak for leak in leaks if leak.name == "opened_weights"]
    assert local.apart
    assert "rank" not in [leak.name for leak in leaks]


def test_bits_of_earlier_jobs_add_up() -> None:
    generated, both = (
        opened_weights_job("shop").model_copy(update={"accepts": ("small_metrics",)}),
        binary_parties(rows=2000),
    )
    sizes = pooled_run_facts(generated, both).shape
    counts = [count for count in disclosures_in_run(generated, sizes) if count.group == "weights"]
    share = max(count.share for count in counts)
    jobs, before = 0, list[Disclosure]()
    while not run_leaks(generated.family, generated, sizes, before):
        before, jobs = [*before, *counts], jobs + 1
    assert jobs == int(np.ceil(0.5 / share)) - 1


@pytest.mark.parametrize("rows", [100, 10_000, 1_000_000])
def test_rounding_is_below_its_share_of_a_standard_error(rows: int) -> None:
    """The shares of both parties are truncated, so the error is the sum of two uniform fractions."""
    levels = WeightQuantizer.of(rows, 0.25)
    rng = np.random.default_rng(0)
    cut = rng.random((20_000, 2)).sum(axis=1) - 1
    off = cut.std() * 2.0**-levels.fraction
    assert off <= 1.02 * opened_weights.MAX_ROUNDING_ERROR * 2 / np.sqrt(rows)
    assert off >= 0.2 * opened_weights.MAX_ROUNDING_ERROR * 2 / np.sqrt(rows)


def test_the_rounded_weights_are_served(tmp_path: Path) -> None:
    both = binary_parties()
    run = vfl.simulate(opened_weights_job("shop", epochs=3), both, workers=1)
    levels = weight_levels(opened_weights_job("shop"), ROWS)
    shop, bank = run.parts["shop"], run.parts["bank"]
    assert not np.any(bank.state["others"]["shop"])
    assert np.array_equal(np.unique(shop.state["own"][1:]), np.unique(shop.state["own"][1:]) * 0)
    assert np.abs(shop.theta).max() < 2 ** (levels.bits - levels.fraction - 1)

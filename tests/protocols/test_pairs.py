"""Pairs: products of two parties' components on shares, compared with plain integers."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from securevfl.base.roles import Roles
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.share_ring import ShareRing
from securevfl.models.losses import LOSSES
from securevfl.models.pair_components import COMPONENT_BITS, COMPONENT_STEP, MAX_COMPONENT
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.shares import pair_columns, small_products
from securevfl.protocols.shares.column_blocks import LocalColumns
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.forward_sums import ForwardSums
from securevfl.protocols.shares.iteration import (
    FeatureParty,
    LabelParty,
    MaskedGradient,
    PartnerParty,
    SharedState,
    TrainingRole,
)
from securevfl.protocols.shares.offline_phase import OfflinePhase, PreprocessedBlock
from securevfl.protocols.shares.pair_columns import PairColumns, share_products
from securevfl.protocols.shares.pair_sums import ColumnsWithPairs, PairSums
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.preprocessing_store import MemoryStore
from securevfl.protocols.shares.residual_tables import ResidualTables
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.small_products import PRODUCT_ROWS, MaskedCorrelations
from securevfl.protocols.shares.update_rules import FixedCoefficients
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads
from tests.hard_tables import sizes_around

LOSS, RATE, ITERATIONS = LOSSES["logistic"], 0.5, 4
RULE = FixedCoefficients(
    lambda t: [float(t - s) for s in range(t)], result_row=lambda t: [t - s - 0.25 for s in range(t)]
)


class Case:
    """A table of two or three parties; a has the labels, and b is its partner."""

    def __init__(self, parties: int = 2, rows: int = 300, *, sizes: tuple[int, int] = (3, 2), **options: Any) -> None:
        rng = np.random.default_rng(7)
        self.names = "abc"[:parties]
        self.X = {name: rng.normal(size=(rows, 3)) for name in self.names}
        self.y = np.where(rng.random(rows) < 0.4, 1.0, -1.0)
        self.components = {
            name: rng.integers(-MAX_COMPONENT, MAX_COMPONENT + 1, (rows, size), np.int8)
            for name, size in zip("ab", sizes, strict=True)
        }
        batches, self.is_nested = options.pop("batches", [np.arange(rows)]), options.pop("is_nested", False)
        self.batches: list[np.ndarray] = batches
        scheme = options.pop("scheme", KernelShares)
        encoding = FixedPointEncoding(max(map(len, batches)), RATE, m=RULE.m, **options.pop("encoding", {}))
        self.pairs = PairParams.of(encoding, active=sizes[0], partner=sizes[1], component=COMPONENT_STEP, step=RATE)
        self.params = SharesParams(
            encoding,
            tuple(map(len, batches)),
            dict.fromkeys(self.names, 3),
            "b",
            RULE,
            pairs=self.pairs,
            has_nested_batches=self.is_nested,
            **options,
        )
        self.scheme = scheme(encoding.bits)
        self.ring = ShareRing(encoding.bits)
        a, b = (self.components[name].astype(np.int64) for name in "ab")
        self.phi = (b[:, :, None] * a[:, None, :]).reshape(rows, -1)

    def run(self, play: Callable[[Case, PartyContext, SharesSession], Any], **watching: Any) -> dict[str, Any]:
        def role(channel: Any) -> Any:
            meter = Meter(channel.clock, channel.counters)
            context = PartyContext(channel, Roles.labelled("a", self.names[1:]), meter)
            return play(self, context, SharesSession(context, "b", self.scheme, self.params.encoding))

        return run_threads(dict.fromkeys(self.names, role), WallClock, timeout=120, **watching)

    def shared(self, session: SharesSession, folder: Path | None = None, **options: int) -> PairColumns | None:
        name = session.products.context.me
        return share_products(session, self.pairs, self.components[name], folder, **options) if name in "ab" else None


class Watched:
    """Records this party's share of each residual."""

    seen: list[tuple[int, Any]]

    def _step(self, material: PreprocessedBlock, g: Any) -> SharedState:
        self.seen.append((material.block.batch, (material.psi if isinstance(self, LabelParty) else g).copy()))
        return super()._step(material, g)  # type: ignore[misc]


def training_role(case: Case, context: PartyContext, columns: LocalColumns, offline: OfflinePhase) -> TrainingRole:
    kinds = {"a": LabelParty, "b": PartnerParty, "c": FeatureParty}
    kind = type("WatchedRole", (Watched, kinds[context.me]), {"seen": []})
    encoding = case.params.encoding

    def lookup(block: Any) -> ResidualTables:
        y = case.y[case.batches[block.batch]][block.start : block.stop]
        return ResidualTables(encoding, LOSS.residual, y[:, None])

    extra = (lookup,) if context.me == "a" else ()
    return kind(context, case.params, columns, offline, *extra)  # type: ignore[no-any-return]


def trained(case: Case, context: PartyContext, session: SharesSession) -> tuple[list[SharedState], list[Any]]:
    """Train two chunks, and return the states and the shares of residuals."""
    X = case.X[context.me]
    columns = LocalColumns(case.params.encoding, RATE, lambda k: X[case.batches[k]])
    pairs = case.shared(session)
    offline = OfflinePhase(context, case.params, case.scheme, columns.factor, MemoryStore(), pairs=pairs)
    role = training_role(case, context, columns, offline)
    states, order = [role.state], [k % len(case.batches) for k in range(ITERATIONS)]
    for number, chunk in enumerate((order[:3], order[3:])):
        offline.generate(number, chunk)
        states += list(role.train(number, len(chunk)))
    return states, role.seen  # type: ignore[attr-defined]


CASES: Mapping[str, Mapping[str, Any]] = {
    "two": {},
    "three": {"parties": 3},
    "seal": {"scheme": LatticeShares},
    "lifted blocks": {"block": 70, "encoding": {"lift_bits": 8, "f_g": 7}},
    "batches": {"batches": [np.arange(120), np.arange(120, 300)], "block": 100},
    "nested": {"batches": [np.arange(75), np.arange(300)], "is_nested": True, "block": 128},
    "wide": {"sizes": (16, 16), "rows": 200},
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys(), scope="module")
def run(request: pytest.FixtureRequest) -> tuple[Case, dict[str, Any]]:
    case = Case(**dict(request.param))
    return case, case.run(trained)


def opened_residuals(case: Case, results: Mapping[str, Any]) -> list[tuple[int, np.ndarray]]:
    """Return batch and residuals of each iteration, from both holders' shares."""
    iterations: list[tuple[int, list[np.ndarray]]] = []
    rows = 0
    for (batch, mine), (_, theirs) in zip(results["a"][1], results["b"][1], strict=True):
        g = case.ring.signed(case.ring.reduce(mine + theirs))[:, 0]
        if rows == 0:
            iterations.append((batch, []))
        iterations[-1][1].append(g)
        rows = (rows + len(g)) % len(case.batches[batch])
    return [(batch, np.concatenate(parts)) for batch, parts in iterations]


def test_gradients_are_those_of_the_products_to_the_last_bit(run: tuple[Case, dict[str, Any]]) -> None:
    case, results = run
    ring = case.pairs.ring
    residuals = opened_residuals(case, results)
    assert len(residuals) == ITERATIONS
    for holder, peer in ("ab", "ba"):
        opened, masks = results[holder][0][-1].pairs.opened, results[peer][0][-1].pairs.masks
        gradients = ring.signed(ring.reduce(opened + masks))
        for (batch, g), gradient in zip(residuals, gradients, strict=True):
            factor = int(case.pairs.factor(len(case.batches[batch])))
            exact = case.phi[case.batches[batch]].T @ g * factor
            assert np.abs(gradient - exact).max() <= 2 * factor  # two products, each of which may be off by one


def test_both_views_are_the_same_weights(run: tuple[Case, dict[str, Any]]) -> None:
    case, results = run
    for iteration in range(ITERATIONS + 1):
        a, b = (results[name][0][iteration].pairs for name in "ab")
        for result in (False, True):
            views = [
                case.pairs.ring.reduce(
                    case.pairs.weights(RULE, mine.opened, result=result)
                    + case.pairs.weights(RULE, theirs.masks, result=result)
                )
                for mine, theirs in ((a, b), (b, a))
            ]
            assert (views[0] == views[1]).all()


def test_residuals_follow_the_sums_with_pairs(run: tuple[Case, dict[str, Any]]) -> None:
    """The table of residuals is read at X theta + Phi theta, between two of its entries."""
    case, results = run
    ring, encoding = case.ring, case.params.encoding
    for number, (batch, g) in enumerate(opened_residuals(case, results)):
        rows = case.batches[batch]
        f = np.zeros(len(rows))
        for name in case.names:
            summands = [results[name][0][number].own_share]
            summands += [results[holder][0][number].peer_shares[name] for holder in "ab" if holder != name]
            theta = encoding.decode_weights(ring.reduce(np.sum([RULE.theta(s, number) for s in summands], axis=0)))
            f += case.X[name][rows] @ theta[:, 0]
        a, b = (results[name][0][number].pairs for name in "ab")
        pairs = case.pairs
        theta = pairs.ring.reduce(pairs.weights(RULE, a.opened) + pairs.weights(RULE, b.masks))
        sums = case.phi[rows] @ pairs.ring.signed(theta).astype(np.float64)
        f += sums / 2.0 ** (encoding.f_x + encoding.f_theta - pairs.shift)
        y = case.y[rows][:, None]
        ends = [LOSS.residual(np.floor(f + shift)[:, None], y)[:, 0] for shift in (-0.01, 1.01)]
        inside = np.abs(f) < 30  # the table's range is from -32 to 31
        assert inside.mean() > 0.4
        assert (g / encoding.residual_unit >= np.minimum(*ends) - 0.02)[inside].all()
        assert (g / encoding.residual_unit <= np.maximum(*ends) + 0.02)[inside].all()


def test_weights_descend_as_in_floats(run: tuple[Case, dict[str, Any]]) -> None:
    """theta is minus the sum of coefficients times the step times the mean gradient."""
    case, results = run
    encoding, pairs = case.params.encoding, case.pairs
    a, b = (results[name][0][-1].pairs for name in "ab")
    theta = pairs.ring.signed(pairs.ring.reduce(pairs.weights(RULE, a.opened) + pairs.weights(RULE, b.masks)))
    unit = 2.0 ** (encoding.f_x + encoding.f_theta - pairs.shift) * COMPONENT_STEP**2
    expected = np.zeros(pairs.products)
    for coefficient, (batch, g) in zip(RULE.row(ITERATIONS), opened_residuals(case, results), strict=True):
        phi = case.phi[case.batches[batch]] * COMPONENT_STEP**2
        factor = float(pairs.factor(len(g))) / pairs.rows  # 1 / n, to the nearest integer ratio
        expected -= coefficient * RATE * factor * (phi.T @ (g / encoding.residual_unit))
    assert np.abs(theta / unit - expected).max() < 0.05 * max(np.abs(expected).max(), 0.05)


def test_forward_sums_of_new_rows_contain_the_pairs() -> None:
    case = Case(3, sizes=(4, 3))
    new = Case(3, 2500, sizes=(4, 3))  # more rows than products are computed of at a time

    def play(case: Case, context: PartyContext, session: SharesSession) -> tuple[SharedState, Any]:
        state = trained(case, context, session)[0][-1]
        X: Any = new.X[context.me]
        if context.me in "ab":
            X = ColumnsWithPairs(X, new.components[context.me], PairSums(session, case.pairs))
        return state, ForwardSums(session.products, case.params, state, "scores", 0, len(X)).block(0, X)

    results = case.run(play)
    encoding, ring = case.params.encoding, case.ring
    h = ring.reduce(results["a"][1] + results["b"][1])
    f = np.zeros(2500)
    for name in case.names:
        summands = [results[name][0].own_share]
        summands += [results[holder][0].peer_shares[name] for holder in "ab" if holder != name]
        theta = encoding.decode_weights(ring.reduce(np.sum([RULE.result(s, ITERATIONS) for s in summands], axis=0)))
        f += new.X[name] @ theta[:, 0]
    pairs, a, b = case.pairs, *(results[name][0].pairs for name in "ab")
    theta = pairs.weights(RULE, a.opened, result=True) + pairs.weights(RULE, b.masks, result=True)
    sums = new.phi @ pairs.ring.signed(pairs.ring.reduce(theta)).astype(np.float64)
    f += sums / 2.0 ** (encoding.f_x + encoding.f_theta - pairs.shift)
    assert sums.any()
    assert np.abs(np.ldexp(ring.signed(h)[:, 0].astype(float), -encoding.f_x - encoding.f_theta) - f).max() < 0.01


@pytest.mark.parametrize("rows", [2, PRODUCT_ROWS, PRODUCT_ROWS + 1])
def test_shared_products_add_up(rows: int, tmp_path: Path) -> None:
    """With shares in memory and on disk, read in blocks that end before, at and after the end of a chunk of rows."""
    case, cuts = Case(rows=rows), [cut for cut in (1, *sizes_around(PRODUCT_ROWS, 1)) if cut < rows]
    sources = (None, 10**6), (tmp_path, 10**6), (None, 1), (tmp_path, 1)
    for folder, disk_rows in sources if rows == PRODUCT_ROWS + 1 else sources[-1:]:

        def play(
            case: Case,
            context: PartyContext,
            session: SharesSession,
            folder: Path | None = folder,
            disk_rows: int = disk_rows,
        ) -> Any:
            columns = case.shared(session, None if folder is None else folder / context.me, disk_rows=disk_rows)
            assert columns is not None
            whole = columns.block(0, rows)
            for cut in cuts:
                np.testing.assert_array_equal(columns.block(0, cut), whole[:cut])
                np.testing.assert_array_equal(columns.block(cut, rows), whole[cut:])
                np.testing.assert_array_equal(columns.block(cut - 1, cut), whole[cut - 1 : cut])
            return columns.name, whole

        results = case.run(play)
        (name, mine), (other_name, theirs) = results["a"], results["b"]
        assert name == other_name
        assert (case.pairs.ring.signed(case.pairs.ring.reduce(mine + theirs)) == case.phi).all()
        for share in (mine, theirs) if rows > 2 else ():  # each share alone is uniform
            top = (share.ravel() >> np.uint64(case.pairs.bits - 4)).astype(int)
            assert stats.chisquare(np.bincount(top, minlength=16)).pvalue > 1e-9


STORED = "none", "first", "second", "of other components", "of other components at b"
"""A party's folder before a run contains no shares, shares of one of two runs, or shares of other components: of both
parties or of one."""


def test_stored_shares_are_used_by_both_or_by_none(tmp_path: Path) -> None:
    """Only if both have stored the shares of the same run; otherwise they compute new ones, which are right."""
    case, other, other_b, folder = Case(rows=40), Case(rows=40), Case(rows=40), tmp_path / "present"
    other.components, other.phi = {name: X[::-1].copy() for name, X in case.components.items()}, case.phi[::-1]
    a, b = (X.astype(np.int64) for X in case.components.values())
    other_b.components = {"a": case.components["a"], "b": case.components["b"][::-1].copy()}
    other_b.phi = (b[::-1, :, None] * a[:, None, :]).reshape(40, -1)
    products, lock = list[Event](), threading.Lock()

    def watch(event: Event) -> None:
        if isinstance(event.message, MaskedCorrelations):
            with lock:
                products.append(event)

    def run_in(folder: Path, case: Case = case) -> tuple[bytes, bool]:
        """Share the products in this folder; return the name of the shares, and whether they were computed now."""
        products.clear()

        def play(case: Case, context: PartyContext, session: SharesSession) -> Any:
            columns = case.shared(session, folder / context.me)
            assert columns is not None
            return columns.name, columns.block(0, 40)

        (name, mine), (other_name, theirs) = case.run(play, observe=watch).values()
        assert name == other_name
        assert (case.pairs.ring.signed(case.pairs.ring.reduce(mine + theirs)) == case.phi).all()
        return name, bool(products)

    cases = dict(zip(STORED[1:], (case, case, other, other_b), strict=True))
    names = {kind: run_in(tmp_path / kind, stored)[0] for kind, stored in cases.items()}
    assert len(set(names.values())) == 4
    for number, kinds in enumerate(itertools.combinations_with_replacement(STORED, 2)):
        of_a, of_b = kinds[:: -1 if number % 2 else 1]  # by turns, one or the other party lacks what its peer has
        shutil.rmtree(folder, ignore_errors=True)
        for name, kind in (("a", of_a), ("b", of_b)):
            if kind != "none":
                (folder / name).mkdir(parents=True)
                shutil.copy(tmp_path / kind / name / pair_columns.PAIR_FILE, folder / name)
        fits = of_a == of_b and of_a in STORED[1:3]
        name, computed = run_in(folder)
        assert computed != fits, (of_a, of_b)
        assert (name in names.values()) == fits, (of_a, of_b)


def test_messages_of_gradients_are_uniform() -> None:
    case = Case(sizes=(16, 16))
    events: list[Event] = []
    case.run(trained, observe=events.append)
    for receiver in "ab":
        words = [
            case.pairs.ring.unpack(event.message.words, (case.pairs.products,))
            for event in events
            if event.direction == "recv" and event.me == receiver and isinstance(event.message, MaskedGradient)
        ]
        assert len(words) == ITERATIONS
        top = (np.concatenate(words) >> np.uint64(case.pairs.bits - 4)).astype(int)
        assert stats.chisquare(np.bincount(top, minlength=16)).pvalue > 1e-9


@pytest.mark.parametrize("bits", [40, 48, 56])
def test_limbs_are_exact(bits: int) -> None:
    pairs, ring = PairParams(1, 1, bits, 0, 1.0, 1), ShareRing(bits)
    edges = [0, 1, 2**13 - 1, 2**13, 2**14, 2**27, 2**28 - 1, 2 ** (bits - 1), 2**bits - 1]
    words = np.concatenate(
        [np.array(edges, np.uint64), ring.reduce(np.arange(10**4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))]
    )
    limbs = pairs.split(words[:, None])
    assert np.abs(limbs.astype(int)).max() <= 2**13
    total = sum(ring.of(limb.astype(np.int64)) << np.uint64(14 * number) for number, limb in enumerate(limbs))
    assert (ring.reduce(np.asarray(total))[:, 0] == words).all()
    V = ring.reduce(words[:, None] * np.uint64(3))
    stacked = np.concatenate(limbs).astype(np.int64).view(np.uint64)
    product = (stacked * pairs.multiples(V)).sum(dtype=np.uint64)
    assert ring.reduce(product) == ring.reduce((words[:, None] * V).sum(dtype=np.uint64))


def test_small_products_have_the_bits_of_components() -> None:
    assert small_products.SMALL_BITS == COMPONENT_BITS

"""Checks, draws and bounds must hold for every instance and not only for the first: output, block, layout, tag or row.

Each probe covers all instances of its kind. `SLIPS` makes the code use the first instance for all, and the probe of
its class must then fail.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
import pytest
from selfcheck.mutants.mutant import Edit, edited

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import ciphertexts, ring_sampling
from securevfl.crypto.kernel.ciphertexts import ProductHider
from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.kernel.ring_layout import choose_layout
from securevfl.crypto.kernel.row_parameters import OPENED_HEADER
from securevfl.crypto.kernel.shares import KernelShares, PreparedWords
from securevfl.crypto.key_derivation import SYMMETRIC_KEY_BYTES
from securevfl.crypto.paillier.paillier_checks import PAILLIER_CHECKS
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import KeyHolder, LinearScheme, OpeningShape
from securevfl.errors import OpeningMismatch, RangeError
from securevfl.models.losses import LOSSES
from securevfl.models.row_weights import WeightedLoss
from securevfl.protocols.residuals.defences import DEFENCES, Rounding
from securevfl.protocols.shares import range_count, table_lookup
from tests.small_keys import SMALL

RNG = np.random.default_rng(3)
NOTICED = AssertionError, pytest.fail.Exception, ValueError, IndexError


def zeros_of_answers() -> None:
    """Check that each ciphertext of an answer has a separate encryption of zero, over outputs and column blocks."""
    drawn, blocks = [0], [0]
    real, encrypted = ring_sampling.ternary, ProductHider._encrypted

    def ternary(prg: Prg, shape: tuple[int, ...]) -> Floats:
        drawn[0] += int(np.prod(shape))
        return real(prg, shape)

    def counting(self: ProductHider, layout: Any, total: Floats, *remaining: Any) -> tuple[Floats, Floats]:
        blocks[0] += layout.points * layout.r * total.shape[3]
        return encrypted(self, layout, total, *remaining)

    n, c, d = 200, 3, 160
    with mock.patch.object(ciphertexts, "ternary", ternary), mock.patch.object(ProductHider, "_encrypted", counting):
        shares = KernelShares(40)
        holder = shares.keygen(bytes(32))
        V, W = RNG.integers(0, 2**40, (n, c), dtype=np.uint64), RNG.integers(-9, 9, (n, d))
        evaluator, drawn[0] = shares.evaluator(holder.public, bytes(32)), 0
        evaluator.product(evaluator.prepare(W), holder.encrypt(V, columns=d))
        assert choose_layout(n, c, d).column_blocks(d) > 1
        assert drawn[0] == blocks[0] > 0
        gradient = KernelGradient()
        key = gradient.keygen(columns=d)
        rows, drawn[0], blocks[0] = gradient.evaluator(key.public), 0, 0
        sealed = key.encrypt(RNG.uniform(-1, 1, (n, c)), bound=1.0)
        drawn[0] = 0
        rows.blind(rows.transpose_product(rows.prepare(RNG.normal(size=(n, d))), sealed))
        assert drawn[0] == blocks[0] > 0


def layouts_of_a_product() -> None:
    """Check that prepared values of W work only for their layout, for two layouts that share a size."""
    n, d, bits = 400, 12, 40
    by_layout = {}
    for c, columns, uses in product((1, 2, 5, 9, 33, 64), (1, 4, 12, 60, 300), (1, 8)):
        layout = choose_layout(n, c, columns, uses)
        by_layout[layout.r, layout.s] = c, columns, uses
    pairs = [
        (one, other)
        for one in by_layout
        for other in by_layout
        if one != other and (one[0] == other[0] or one[1] == other[1])
    ]
    assert {one[0] == other[0] for one, other in pairs} == {True, False}
    scheme, W = KernelShares(bits), RNG.integers(-99, 99, (n, d))
    holder = scheme.keygen(bytes(32))
    evaluator = scheme.evaluator(holder.public, bytes(32))
    prepared = evaluator.prepare(W)
    of_r, of_s = (next(pair for pair in pairs if pair[0][place] == pair[1][place]) for place in (0, 1))
    for layout in (*of_r, *of_s):
        c, columns, uses = by_layout[layout]
        V = RNG.integers(0, 2**bits, (n, c), dtype=np.uint64)
        reply, local = evaluator.product(prepared, holder.encrypt(V, columns=columns, uses=uses))
        expected = W.astype(np.uint64).T @ V
        assert np.array_equal((local + holder.open(reply)) & np.uint64(2**bits - 1), expected & np.uint64(2**bits - 1))


def largest_products() -> None:
    """Check that admitted products are exact for every shape, with the largest entries that the rows allow."""
    bits = 56
    scheme = KernelShares(bits)
    holder = scheme.keygen(bytes(32))
    evaluator, refused = scheme.evaluator(holder.public, bytes(32)), 0
    for n, c, d in ((60, 1, 64), (2000, 1, 8), (3000, 2, 2)):
        per_entry = scheme._parameters.noise(n, 1 << 30) / (1 << 30)
        W = np.full((n, d), int(0.09 / per_entry))
        V = RNG.integers(0, 2**bits, (n, c), dtype=np.uint64)
        try:
            reply, local = evaluator.product(evaluator.prepare(W), holder.encrypt(V, columns=d))
        except RangeError:
            refused += 1
            continue
        expected = W.astype(np.uint64).T @ V
        assert np.array_equal((local + holder.open(reply)) & np.uint64(2**bits - 1), expected & np.uint64(2**bits - 1))
    assert refused


def openings_of_outputs() -> None:
    """Check that a changed opened value is detected in any output and column, with every engine."""
    n, c, d = 40, 3, 4
    g, J = RNG.uniform(-1, 1, (n, c)), RNG.normal(size=(n, d))
    engines: list[tuple[LinearScheme, Callable[[KeyHolder, bytes, int, int], bytes]]] = [
        (KernelGradient(), _moved_level),
        (SMALL.scheme(), _moved_window),
    ]
    for scheme, moved in engines:
        holder = scheme.keygen()
        evaluator = scheme.evaluator(holder.public)
        total = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
        for output in range(c):
            blinded, mask = evaluator.blind(total)
            opened = holder.open(blinded, OpeningShape(n, c, d))
            with pytest.raises(OpeningMismatch):
                evaluator.unblind(moved(holder, opened, output, c), mask)
        blinded, mask = evaluator.blind(total)
        np.testing.assert_allclose(
            evaluator.unblind(holder.open(blinded, OpeningShape(n, c, d)), mask), J.T @ g, atol=1e-3
        )


def _moved_level(holder: KeyHolder, opened: bytes, output: int, outputs: int) -> bytes:
    levels = np.frombuffer(opened, "<i4", offset=OPENED_HEADER.size).copy()
    levels[output * (len(levels) // outputs)] += 1 << 25
    return opened[: OPENED_HEADER.size] + levels.tobytes()


def _moved_window(holder: KeyHolder, opened: bytes, output: int, outputs: int) -> bytes:
    head, width = 46, 4 + PAILLIER_CHECKS
    size = (len(opened) - head) // (width * outputs)
    at = head + output * width * size
    value = (int.from_bytes(opened[at : at + size], "big") + (1 << 8 * size - 14)) % (1 << 8 * size)
    return opened[:at] + value.to_bytes(size, "big") + opened[at + size :]


def masks_of_counted_rows() -> None:
    """Check that every row has a separate mask in a count of sums out of range."""
    drawn: list[int] = []

    class Ring(type(range_count._RING)):  # type: ignore[misc]
        def uniform(self, prg: Prg, shape: Any) -> Any:
            drawn.append(int(np.prod(shape)))
            return super().uniform(prg, shape)

    parties = [party.take(np.arange(60, dtype=np.intp)) for party in vfl.datasets.breast_cancer()]
    protocol = vfl.Protocol(shares=vfl.Shares(chunk=1))
    accepts = ["small_metrics", "label_auc", "scores"]
    job = vfl.Job(model=vfl.Logistic(), protocol=protocol, batch_size="all", epochs=1, accepts=accepts)
    with mock.patch.object(range_count, "_RING", Ring(range_count._RING.bits)):
        run = vfl.simulate(job, parties)
    rows = len(run.job.schedule(parties[0].register).train)
    assert drawn
    assert min(drawn) == rows


def draws_of_defences() -> None:
    """Check that a randomised defence draws separately for each row and output."""
    n, c = 4000, 3
    for kind in DEFENCES.values():
        defence = kind(**{"sigma": 0.5} if "sigma" in kind.model_fields else {})
        moved = defence.apply(np.full((n, c), 0.2), Prg(bytes(SYMMETRIC_KEY_BYTES), "noise")) - 0.2
        if len(np.unique(moved)) == 1:
            continue  # not randomised
        between = np.corrcoef(moved.T)[np.triu_indices(c, 1)]
        assert np.abs(between).max() < 6.2 / n**0.5, kind.__name__  # a correct one fails with P = 1e-9


def steps_of_weighted_losses() -> None:
    """Check that step sizes hold for the row with the largest weight, by the stated bound of the second derivative."""
    bounded = [loss for loss in LOSSES.values() if loss.curvature is not None]
    assert len(bounded) > 5
    for loss in bounded:
        assert WeightedLoss(loss, max_weight=8.0).curvature == pytest.approx(8.0 * loss.curvature)


PROBES = (
    zeros_of_answers,
    layouts_of_a_product,
    largest_products,
    openings_of_outputs,
    masks_of_counted_rows,
    draws_of_defences,
    steps_of_weighted_losses,
)
SLIPS: dict[str, tuple[Callable[[], Edit], Callable[[], None]]] = {
    "one encryption of zero for all column blocks": (
        lambda: edited(ProductHider, "_encrypted", ("prg, total.shape[3])", "prg, 1)")),
        zeros_of_answers,
    ),
    "values of another s": (
        lambda: edited(
            PreparedWords, "values", ("if self._slot != (layout.r, layout.s):", "if self._slot[0] != layout.r:")
        ),
        layouts_of_a_product,
    ),
    "values of another r": (
        lambda: edited(
            PreparedWords, "values", ("if self._slot != (layout.r, layout.s):", "if self._slot[1] != layout.s:")
        ),
        layouts_of_a_product,
    ),
    "noise by samples alone": (
        lambda: edited(PreparedWords, "deviation", ("self.shape[0] * columns", "self.shape[0]")),
        largest_products,
    ),
    "openings of the first output": (
        lambda: edited(PaillierEvaluator, "unblind", ("for k in range(c)):", "for k in range(1)):")),
        openings_of_outputs,
    ),
    "one mask for all rows": (
        lambda: edited(
            table_lookup,
            "_send_entries",
            (
                'ring.uniform(Prg.fresh("masks of entries"), indices.size)',
                'np.repeat(ring.uniform(Prg.fresh("masks of entries"), 1), indices.size)',
            ),
        ),
        masks_of_counted_rows,
    ),
    "one draw a row for all outputs": (
        lambda: edited(Rounding, "apply", ("uniforms(prg, g.shape)", "uniforms(prg, (len(g), 1))")),
        draws_of_defences,
    ),
    "curvature without the largest weight": (
        lambda: edited(WeightedLoss, "__init__", ("max_weight * loss.curvature", "loss.curvature")),
        steps_of_weighted_losses,
    ),
}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_every_instance(probe: Callable[[], None]) -> None:
    probe()


@pytest.mark.parametrize("slip", SLIPS)
def test_the_first_instance_is_not_enough(slip: str) -> None:
    patch, probe = SLIPS[slip]
    owner, name, value = patch()
    with mock.patch.object(owner, name, value), pytest.raises(NOTICED):
        probe()

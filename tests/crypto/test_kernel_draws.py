"""Random numbers of the kernel (this package's encryption) are never reused in outputs, pieces, messages or keys."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel import gradient, row_plaintexts
from securevfl.crypto.kernel.ciphertexts import KernelSecretKey, ProductHider
from securevfl.crypto.kernel.gradient import KernelGradient, KernelGradientHolder
from securevfl.crypto.kernel.opening_checks import MIN_CHECKS
from securevfl.crypto.kernel.ring_layout import choose_layout
from securevfl.crypto.kernel.shares import KernelEvaluator, KernelShares
from securevfl.crypto.scheme import OpeningShape

N, C, D = 120, 70, 8
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce sizes so that a message has several pieces."""
    monkeypatch.setattr(row_plaintexts, "BLOCKS_PER_PIECE", 2)


def gradient_messages() -> None:
    """Encrypt two messages under two keys, at once and in pieces, answer them and decrypt the answers."""
    g, J = RNG.uniform(-1, 1, (N, C)), RNG.normal(size=(N, D))
    for _ in range(2):
        holder = KernelGradient().keygen(columns=D)
        evaluator = KernelGradient().evaluator(holder.public)
        assert len([piece for piece, _ in holder.encrypt_pieces(g, bound=1.0)]) > 1
        product = evaluator.transpose_product(evaluator.prepare(J), holder.encrypt(g, bound=1.0))
        holder.open(evaluator.blind(product)[0], OpeningShape(N, C, D))


def share_messages() -> None:
    """Encrypt two messages under two keys and answer them."""
    scheme, V = KernelShares(40), RNG.integers(0, 2**40, (N, C), dtype=np.uint64)
    W = RNG.integers(-99, 99, (N, D))
    for coin in (bytes(32), bytes(31) + b"\1"):
        holder = scheme.keygen(coin)
        evaluator = scheme.evaluator(holder.public, coin)
        for _ in range(2):
            evaluator.product(evaluator.prepare(W), holder.encrypt(V, columns=D))


MESSAGES = [gradient_messages, share_messages]


@pytest.mark.parametrize("messages", MESSAGES)
def test_no_second_polynomial_serves_twice(messages: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second polynomial a is never used twice: two ciphertexts c0 = m - a s with the same a would reveal m - m'."""
    result, blocks, real = set[bytes](), [0], KernelSecretKey.seal

    def seal(self: KernelSecretKey, layout: object, message: Floats, second: Floats, prg: object) -> bytes:
        for block in range(second.shape[3]):
            result.add(np.ascontiguousarray(second[:2, :8, :, block]).tobytes())
        blocks[0] += second.shape[3]
        return real(self, layout, message, second, prg)  # type: ignore[arg-type]

    monkeypatch.setattr(KernelSecretKey, "seal", seal)
    messages()
    assert blocks[0] > 8
    assert len(result) == blocks[0]


@pytest.mark.parametrize("messages", MESSAGES)
def test_no_value_of_an_answer_has_the_mask_of_another(
    messages: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All masked residues (at least 72 bits) are different, except with probability 2^-40."""
    masks = list[Floats]()

    def record(kind: Any) -> None:
        real = kind._hidden

        def hidden(self: object, *of: object) -> tuple[bytes, Floats]:
            answer, mask = real(self, *of)
            masks.append(mask.reshape(len(mask), -1).T)
            return answer, mask

        monkeypatch.setattr(kind, "_hidden", hidden)

    record(ProductHider)
    record(KernelEvaluator)
    messages()
    rows = np.concatenate(masks)
    assert len(rows) >= 2 * C * D
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_no_value_of_an_opening_has_the_dither_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every opened value has its own dither (random number before rounding), in all columns, outputs and openings."""
    shapes, drawn = list[tuple[int, ...]](), list[Floats]()
    real, rounded = gradient.dither, KernelGradientHolder._rounded

    def dither(prg: object, primes: object, bits: int, shape: tuple[int, ...]) -> Floats:
        result = real(prg, primes, bits, shape)  # type: ignore[arg-type]
        drawn.append(result.reshape(len(result), -1).T)
        return result

    def opened(self: KernelGradientHolder, prg: object, values: Floats) -> Floats:
        shapes.append(values.shape[1:])
        return rounded(self, prg, values)  # type: ignore[arg-type]

    monkeypatch.setattr(gradient, "dither", dither)
    monkeypatch.setattr(KernelGradientHolder, "_rounded", opened)
    gradient_messages()
    values = sum(int(np.prod(shape)) for shape in shapes)
    rows = np.concatenate(drawn)
    assert values >= 2 * C * D
    assert len(np.unique(rows, axis=0)) == len(rows) == values


def test_several_blocks_of_outputs_are_what_is_tried() -> None:
    """The layouts of these tests have several blocks of outputs; otherwise, reuse across
    blocks would not be noticed.
    """
    assert choose_layout(N, C, D).output_blocks > 1
    assert choose_layout(N, C, D + MIN_CHECKS, 8, 1).output_blocks > 1

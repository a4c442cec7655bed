"""A passive party that requests openings beyond its gradient: the attack, and its refusal.

Each attack succeeds if the one check that prevents it is removed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto.kernel.opening_checks import columns_with_checks
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.row_encoding import g_scale
from securevfl.crypto.kernel.row_parameters import BLINDED_HEADER, OPENED_HEADER, SEALED_HEADER
from securevfl.crypto.lattice import residue_encoding
from securevfl.crypto.lattice.lattice_gradient import LatticeGradientParameters, LatticeHolder
from securevfl.crypto.lattice.polynomial_ring import SealRing
from securevfl.crypto.paillier.paillier_keys import SecretKey
from securevfl.crypto.paillier.paillier_product import PaillierEvaluator, PaillierHolder
from securevfl.crypto.scheme import OpeningShape
from securevfl.data.party import register_of
from securevfl.errors import LimitError, ProtocolError, ShapeMismatch
from securevfl.protocols.engines import Engine
from securevfl.protocols.residuals.sealed_residual import (
    OpenedProduct,
    ResidualCiphertext,
    SealedActive,
    SealedPassive,
    product_of,
)
from securevfl.runtime.disclosure_gate import DisclosureGate
from securevfl.runtime.observer import Event
from tests.builders import raises_code
from tests.small_keys import SMALL

TESTED_ENGINES = [vfl.Ckks(), SMALL]


def engine_job(engine: Engine, **keys: object) -> vfl.Job:
    defaults: dict[str, object] = {
        "model": vfl.Logistic(),
        "optimizer": vfl.FedBCD(lr=0.1),
        "batch_size": 64,
        "epochs": 1,
    }
    return vfl.Job(**(defaults | keys), protocol=vfl.Protocol(residual=engine))


def asks_for_every_row(self, exchange, sealed, evaluator, model, batch):
    """Return a passive party's gradient from the identity in place of J, so that it sees each row's g."""
    X = model.jacobian(batch.X).matrix
    blinded, mask = evaluator.blind(product_of(evaluator, evaluator.prepare(np.eye(len(X))), sealed))
    rows = evaluator.unblind(self.ask_to_open(exchange, blinded), mask)
    read.append((batch.index, rows))
    return X.T @ rows


read: list[tuple[int, np.ndarray]] = []


@pytest.fixture
def deviating(monkeypatch):
    read.clear()
    monkeypatch.setattr(SealedPassive, "gradient", asks_for_every_row)


@pytest.mark.parametrize("engine", TESTED_ENGINES, ids=lambda engine: engine.name)
def test_the_identity_in_place_of_j_is_refused(engine: Engine, deviating: None) -> None:
    events: list[Event] = []
    with raises_code(ProtocolError, "SVFL-PROTOCOL-CHEATING", party="shop"):
        vfl.simulate(engine_job(engine), vfl.datasets.breast_cancer(), workers=1, observe=events.append)
    sent = [type(event.message) for event in events if event.me == "bank" and event.direction == "send"]
    assert ResidualCiphertext in sent
    assert OpenedProduct not in sent
    assert read == []


@pytest.mark.parametrize("engine", TESTED_ENGINES, ids=lambda engine: engine.name)
def test_without_either_check_it_reads_every_label(
    engine: Engine, deviating: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is compared with the agreed columns, and the opening with the recorded bits."""
    monkeypatch.setattr(OpeningShape, "check", lambda self, rows, outputs, columns: None)
    bank, shop = vfl.datasets.breast_cancer()
    chosen = engine_job(engine, batch_size=len(bank) // 2)
    with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
        vfl.simulate(chosen, [bank, shop], workers=1)
    assert read == []
    monkeypatch.setattr(DisclosureGate, "check", lambda self, message, disclosed: None)
    vfl.simulate(chosen, [bank, shop], workers=1)
    partition = chosen.schedule(register_of([bank, shop])).partition(0)
    assert len(read) == len(partition)
    for index, rows in read:
        assert np.array_equal(rows[:, 0] < 0, bank.y[partition[index]] == 1)


def test_a_second_opening_of_one_residual_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends its product twice, but each residual is opened once."""
    honest, events, requested, more = SealedPassive.gradient, [], [], []

    def twice(self, exchange, sealed, evaluator, model, batch):
        sealed = [*sealed]
        gradient = honest(self, exchange, sealed, evaluator, model, batch)
        J = model.jacobian(batch.X).matrix
        blinded, _ = evaluator.blind(product_of(evaluator, evaluator.prepare(J), sealed))
        requested.append(exchange)
        more.append(self.ask_to_open(exchange, blinded))
        return gradient

    monkeypatch.setattr(SealedPassive, "gradient", twice)
    with raises_code(LimitError, "SVFL-PROTOCOL-LIMIT", party="shop"):
        vfl.simulate(engine_job(vfl.Ckks(), epochs=2), vfl.datasets.breast_cancer(), observe=events.append)
    assert requested == [0]
    assert more == []
    at_bank = [type(event.message) for event in events if event.me == "bank" and event.direction == "send"]
    assert ResidualCiphertext in at_bank
    for end in range(len(at_bank)):
        assert at_bank[:end].count(OpenedProduct) <= at_bank[:end].count(ResidualCiphertext)


PARAMETERS = LatticeGradientParameters()
DIGITS = 12  # ternary coefficients of the key in one opened value


def crafted(ring: SealRing, key: bytes, shape: OpeningShape, s: int, offset: int) -> bytes:
    """Return a reply with c0 = 0 and c1 = A sum_i 3^i x^(offset + i): one coefficient of c1 s has many of s."""
    step = PARAMETERS.modulus // 3**DIGITS
    c1 = np.zeros(ring.shape[1:], np.uint64)
    for i in range(DIGITS):
        sign = 1 if offset + i < DEGREE else -1
        c1[:, (offset + i) % DEGREE] = [sign * step * 3**i % p for p in ring.primes]
    zeros = np.zeros((len(ring.primes), width(shape, s)), np.uint64)
    header = BLINDED_HEADER.pack(b"SLB4", key, shape.rows, shape.outputs, 1, s, shape.columns)
    return header + residue_encoding.pack(c1, ring.primes) + residue_encoding.pack(zeros, ring.primes)


def width(shape: OpeningShape, s: int) -> int:
    """Return the number of values in an opening: those of the columns and of the checks."""
    return columns_with_checks(RingLayout(shape.rows, shape.outputs, 1, s), shape.columns)


def digits(values: np.ndarray) -> np.ndarray:
    """Return the balanced ternary digits (count, DIGITS) of the opened values."""
    step = PARAMETERS.levels / 3**DIGITS
    remaining = np.rint(values / step).astype(int)
    out = np.empty((len(values), DIGITS), int)
    for i in range(DIGITS):
        out[:, i] = (remaining + 1) % 3 - 1
        remaining = (remaining - out[:, i]) // 3
    return out


def test_crafted_ciphertexts_reveal_an_epochs_key_as_documented() -> None:
    """This is documented and not prevented: 4,096 ternary coefficients, 12 in each value, 32 values in each opening."""
    ring, shape = PARAMETERS.ring, OpeningShape(256, 1, 16)
    holder = LatticeHolder(PARAMETERS, shape.columns)
    g = np.random.default_rng(0).uniform(-1, 1, (256, 1))
    sealed = holder.encrypt(g, bound=1.0)
    key, _, _, _, s, _ = SEALED_HEADER.unpack_from(sealed)[1:]
    secret = np.zeros(DEGREE, int)
    places = np.arange(width(shape, s)) * s + s - 1
    offsets = range(0, s, DIGITS)
    for offset in offsets:
        opened = holder.open(crafted(ring, key, shape, s, offset), shape)
        result = digits(np.frombuffer(opened, "<i4", offset=OPENED_HEADER.size).astype(float))
        for place, row in zip(places, result, strict=True):
            for i, digit in enumerate(row):
                at = place - offset - i
                secret[at % DEGREE] = digit if at >= 0 else -digit
    assert len(offsets) * len(places) == 352
    assert g_from_key(sealed, secret, g.shape) == pytest.approx(g, abs=1e-6)


def g_from_key(sealed: bytes, secret: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return c0 + c1 s of each ciphertext, by the attacker's arithmetic."""
    n, c = shape
    *_, r, s, bound = SEALED_HEADER.unpack_from(sealed)
    layout = RingLayout(n, c, r, s)
    scale, size = g_scale(PARAMETERS, layout, bound), PARAMETERS.sealed_size(layout, c, 1)
    results = [
        message(layout, sealed[at : at + size], secret)[:s] for at in range(SEALED_HEADER.size, len(sealed), size)
    ]
    return np.concatenate(results)[:n, None] / scale


def message(layout: RingLayout, sealed: bytes, secret: np.ndarray) -> np.ndarray:
    """Return the coefficients of one ciphertext's message, centred at zero."""
    ring, primes = PARAMETERS.ring, PARAMETERS.ring.primes
    small = np.mod(secret, np.array(primes)[:, None]).astype(np.uint64)
    key = ring.io.ciphertext(ring.level, np.stack([small, small]), ntt=False)
    ring.evaluator.transform_to_ntt_inplace(key)
    residues, s = (ring.io.residues(item, ring.shape) for item in (ring.unsealed(layout, 1, sealed), key))
    total = np.array(
        [
            [(int(a) + int(b) * int(x)) % p for a, b, x in zip(c0, c1, row, strict=True)]
            for c0, c1, row, p in zip(*residues, s[0], primes, strict=True)
        ],
        np.uint64,
    )
    both = ring.io.ciphertext(ring.level, np.stack([total, total]), ntt=True)
    ring.evaluator.transform_from_ntt_inplace(both)
    values = ring.numbers(ring.io.residues(both, ring.shape)[0])
    return np.array([float(v - ring.q if v > ring.q // 2 else v) for v in values])


@pytest.mark.parametrize("width", [256, 4096])
def test_a_wider_crafted_ciphertext_is_refused(width: int) -> None:
    """One message of 6 MB with a constant c1 would reveal the whole key at once."""
    holder = LatticeHolder(PARAMETERS, 15)
    sealed = holder.encrypt(np.zeros((1, 1)), bound=1.0)
    key = SEALED_HEADER.unpack_from(sealed)[1]
    reply = crafted(PARAMETERS.ring, key, OpeningShape(1, 1, width), 1, 0)
    with pytest.raises(ShapeMismatch):
        holder.open(reply, OpeningShape(1, 1, 15))


def test_more_samples_do_not_widen_paillier_windows() -> None:
    """Slots are as wide as the agreed rows require. A reply with more rows would reveal cross terms and is refused."""
    key = SecretKey.generate(2048)
    holder, evaluator = PaillierHolder(key), PaillierEvaluator(key.public)
    product = evaluator.transpose_product(
        evaluator.prepare(np.ones((4, 2))), holder.encrypt(np.ones((4, 1)), bound=1.0)
    )
    blinded, _ = evaluator.blind(product)
    wider = blinded[:22] + (1 << 24).to_bytes(4, "big") + blinded[26:]
    with raises_code(ShapeMismatch, "SVFL-CRYPTO-SHAPE", agreed=(4, 1, 2)):
        holder.open(wider, OpeningShape(4, 1, 2))


def test_the_active_party_knows_all_passive_widths() -> None:
    """A party may open the number of values that its Hello declared."""
    widths = []
    honest = SealedActive.__init__

    def noted(self, context, *remaining):
        widths.append(dict(context.parameters))
        honest(self, context, *remaining)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedActive, "__init__", noted)
        parties = vfl.datasets.breast_cancer(parties=3)
        vfl.simulate(engine_job(vfl.Ckks()), parties)
    assert widths == [{party.name: party.X.shape[1] for party in parties if not party.active}]
    assert math.prod(widths[0].values()) > 0


@pytest.mark.parametrize("engine", TESTED_ENGINES, ids=lambda engine: engine.name)
def test_one_entry_of_a_first_gradient_reveals_14_labels(engine: Engine) -> None:
    """While weights are zero, a residual is -1/2 or 1/2, and weights by powers of two pack many of them into a number.

    It counts as one equation, which the threat model states.
    """
    scheme, rows = engine.scheme(), 14
    holder = scheme.keygen(columns=1)
    evaluator = scheme.evaluator(holder.public)
    labels = np.random.default_rng(3).random(rows) < 0.5
    sealed = holder.encrypt(np.where(labels, -0.5, 0.5)[:, None], bound=1.0)
    J = 2.0 ** -np.arange(rows)[:, None]
    blinded, mask = evaluator.blind(evaluator.transpose_product(evaluator.prepare(J), sealed))
    left, read = float(evaluator.unblind(holder.open(blinded, OpeningShape(rows, 1, 1)), mask)[0, 0]), list[bool]()
    for step in J[:, 0] / 2:
        read.append(left < 0)
        left += step if left < 0 else -step
    assert read == labels.tolist()

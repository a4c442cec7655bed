"""Encrypted products [[J^T g]] by this package's arithmetic (the kernel), compared with integers and with SEAL."""

import gc
import pickle
import weakref
from itertools import pairwise

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, SparseRows
from securevfl.crypto.kernel import gradient, row_plaintexts
from securevfl.crypto.kernel.gradient import GradientParameters, KernelGradient
from securevfl.crypto.kernel.ntt import transform
from securevfl.crypto.kernel.residue_bytes import unpack
from securevfl.crypto.kernel.residue_products import add_product, multiply_residues
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import checked_layout, choose_layout
from securevfl.crypto.kernel.ring_sampling import dither, uniform
from securevfl.crypto.kernel.row_encoding import g_scale
from securevfl.crypto.kernel.row_parameters import BLINDED_HEADER, SEALED_HEADER
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.lattice.seal_io import SealIO
from securevfl.crypto.prg import Prg
from securevfl.crypto.scheme import OpeningShape
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeError, ShapeMismatch

SCHEME, PARAMETERS = KernelGradient(), GradientParameters()
PRIMES = PARAMETERS.primes
GENERATOR = np.random.default_rng(0)
N, D = 3000, 24
J = GENERATOR.normal(size=(N, D))
J[:, 3] = 0
J[1000:2000, 4] = 0
HOLDER = SCHEME.keygen(columns=D)
EVALUATOR = SCHEME.evaluator(HOLDER.public)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_plaintexts, "BLOCKS_PER_PIECE", 2)
    monkeypatch.setattr(row_plaintexts, "TILE_COEFFICIENTS", 1 << 14)


def through(matrix, g, pieces, *, room=1 << 30, encode=True, holder=HOLDER, evaluator=EVALUATOR):
    prepared, product = evaluator.prepare(matrix, max_bytes=room), None
    for piece in pieces:
        if encode:
            evaluator.encode(prepared, piece, product)
        product = evaluator.transpose_product(prepared, piece, product)
    blinded, mask = evaluator.blind(product)
    return evaluator.unblind(holder.open(blinded, OpeningShape(*g.shape, matrix.shape[1])), mask)


def residual(c):
    return GENERATOR.uniform(-1, 1, (N, c))


@pytest.mark.parametrize(
    ("edges", "c"),
    [
        pytest.param(edges, c, marks=[pytest.mark.slow] * (c == 70 and not edges))
        for edges in (None, (), (137, 138, 2999))
        for c in (1, 3, 10, 70)
    ],
    ids=str,
)
def test_pieces_and_parts_give_the_product(edges, c) -> None:
    g = residual(c)
    matrix = J if edges is None else ChunkedMatrix([LocalPart(a, J[a:b]) for a, b in pairwise([0, *edges, N])], D)
    pieces = [piece for piece, _ in HOLDER.encrypt_pieces(g, bound=1.0)]
    assert len(pieces) > 1
    assert np.abs(through(matrix, g, pieces) - J.T @ g).max() < 5e-3
    single = [HOLDER.encrypt(g, bound=1.0)]
    assert np.abs(through(matrix, g, single, room=0, encode=False) - J.T @ g).max() < 5e-3


def test_it_is_no_less_precise_than_seal() -> None:
    """The standard deviation of 192 errors is about half of SEAL's; they differ by ten standard errors."""
    g, errors = residual(8), []
    for scheme in (SCHEME, LatticeGradient()):
        holder = scheme.keygen(columns=D)
        sealed = [holder.encrypt(g, bound=1.0)]
        decrypted_rows = through(J, g, sealed, holder=holder, evaluator=scheme.evaluator(holder.public))
        errors.append(np.sqrt(np.mean((decrypted_rows - J.T @ g) ** 2)))
    assert errors[0] < errors[1]


def test_plaintexts_are_kept_as_far_as_there_is_room() -> None:
    matrix, g = ChunkedMatrix.local(J), residual(2)
    room = J.nbytes + 3_000_000
    prepared, sealed = EVALUATOR.prepare(matrix, max_bytes=room), HOLDER.encrypt(g, bound=1.0)
    EVALUATOR.encode(prepared, sealed)
    assert J.nbytes < prepared.nbytes <= room


class Bands(SparseRows):
    """Rows with zeros in public places: each group of five hundred rows has entries in thirty columns only."""

    shape = (N, 180)

    def __init__(self) -> None:
        self.dense = np.zeros(self.shape)
        for row in range(N):
            self.dense[row, self.columns(row, row + 1)] = GENERATOR.normal(size=30)

    def columns(self, start, stop):
        return np.arange(start // 500 * 30, ((stop - 1) // 500 + 1) * 30)

    def part(self, start, stop):
        columns = self.columns(start, stop)
        return columns, self.dense[start:stop, columns]


def test_known_zeros_are_not_multiplied(monkeypatch) -> None:
    bands, g, counts = Bands(), residual(1), []
    holder = SCHEME.keygen(columns=180)
    evaluator = SCHEME.evaluator(holder.public)

    def counting(primes, total, terms, left, right):
        counts[-1] += right.size
        return add_product(primes, total, terms, left, right)

    monkeypatch.setattr(gradient, "add_product", counting)
    for matrix in (ChunkedMatrix.local(bands), bands.dense):
        counts.append(0)
        sealed = [piece for piece, _ in holder.encrypt_pieces(g, bound=1.0)]
        decrypted_rows = through(matrix, g, sealed, encode=False, holder=holder, evaluator=evaluator)
        np.testing.assert_allclose(decrypted_rows, bands.dense.T @ g, atol=5e-3)
    assert counts[0] < 0.6 * counts[1]


def test_sums_and_parameters_travel_between_processes() -> None:
    g = residual(3)
    product = EVALUATOR.transpose_product(EVALUATOR.prepare(J), HOLDER.encrypt(g, bound=1.0))
    there = pickle.loads(pickle.dumps(product.sums()))
    for one, other in zip(product.sums().reduced(), there.reduced(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert pickle.loads(pickle.dumps(PARAMETERS)) is pickle.loads(pickle.dumps(PARAMETERS))


def test_sums_stay_exact_however_many_are_added() -> None:
    largest = np.array([p // 2 for p in PRIMES.values], np.float64).reshape(-1, 1, 1, 1)
    total, terms, count = None, 0, 0
    for stretch in (100, 27, 1, 126, 128, 300, 3):
        one = np.broadcast_to(largest, (len(PRIMES), 1, 2, stretch)).astype(np.float32)
        other = np.broadcast_to(largest, (len(PRIMES), 1, stretch, 2)).astype(np.float32)
        total, terms = add_product(PRIMES, total, terms, one, other)
        count += stretch
        assert np.abs(total).max() < 2**53
    for row, p in zip(total, PRIMES.values, strict=True):
        assert (np.mod(row, p) == count * (p // 2) ** 2 % p).all()


def test_whole_floats_and_fractions_are_those_of_integers() -> None:
    numbers = np.array([0, 1, -1, 2**60 + 2**8, -(2**80), 3 * 2**74], np.float64)
    residues = PRIMES.whole(numbers)
    for x, column in zip(numbers, residues.T, strict=True):
        assert all((int(x) - int(r)) % p == 0 for r, p in zip(column, PRIMES.values, strict=True))
        exact = (int(x) / PRIMES.q + 0.5) % 1 - 0.5
        assert PRIMES.fraction(column[:, None])[0] == pytest.approx(exact, abs=1e-15)


def test_dithers_are_three_uniform_integers_less_their_mean() -> None:
    k, q = 72, PRIMES.q
    drawn = dither(Prg.fresh("test"), PRIMES, k, (3000,))
    units = [q // p * pow(q // p, -1, p) for p in PRIMES.values]
    numbers = [sum(int(r) * unit for r, unit in zip(column, units, strict=True)) % q for column in drawn.T]
    numbers = [number - q if number > q // 2 else number for number in numbers]
    unit = np.array([number / 2.0**k for number in numbers])
    assert np.abs(unit).max() < 1.5
    assert abs(unit.mean()) < 6 * 0.5 / np.sqrt(len(unit))
    assert unit.std() == pytest.approx(0.5, rel=0.1)  # three summands of variance 1/12
    assert len({number % 2**24 for number in numbers}) > 2900


def test_messages_that_are_not_what_they_should_be_are_refused() -> None:
    g = residual(2)
    prepared, sealed = EVALUATOR.prepare(J), HOLDER.encrypt(g, bound=1.0)
    blinded, mask = EVALUATOR.blind(EVALUATOR.transpose_product(prepared, sealed))
    shape = OpeningShape(N, 2, D)
    for wrong in (sealed[:-1], sealed + b"\0", sealed[: SEALED_HEADER.size], b"SLG3" + sealed[4:], sealed[:40]):
        with pytest.raises(CryptoError):
            EVALUATOR.transpose_product(prepared, wrong)
    for wrong in (blinded[:-1], blinded + b"\0", blinded[: BLINDED_HEADER.size], blinded[:-3] + b"\xff" * 3):
        with pytest.raises(CryptoError):
            HOLDER.open(wrong, shape)
    with pytest.raises(ShapeMismatch):
        HOLDER.open(blinded, OpeningShape(N, 2, D - 1))
    other = SCHEME.keygen()
    with pytest.raises(KeyMismatch):
        other.open(blinded, shape)
    opened = HOLDER.open(blinded, shape)
    for wrong in (opened[:-1], opened + b"\0"):
        with pytest.raises(CryptoError):
            EVALUATOR.unblind(wrong, mask)
    for n, c, r, s in ((N, 2, 3, 1), (N, 2, 128, 1), (N, 2, 2, 0), (N, 2, 2, N + 1)):
        key = sealed[4:20]
        with pytest.raises(CryptoError):
            EVALUATOR.transpose_product(
                prepared, SEALED_HEADER.pack(b"SGG2", key, n, c, r, s, 1.0) + sealed[SEALED_HEADER.size :]
            )
    for public in (HOLDER.public[:-1], b"SLK3" + HOLDER.public[4:], b""):
        with pytest.raises(CryptoError):
            SCHEME.evaluator(public)
    with pytest.raises(RangeError):
        HOLDER.encrypt(np.full((3, 1), 2.0), bound=1.0)
    with pytest.raises(ConfigError):
        KernelGradient(columns=0)


def test_a_key_goes_with_its_holder_and_evaluator() -> None:
    """Reference cycles do not keep a key alive after its holder and evaluator: there is a new key every epoch."""
    gc.disable()
    try:
        holder = SCHEME.keygen(columns=D)
        evaluator = SCHEME.evaluator(holder.public)
        through(J, residual(1), [holder.encrypt(residual(1), bound=1.0)], holder=holder, evaluator=evaluator)
        left = weakref.ref(holder), weakref.ref(evaluator)
        del holder, evaluator
        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


def test_layouts_count_openings() -> None:
    once, often = choose_layout(4096, 1, 100, 8), choose_layout(4096, 1, 100, 8, 20)
    assert often.column_blocks(100) < once.column_blocks(100)


class Reference:
    """SEAL's ring over the primes of the engine and a further one, the special prime, which ciphertexts do not have."""

    def __init__(self) -> None:
        special, spare = seal.CoeffModulus.Create(DEGREE, [17, 18])
        parms = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
        parms.set_poly_modulus_degree(DEGREE)
        parms.set_coeff_modulus([*(seal.Modulus(p) for p in PRIMES.values), special])
        self.context = seal.SEALContext(parms, True, seal.SEC_LEVEL_TYPE.NONE)
        parms.set_coeff_modulus([*parms.coeff_modulus(), spare])
        self.keys = seal.SEALContext(parms, True, seal.SEC_LEVEL_TYPE.NONE)
        self.special = special.value()

    def decrypted(self, secret, first, second):
        """Return the coefficients (P, N) of c0 + c1 s, computed by SEAL from coefficients centred about zero."""
        moduli = np.array([*PRIMES.values, self.special])[:, None]
        rows = np.mod(secret, moduli).astype(np.uint64)
        keys_io, io = SealIO(self.keys), SealIO(self.context)
        single = keys_io.ciphertext(self.keys.first_parms_id(), np.stack([rows, rows]), ntt=False)
        seal.Evaluator(self.keys).transform_to_ntt_inplace(single)
        values = keys_io.residues(single, (2, len(moduli), DEGREE))[0]
        key, level, evaluator = self.secret(io, values), self.context.first_parms_id(), seal.Evaluator(self.context)
        both = np.mod(np.stack([first, second]), moduli[:-1]).astype(np.uint64)
        cipher = io.ciphertext(level, both, ntt=False)
        evaluator.transform_to_ntt_inplace(cipher)
        plain = seal.Plaintext()
        seal.Decryptor(self.context, key).decrypt(cipher, plain)
        decrypted_rows = io.plain_residues(plain, (len(PRIMES), DEGREE))
        back = io.ciphertext(level, np.stack([decrypted_rows, decrypted_rows]), ntt=True)
        evaluator.transform_from_ntt_inplace(back)
        return io.residues(back, (2, len(PRIMES), DEGREE))[0].astype(np.int64)

    def secret(self, io, values):
        return SealIO(self.context).secret_key(values)


def coefficients(layout, values):
    """Return the coefficients (P, N) of one polynomial, given as values (P, M, r)."""
    return transform(PRIMES, layout.points).back(values).reshape(len(PRIMES), DEGREE)


@pytest.mark.parametrize("c", [1, 4])
def test_seal_decrypts_what_the_kernel_encrypts_and_multiplies(c) -> None:
    g, matrix = GENERATOR.uniform(-1, 1, (40, c)), GENERATOR.normal(size=(40, 7))
    holder = SCHEME.keygen(columns=7)
    evaluator, secret = SCHEME.evaluator(holder.public), holder._opener.secret
    sealed = holder.encrypt(g, bound=1.0)
    *_, r, s, _ = SEALED_HEADER.unpack_from(sealed)
    layout = checked_layout("", 40, c, r, s)
    assert (r, layout.sample_blocks) == (c, 1)
    seed, body = sealed[SEALED_HEADER.size :][:32], memoryview(sealed)[SEALED_HEADER.size + 32 :]
    first = unpack(PRIMES, body, (layout.points, c, 1))[..., 0]
    second = uniform(Prg(seed, gradient.SEALED_SECOND_LABEL), PRIMES, (layout.points, r, 1))[..., 0]
    decrypted_rows = Reference().decrypted(secret, *(coefficients(layout, values) for values in (first, second)))
    scaled = np.rint(g * g_scale(PARAMETERS, layout, 1.0))
    message = coefficients(
        layout, transform(PRIMES, layout.points).forward(layout.messages(PRIMES.whole(scaled), slice(0, 1))[..., 0])
    )
    column = np.array(PRIMES.values)[:, None]
    noise = np.mod(decrypted_rows - message.astype(np.int64) + column // 2, column) - column // 2
    assert np.abs(noise).max() <= 21
    assert (noise == noise[0]).all()
    assert 2.5 < noise[0].std() < 4.0

    product = evaluator.transpose_product(evaluator.prepare(matrix), sealed)
    (total,) = product.sums().reduced()
    hidden = total + evaluator._zero(layout, c, Prg.fresh("test"), total.shape[3])
    values = PRIMES.reduce(hidden)[..., 0]
    decrypted_rows = Reference().decrypted(
        secret,
        *(coefficients(layout, np.ascontiguousarray(values[:, :, part])) for part in (slice(0, c), slice(c, None))),
    )
    by_secret = holder._opener._by_secret(r)
    plain = values[:, :, :c, None] + multiply_residues(PRIMES, by_secret, values[:, :, c:, None])
    exact = coefficients(layout, PRIMES.reduce(np.ascontiguousarray(plain[..., 0])))
    assert (np.mod(exact, column).astype(np.int64) == decrypted_rows).all()
    positions = (layout.wanted[:7, None] * r + np.arange(c)).ravel()
    fraction = PRIMES.fraction(np.ascontiguousarray(decrypted_rows[:, positions].astype(float)))
    worth = product.scale.g * product.scale.columns.repeat(c)
    np.testing.assert_allclose((fraction * PRIMES.q * worth).reshape(7, c), matrix.T @ g, atol=1e-3)


def test_a_key_is_an_encryption_of_zero_to_seal() -> None:
    holder = SCHEME.keygen()
    evaluator = SCHEME.evaluator(holder.public)
    first, second = evaluator._polynomials
    decrypted_rows = Reference().decrypted(holder._opener.secret, first, second)
    column = np.array(PRIMES.values)[:, None]
    assert np.abs(np.mod(decrypted_rows + column // 2, column) - column // 2).max() <= 21

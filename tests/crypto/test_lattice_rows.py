"""[[J^T g]] from J and g in pieces equals the product of the whole, in bounded memory."""

import pickle
from itertools import pairwise

import numpy as np
import pytest

from securevfl.base.chunked_matrix import ChunkedMatrix, LocalPart, SparseRows
from securevfl.crypto.kernel import row_plaintexts
from securevfl.crypto.kernel.row_parameters import SEALED_HEADER
from securevfl.crypto.kernel.row_plaintexts import cached_bytes
from securevfl.crypto.lattice.lattice_gradient import CiphertextSums, LatticeGradient, LatticeGradientParameters
from securevfl.crypto.lattice.polynomial_ring import SealRing
from securevfl.crypto.scheme import OpeningShape
from securevfl.errors import CryptoError, RangeError
from tests.builders import raises_code

SCHEME = LatticeGradient()
HOLDER = SCHEME.keygen(columns=20)
EVALUATOR = SCHEME.evaluator(HOLDER.public)
N, D = 5000, 20
GENERATOR = np.random.default_rng(0)
J, G = GENERATOR.normal(size=(N, D)), GENERATOR.uniform(-1, 1, (N, 1))
J[:, 3] = 0
J[1000:3000, 4] = 0


def parts(*edges: int) -> ChunkedMatrix:
    return ChunkedMatrix([LocalPart(start, J[start:stop]) for start, stop in pairwise([0, *edges, N])], D)


def through(prepared: object, pieces: list[bytes], *, encode: bool = True) -> np.ndarray:
    """Compute J^T g with the engine."""
    product = None
    for piece in pieces:
        if encode:
            EVALUATOR.encode(prepared, piece, product)
        product = EVALUATOR.transpose_product(prepared, piece, product)
    blinded, mask = EVALUATOR.blind(product)
    return EVALUATOR.unblind(HOLDER.open(blinded, OpeningShape(*G.shape, D)), mask)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_plaintexts, "BLOCKS_PER_PIECE", 2)
    monkeypatch.setattr(row_plaintexts, "TILE_COEFFICIENTS", 1 << 15)


def pieces() -> list[bytes]:
    unblinded = [*HOLDER.encrypt_pieces(G, bound=1.0)]
    assert [last for _, last in unblinded] == [False] * (len(unblinded) - 1) + [True]
    return [piece for piece, _ in unblinded]


@pytest.mark.parametrize("encode", [True, False])
@pytest.mark.parametrize("matrix", [J, parts(), parts(1, 2500), parts(137, 138, 4999)], ids=["array", "1", "3", "4"])
def test_pieces_and_parts_give_the_product(matrix: np.ndarray | ChunkedMatrix, encode: bool) -> None:
    sent = pieces()
    assert len(sent) > 2
    prepared = EVALUATOR.prepare(matrix)
    for _ in range(2):  # plaintexts are encoded the first time, and stored
        assert np.abs(through(prepared, sent, encode=encode) - J.T @ G).max() < 2e-2


def test_one_message_is_one_piece() -> None:
    assert np.abs(through(EVALUATOR.prepare(J), [HOLDER.encrypt(G, bound=1.0)]) - J.T @ G).max() < 2e-2


@pytest.mark.parametrize("room", [0, 2_000_000])
def test_plaintexts_are_kept_as_far_as_there_is_room(room: int) -> None:
    matrix = parts()
    prepared = EVALUATOR.prepare(matrix, max_bytes=room + J.nbytes)
    sent = pieces()
    for _ in range(2):
        assert np.abs(through(prepared, sent) - J.T @ G).max() < 2e-2
        cached = cached_bytes(matrix.parts[0].chunk)  # type: ignore[attr-defined]
        assert room / 2 <= cached <= room
        assert prepared.nbytes == cached + J.nbytes


def test_a_product_that_lacks_pieces_or_has_too_many_is_none() -> None:
    prepared, sent = EVALUATOR.prepare(J), pieces()
    product = None
    for piece in sent[:-1]:
        product = EVALUATOR.transpose_product(prepared, piece, product)
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        EVALUATOR.blind(product)
    product = EVALUATOR.transpose_product(prepared, sent[-1], product)
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        EVALUATOR.transpose_product(prepared, sent[0], product)


def test_pieces_of_different_residuals_do_not_mix() -> None:
    prepared, sent = EVALUATOR.prepare(J), pieces()
    other = next(HOLDER.encrypt_pieces(G, bound=2.0))[0]
    product = EVALUATOR.transpose_product(prepared, sent[0])
    with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
        EVALUATOR.transpose_product(prepared, other, product)
    with pytest.raises(CryptoError):
        EVALUATOR.transpose_product(prepared, sent[1][: SEALED_HEADER.size + 100], product)


def test_values_that_are_not_finite_are_found_in_every_part() -> None:
    wrong = J.copy()
    wrong[-1, 2] = np.nan
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        EVALUATOR.prepare(ChunkedMatrix([LocalPart(0, wrong[:10]), LocalPart(10, wrong[10:])], D))


def test_sums_and_parameters_travel_between_processes() -> None:
    prepared = EVALUATOR.prepare(J)
    product = EVALUATOR.transpose_product(prepared, HOLDER.encrypt(G, bound=1.0))
    parameters = LatticeGradientParameters()
    there = pickle.loads(pickle.dumps(product.sums()))
    ring = parameters.ring
    for row, came in zip(product.sums().reduced(), there.reduced(), strict=True):
        assert list(row) == list(came)
        for column, one in row.items():
            np.testing.assert_array_equal(ring.io.residues(one, ring.shape), ring.io.residues(came[column], ring.shape))
    assert pickle.loads(pickle.dumps(parameters)) is pickle.loads(pickle.dumps(parameters))


WIDE, ROWS, BAND = 210, 3000, 70
BROAD = GENERATOR.normal(size=(ROWS, WIDE))
WIDE_HOLDER = SCHEME.keygen(columns=WIDE)
WIDE_EVALUATOR = SCHEME.evaluator(WIDE_HOLDER.public)


class Bands(SparseRows):
    """Rows from `start` on with zeros in public places: each group of a thousand has
    entries in seventy columns only.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self._shape = start, (stop - start, WIDE)
        self.dense = np.zeros(self._shape)
        for row in range(stop - start):
            band_start = (start + row) // 1000 * BAND
            self.dense[row, band_start : band_start + BAND] = BROAD[start + row, band_start : band_start + BAND]

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    def columns(self, start: int, stop: int) -> np.ndarray:
        first, last = (self.start + start) // 1000, (self.start + stop - 1) // 1000
        return np.arange(first * BAND, (last + 1) * BAND)

    def part(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        columns = self.columns(start, stop)
        return columns, self.dense[start:stop, columns]


@pytest.mark.parametrize("edges", [(), (1500,), (1000, 2000)])
def test_known_zeros_are_not_multiplied_and_change_nothing(
    edges: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, encode = [], SealRing.plaintext
    monkeypatch.setattr(SealRing, "plaintext", lambda *arguments: encoded.append(1) or encode(*arguments))
    bands = [Bands(start, stop) for start, stop in pairwise([0, *edges, ROWS])]
    dense, g = np.vstack([band.dense for band in bands]), G[:ROWS]
    matrix = ChunkedMatrix([LocalPart(band.start, band) for band in bands], WIDE)
    np.testing.assert_allclose(matrix.T @ g, dense.T @ g, atol=1e-12)
    sent = [piece for piece, _ in WIDE_HOLDER.encrypt_pieces(g, bound=1.0)]
    assert len(sent) > 2
    multiplied = []
    for J_or_bands in (matrix, dense):
        encoded.clear()
        product, prepared = None, WIDE_EVALUATOR.prepare(J_or_bands, max_bytes=0)
        for piece in sent:
            product = WIDE_EVALUATOR.transpose_product(prepared, piece, product)
        blinded, mask = WIDE_EVALUATOR.blind(product)
        unblinded = WIDE_EVALUATOR.unblind(WIDE_HOLDER.open(blinded, OpeningShape(ROWS, 1, WIDE)), mask)
        np.testing.assert_allclose(unblinded, dense.T @ g, atol=5e-3)
        multiplied.append(sum(encoded))
    assert multiplied[0] < 0.7 * multiplied[1]


def test_sums_with_gaps_travel_and_add_up() -> None:
    parameters, (piece, *_) = (
        LatticeGradientParameters(),
        (piece for piece, _ in WIDE_HOLDER.encrypt_pieces(G[:900], bound=1.0)),
    )
    prepared = WIDE_EVALUATOR.prepare(BROAD[:900], max_bytes=0)
    (row,) = WIDE_EVALUATOR.transpose_product(prepared, piece)._futures[0].result().reduced()
    assert len(row) > 2
    one = pickle.loads(pickle.dumps(CiphertextSums(parameters, [{k: term for k, term in row.items() if k}])))
    assert 0 not in one.reduced()[0]
    one.add(CiphertextSums(parameters, [{0: row[0]}]))
    assert one.reduced()[0][0] is row[0]
    assert set(one.reduced()[0]) == set(row)

"""SEAL decrypts ciphertexts of the kernel (this package's own encryption) and vice versa: both use the same ring.

SEAL's context has the kernel's primes and a further one, the special prime, which ciphertexts do not have.
"""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
import tenseal.sealapi as seal

from securevfl.crypto.kernel.ciphertexts import masked_first
from securevfl.crypto.kernel.ntt import multiplication_matrices, transform
from securevfl.crypto.kernel.residue_bytes import pack, packed_size, unpack
from securevfl.crypto.kernel.residue_products import multiply_residues
from securevfl.crypto.kernel.residues import DEGREE
from securevfl.crypto.kernel.ring_layout import RingLayout
from securevfl.crypto.kernel.ring_sampling import NOISE_STD, uniform
from securevfl.crypto.kernel.seeded_vectors import unpack_remainders
from securevfl.crypto.kernel.share_protocol import QUERY_HEADER, REPLY_HEADER
from securevfl.crypto.kernel.shares import QUERY_FIRST_LABEL, QUERY_SECOND_LABEL, KernelShares, ShareParameters
from securevfl.crypto.lattice.seal_io import SealIO
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_scheme import common_coin


class Reference:
    """SEAL's BFV over the primes of a ring of shares."""

    def __init__(self, bits):
        self.parameters = ShareParameters(bits)
        self.primes = self.parameters.primes.values
        self.special, spare = seal.CoeffModulus.Create(DEGREE, [17, 18])
        parms = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
        parms.set_poly_modulus_degree(DEGREE)
        parms.set_coeff_modulus([*(seal.Modulus(p) for p in self.primes), self.special])
        parms.set_plain_modulus(2**bits)
        self.context = seal.SEALContext(parms, True, seal.SEC_LEVEL_TYPE.TC128)
        assert self.context.parameters_set()
        self.io, self.level = SealIO(self.context), self.context.first_parms_id()
        keys = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)  # in this scheme ciphertexts have the primes of a key
        keys.set_poly_modulus_degree(DEGREE)
        keys.set_coeff_modulus([*parms.coeff_modulus(), spare])
        self.keys = seal.SEALContext(keys, True, seal.SEC_LEVEL_TYPE.NONE)
        self.keys_io = SealIO(self.keys)

    def ciphertext(self, polynomials):
        """Make a ciphertext of SEAL from (2, P, N) coefficients, which are centred about zero."""
        column = np.array(self.primes)[:, None]
        return self.io.ciphertext(self.level, np.mod(polynomials, column).astype(np.uint64), ntt=False)

    def decryptor(self, secret):
        """Make the decryptor of a ternary secret (N,). SEAL itself computes the values of the secret at its points."""
        key_primes = np.array([*self.primes, self.special.value()])[:, None]
        residues = np.mod(secret, key_primes).astype(np.uint64)
        key_cipher = self.keys_io.ciphertext(self.keys.first_parms_id(), np.stack([residues, residues]), ntt=False)
        seal.Evaluator(self.keys).transform_to_ntt_inplace(key_cipher)
        values = self.keys_io.residues(key_cipher, (2, len(key_primes), DEGREE))[0]
        return seal.Decryptor(self.context, self.io.secret_key(values))

    def decrypted(self, decryptor, polynomials):
        plain = seal.Plaintext()
        decryptor.decrypt(self.ciphertext(polynomials), plain)
        out = np.zeros(DEGREE, np.uint64)
        out[: plain.coeff_count()] = self.io.plain_residues(plain, (1, plain.coeff_count()))[0]
        return out


@pytest.fixture(scope="module", params=[40, 48, 56])
def reference(request):
    return Reference(request.param)


def coin():
    return common_coin(os.urandom(32), os.urandom(32), 0, "reference")


def words(bits, *shape):
    return np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64).reshape(shape) & np.uint64(2**bits - 1)


def query(parameters, sealed):
    """Return the ciphertexts (blocks, 2, P, N) of a query with all outputs of its layout, as coefficients in x."""
    _, _, n, c, r, s = QUERY_HEADER.unpack_from(sealed)
    layout, primes = RingLayout(n, c, r, s), parameters.primes
    assert c == r
    shape = layout.points, r, layout.sample_blocks
    first = unpack(primes, memoryview(sealed)[QUERY_HEADER.size + 32 :], shape)
    second = uniform(Prg(sealed[QUERY_HEADER.size :][:32], QUERY_SECOND_LABEL), primes, shape)
    back = [transform(primes, layout.points).back(half) for half in (first, second)]
    return layout, np.stack(back).transpose(4, 0, 1, 2, 3).reshape(layout.sample_blocks, 2, len(primes), DEGREE)


@pytest.mark.parametrize("outputs", [1, 4, 16])
def test_seal_decrypts_what_the_kernel_encrypts(reference, outputs):
    bits = reference.parameters.ring.bits
    holder = KernelShares(bits).keygen(coin())
    decryptor = reference.decryptor(holder._opener.secret)
    V = words(bits, 50, outputs)
    layout, ciphertexts = query(reference.parameters, holder.encrypt(V, columns=300))
    assert layout.sample_blocks > 1
    for block, polynomials in enumerate(ciphertexts):
        some = slice(block, block + 1)
        message = layout.messages(V[None, layout.rows(some)], some)[0, :, :, 0].reshape(-1)
        assert (reference.decrypted(decryptor, polynomials) == message).all()


def test_seal_decrypts_uniform_vectors_from_a_seed(reference):
    bits, primes = reference.parameters.ring.bits, reference.parameters.primes
    holder = KernelShares(bits).keygen(coin())
    sealed, V = holder.encrypt_uniform(700, 4, columns=1)
    _, _, n, c, r, s = QUERY_HEADER.unpack_from(sealed)
    layout, seed, start = RingLayout(n, c, r, s), sealed[QUERY_HEADER.size :][:32], QUERY_HEADER.size + 32
    assert c == r
    shape, steps = (layout.points, r, layout.sample_blocks), transform(primes, layout.points)
    first, second = (
        steps.back(uniform(Prg(seed, label), primes, shape)) for label in (QUERY_FIRST_LABEL, QUERY_SECOND_LABEL)
    )
    rho = unpack_remainders(primes, bits, sealed[start:], n * c).reshape(n, c)
    first = primes.reduce(first - layout.messages(primes.centred(rho), slice(0, layout.sample_blocks)))
    decryptor = reference.decryptor(holder._opener.secret)
    for block in range(layout.sample_blocks):
        polynomials = np.stack([first[..., block], second[..., block]]).reshape(2, len(primes), DEGREE)
        rows = layout.rows(slice(block, block + 1))
        plain = reference.decrypted(decryptor, polynomials).reshape(layout.points, r)
        assert (plain[: rows.stop - rows.start] == V[rows]).all()


def test_the_noise_of_a_query_is_that_of_seal(reference):
    """Decrypting gives round(q/t m) + e; e is compared with the exact product with the secret."""
    bits, primes = reference.parameters.ring.bits, reference.parameters.primes
    holder = KernelShares(bits).keygen(coin())
    layout, (polynomials,) = query(reference.parameters, holder.encrypt(V := words(bits, 3, 1), columns=1))
    steps = transform(primes, DEGREE)
    values = multiply_residues(
        primes,
        multiplication_matrices(primes, holder._opener.secret, 1),
        steps.forward(polynomials[1][..., None])[..., None],
    )
    total = polynomials[0] + steps.back(values)[..., 0, 0]
    message = layout.messages(primes.scaled(V, bits), slice(0, 1))[:, :, 0, 0]
    noise = primes.reduce(primes.reduce(total) - message)
    assert (noise == noise[0]).all()
    assert np.abs(noise).max() <= 21
    assert 0.9 * NOISE_STD < noise[0].std() < 1.1 * NOISE_STD


def test_seal_decrypts_answers_of_the_kernel_to_the_same_share(reference):
    bits, primes = reference.parameters.ring.bits, reference.parameters.primes
    mine, scheme = coin(), KernelShares(bits)
    holder = scheme.keygen(mine)
    evaluator = scheme.evaluator(holder.public, mine)
    W = np.random.default_rng(0).integers(-99, 99, (40, 7))
    sealed = holder.encrypt(words(bits, 40, 4), columns=7)
    reply, _ = evaluator.product(evaluator.prepare(W), sealed)
    _, _, c, r, s, d = REPLY_HEADER.unpack_from(reply)
    layout = RingLayout(s, c, r, s)
    assert c == r
    F = layout.column_blocks(d)
    second = unpack(primes, memoryview(reply)[REPLY_HEADER.size :], (layout.points, r, F))
    assert len(reply) == REPLY_HEADER.size + packed_size(primes, F * DEGREE) + 32
    first = masked_first(primes, reply[-32:], (d, c))
    decryptor, result = reference.decryptor(holder._opener.secret), np.empty((d, c), np.uint64)
    for block in range(F):
        polynomials = np.zeros((2, len(primes), layout.points, r))
        polynomials[1] = transform(primes, layout.points).back(second[..., block])
        columns = np.arange(block * layout.columns, min(d, (block + 1) * layout.columns))
        polynomials[0][:, layout.wanted[: len(columns)]] = first[:, columns]
        plain = reference.decrypted(decryptor, polynomials.reshape(2, len(primes), DEGREE))
        result[columns] = plain.reshape(layout.points, r)[layout.wanted[: len(columns)]]
    assert (result == holder.open(reply)).all()


def test_the_kernel_decrypts_what_seal_encrypts(reference):
    """A ciphertext of SEAL under a key of SEAL is taken as the answer for one block, with all of its coefficients."""
    bits, primes = reference.parameters.ring.bits, reference.parameters.primes
    secret = seal.KeyGenerator(reference.context).secret_key()
    m = words(bits, DEGREE)
    cipher = seal.Ciphertext()
    seeded = seal.Encryptor(reference.context, secret).encrypt_symmetric(reference.io.plaintext(m))
    residues, seed = reference.io.seeded_residues(seeded, (len(primes), DEGREE))
    cipher = reference.io.seeded(reference.level, residues, seed)
    c0, c1 = reference.io.residues(cipher, (2, len(primes), DEGREE)).astype(float)
    holder = ternary_holder(reference, secret)
    second = transform(primes, DEGREE).forward(primes.reduce(c1.copy())[..., None])
    head = REPLY_HEADER.pack(b"SKR3", holder._key, 1, 1, 1, DEGREE)
    reply = head + pack(primes, second) + bytes(32)
    difference = masked_first(primes, bytes(32), (DEGREE, 1))[..., 0] - c0
    ring, shift = reference.parameters.ring, primes.nearest(primes.reduce(difference), bits)
    assert np.abs(ring.signed(ring.reduce(holder.open(reply)[:, 0] - m - shift))).max() <= 1


def ternary_holder(reference, secret):
    """Make a holder of the kernel with SEAL's secret key, from the key's values at SEAL's points."""
    shape = len(reference.primes) + 1, DEGREE
    values = reference.io.plain_residues(secret, shape)
    key_cipher = reference.keys_io.ciphertext(reference.keys.first_parms_id(), np.stack([values, values]), ntt=True)
    seal.Evaluator(reference.keys).transform_from_ntt_inplace(key_cipher)
    row = reference.keys_io.residues(key_cipher, (2, *shape))[0, 0].astype(np.int64)
    coefficients = np.where(row > 1, row - reference.primes[0], row)
    scheme = KernelShares(reference.parameters.ring.bits)
    key_bytes = scheme.keygen(coin()).exported()
    return scheme.holder(key_bytes[:-DEGREE] + coefficients.astype(np.int8).tobytes())


def test_headers_have_the_size_of_those_of_seal():
    """Headers have equal sizes, so the first four bytes alone distinguish the messages of both engines."""
    assert QUERY_HEADER.size == REPLY_HEADER.size == struct.calcsize("<4s16sIIII")

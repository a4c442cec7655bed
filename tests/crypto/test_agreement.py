"""Key agreement (`securevfl.crypto.key_agreement`), compared with X25519 and HKDF in plain integers."""

import copy
import pickle

import pytest
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securevfl.crypto.key_agreement import KeyPair
from securevfl.crypto.key_derivation import encode_context
from securevfl.errors import CryptoError
from tests.builders import raises_code

CONTEXT = {"session": "s", "domain": "masks"}


def x25519(k: bytes, u: bytes) -> bytes:
    """RFC 7748, section 5, as written there, in plain integers."""
    p, a24 = 2**255 - 19, 121665
    scalar = (int.from_bytes(k, "little") & ~7 & (2**255 - 1)) | 2**254
    x1 = int.from_bytes(u, "little") % 2**255
    x2, z2, x3, z3 = 1, 0, x1, 1
    for t in reversed(range(255)):
        bit = scalar >> t & 1
        if bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % p, b * b % p, d * a % p, c * b % p
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % p, x1 * (da - cb) ** 2 % p
        x2, z2 = aa * bb % p, e * (aa + a24 * e) % p
        if bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def hkdf_sha256(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with no salt and one block of output."""

    def mac(key: bytes, message: bytes) -> bytes:
        h = hmac.HMAC(key, hashes.SHA256())
        h.update(message)
        return h.finalize()

    return mac(mac(bytes(32), secret), info + b"\x01")


def test_both_sides_get_the_key_that_plain_integers_give():
    a, b = KeyPair(), KeyPair()
    key = a.agree(b.public, party="bank", peer="shop", **CONTEXT)
    assert key == b.agree(a.public, party="shop", peer="bank", **CONTEXT)
    shared = x25519(a._private.private_bytes_raw(), b.public)
    info = encode_context("securevfl", "agreement", "s", "masks", "bank", a.public, "shop", b.public)
    assert key == hkdf_sha256(shared, info)
    assert len(key) == 32


def test_every_part_of_the_context_changes_the_key():
    a, b, c = KeyPair(), KeyPair(), KeyPair()
    keys = {
        a.agree(b.public, party="x", peer="y", **CONTEXT),
        a.agree(b.public, party="x", peer="z", **CONTEXT),
        a.agree(b.public, party="y", peer="x", **CONTEXT),
        a.agree(b.public, party="x", peer="y", session="t", domain="masks"),
        a.agree(b.public, party="x", peer="y", session="s", domain="other"),
        a.agree(b.public, party="x", peer="y", session="smasks", domain=""),
        a.agree(c.public, party="x", peer="y", **CONTEXT),
    }
    assert len(keys) == 7


LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


@pytest.mark.parametrize("public", LOW_ORDER)
def test_keys_of_low_order_are_refused(public):
    assert x25519(bytes(range(32)), public) == bytes(32)
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        KeyPair().agree(public, party="bank", peer="shop", **CONTEXT)


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33)])
def test_malformed_keys_are_refused(public):
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        KeyPair().agree(public, party="bank", peer="shop", **CONTEXT)


def test_a_party_does_not_agree_with_itself():
    a, b = KeyPair(), KeyPair()
    for public, peer in ((a.public, "shop"), (b.public, "bank")):
        with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
            a.agree(public, party="bank", peer=peer, **CONTEXT)


def test_pairs_are_fresh_and_show_nothing():
    a = KeyPair()
    assert a.public != KeyPair().public
    raw = a._private.private_bytes_raw()
    assert X25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw() == a.public
    assert repr(a) == "<KeyPair, secret>"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(a)

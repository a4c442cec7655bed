"""Secrets that are wrapped, which means encrypted, under another key, and wrapped bytes that are refused."""

import os

from securevfl.crypto.wrapping import unwrap, wrap
from securevfl.errors import CryptoError
from tests.builders import raises_code


def test_only_the_key_and_the_context_open_a_secret() -> None:
    key, secret = os.urandom(32), os.urandom(48)
    sealed = wrap(key, secret, b"context")
    assert unwrap(key, sealed, b"context") == secret
    altered = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in ((os.urandom(32), sealed, b"context"), (key, sealed, b"other"), (key, altered, b"context")):
        with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT") as caught:
            unwrap(*wrong)
        assert secret.hex() not in str(caught.value)
    for cut in (b"", sealed[:10], sealed[:-1]):
        with raises_code(CryptoError, "SVFL-CRYPTO-CIPHERTEXT"):
            unwrap(key, cut, b"context")

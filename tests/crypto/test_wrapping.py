"""Secrets under a key."""

import os

import pytest

from securevfl.crypto.wrapping import unwrap, wrap
from securevfl.errors import CryptoError


def test_only_the_key_and_the_context_open_a_secret() -> None:
    key, secret = os.urandom(32), os.urandom(48)
    sealed = wrap(key, secret, b"context")
    assert unwrap(key, sealed, b"context") == secret
    altered = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in ((os.urandom(32), sealed, b"context"), (key, sealed, b"other"), (key, altered, b"context")):
        with pytest.raises(CryptoError, match="does not open") as caught:
            unwrap(*wrong)
        assert secret.hex() not in str(caught.value)
    for cut in (b"", sealed[:10], sealed[:-1]):
        with pytest.raises(CryptoError, match="does not open"):
            unwrap(key, cut, b"context")

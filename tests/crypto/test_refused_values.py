"""Every engine refuses unsuitable values at every position before anything is encrypted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securevfl.crypto.kernel.gradient import KernelGradient
from securevfl.crypto.kernel.share_protocol import FINGERPRINT_BYTES
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.paillier.paillier_product import PaillierScheme
from securevfl.errors import CryptoError, RangeError
from tests.builders import raises_code

LINEAR: dict[str, Callable[[], Any]] = {
    "paillier": lambda: PaillierScheme(bits=2048),
    "lattice": LatticeGradient,
    "kernel": KernelGradient,
}
TESTED_SHARE_SCHEMES: dict[str, Callable[[], Any]] = {
    "lattice": lambda: LatticeShares(41),
    "kernel": lambda: KernelShares(41),
}
CELLS = [(0, 0), (0, 2), (20, 1), (39, 0), (39, 2)]


@pytest.fixture(scope="module", params=LINEAR)
def holder(request: pytest.FixtureRequest) -> Any:
    return LINEAR[request.param]().keygen()


@pytest.fixture(scope="module", params=TESTED_SHARE_SCHEMES)
def share_holder(request: pytest.FixtureRequest) -> Any:
    return TESTED_SHARE_SCHEMES[request.param]().keygen(bytes(32))


@pytest.mark.parametrize("value", [1.001, -1.001, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", CELLS)
def test_a_residual_beyond_its_bound(place: tuple[int, int], value: float, holder: Any) -> None:
    g = np.zeros((40, 3))
    g[place] = value
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        holder.encrypt(g, bound=1.0)
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        list(holder.encrypt_pieces(g, bound=1.0))


@pytest.mark.parametrize("value", [2**41, 2**63, 2**64 - 1])
@pytest.mark.parametrize("place", CELLS)
def test_a_word_beyond_the_ring(place: tuple[int, int], value: int, share_holder: Any) -> None:
    V = np.zeros((40, 3), np.uint64)
    V[place] = value
    with raises_code(RangeError, "SVFL-CRYPTO-RANGE"):
        share_holder.encrypt(V, columns=4)


@pytest.mark.parametrize("place", [0, 2047, -1])
@pytest.mark.parametrize("value", [2, -2, 127, -128])
def test_a_key_that_is_not_ternary(place: int, value: int) -> None:
    """Bytes other than those of an exported key are refused as a secret key."""
    scheme = KernelShares(41)
    exported = scheme.keygen(bytes(32)).exported()
    assert scheme.holder(exported).exported() == exported
    secret = np.frombuffer(exported, np.int8).copy()
    secret[place if place < 0 else len(secret) - 4096 + place] = value
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        scheme.holder(secret.tobytes())
    with raises_code(CryptoError, "SVFL-CRYPTO-KEY"):
        scheme.holder(exported[:FINGERPRINT_BYTES] + b"SKK1" + exported[FINGERPRINT_BYTES + 4 :])

"""Shamir's secret sharing of 32-byte secrets: any `threshold` shares give the secret, fewer give nothing.

The secret is a number below 2^256, taken as the constant term of a random polynomial of degree threshold - 1 over the
integers mod P = 2^256 + 297, the smallest prime above 2^256. Share x (1..holders) is the polynomial at x. Holders are
semi-honest: a wrong share is not found out, except when it leads outside 2^256.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import gmpy2

from securevfl.crypto.scheme import Secret
from securevfl.errors import CryptoError

__all__ = ["MAX_HOLDERS", "SECRET_BYTES", "SHARE_BYTES", "P", "Share", "combine", "combine_many", "split"]

P = 2**256 + 297
SECRET_BYTES = 32
SHARE_BYTES = 35  # x in 2 bytes, y in 33
MAX_HOLDERS = 2**16 - 1

_P = gmpy2.mpz(P)


class Share(Secret):
    """One holder's point (x, y) of the polynomial."""

    __slots__ = ("_y", "x")

    def __init__(self, x: int, y: int) -> None:
        """CryptoError unless 1 <= x <= 65535 and 0 <= y < P."""
        if not 1 <= x <= MAX_HOLDERS or not 0 <= y < P:
            raise CryptoError("share: the point lies outside the field; ask its holder to send it again")
        self.x = x
        self._y = gmpy2.mpz(y)

    def to_bytes(self) -> bytes:
        """35 bytes: x, then y, little-endian. Secret: send it to its holder alone."""
        return self.x.to_bytes(2, "little") + int(self._y).to_bytes(33, "little")

    @classmethod
    def from_bytes(cls, raw: bytes) -> Share:
        """CryptoError if `raw` is not a share."""
        if len(raw) != SHARE_BYTES:
            raise CryptoError(f"share: expected {SHARE_BYTES} bytes, got {len(raw)}; ask its holder to send it again")
        return cls(int.from_bytes(raw[:2], "little"), int.from_bytes(raw[2:], "little"))


def split(secret: bytes, *, threshold: int, holders: int) -> list[Share]:
    """Shares x = 1..holders of a 32-byte secret. CryptoError unless 1 <= threshold <= holders <= 65535."""
    if len(secret) != SECRET_BYTES:
        raise CryptoError(f"secret sharing: expected a secret of {SECRET_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= holders <= MAX_HOLDERS:
        raise CryptoError(
            f"secret sharing: expected 1 <= threshold <= holders <= {MAX_HOLDERS}, got {threshold} of {holders}"
        )
    coefficients = [gmpy2.mpz(secrets.randbelow(P)) for _ in range(threshold - 1)]
    constant = gmpy2.mpz(int.from_bytes(secret, "little"))
    shares = []
    for x in range(1, holders + 1):
        y = gmpy2.mpz(0)
        for a in coefficients:
            y = (y + a) * x % _P
        shares.append(Share(x, y + constant if y + constant < _P else y + constant - _P))
    return shares


def combine(shares: Sequence[Share], *, threshold: int) -> bytes:
    """Restore the secret behind `threshold` or more shares. CryptoError as in `combine_many`."""
    return combine_many([shares], threshold=threshold)[0]


def combine_many(batch: Sequence[Sequence[Share]], *, threshold: int) -> list[bytes]:
    """Restore the secrets behind several lists of shares; lists from the same holders share their Lagrange
    coefficients.

    Each list uses the `threshold` shares of lowest x. CryptoError if a list has too few shares or two of one holder,
    or if shares do not belong together and this shows.
    """
    known: dict[tuple[int, ...], list[Any]] = {}
    found = []
    for shares in batch:
        if len({share.x for share in shares}) != len(shares):
            raise CryptoError("secret sharing: two shares of one holder; collect one from each")
        if threshold < 1 or len(shares) < threshold:
            raise CryptoError(f"secret sharing: expected at least {threshold} shares (1 or more), got {len(shares)}")
        chosen = sorted(shares, key=lambda share: share.x)[:threshold]
        xs = tuple(share.x for share in chosen)
        if xs not in known:
            known[xs] = _lagrange_at_zero(xs)
        value = int(sum(c * share._y for c, share in zip(known[xs], chosen, strict=True)) % _P)
        if value >= 2 ** (8 * SECRET_BYTES):
            raise CryptoError("secret sharing: these shares do not belong to one secret; collect them anew")
        found.append(value.to_bytes(SECRET_BYTES, "little"))
    return found


def _lagrange_at_zero(xs: tuple[int, ...]) -> list[Any]:
    """c_i = prod_{j != i} x_j / (x_j - x_i) mod P."""
    coefficients = []
    for x in xs:
        above, below = gmpy2.mpz(1), gmpy2.mpz(1)
        for other in xs:
            if other != x:
                above = above * other % _P
                below = below * (other - x) % _P
        coefficients.append(above * gmpy2.invert(below, _P) % _P)
    return coefficients

"""Fast powers of one fixed base modulo m, with a table of base^(digit * 2^(w * i)).

The exponent is divided into digits of w bits, and a power is the product of one table entry for each digit, without
squarings (Brickell, Gordon, McCurley, Wilson 1992). An exponent of b bits takes b / w multiplications modulo m. The
table has 2^w * b / w entries, and each entry takes one multiplication.
"""

from __future__ import annotations

from gmpy2 import mpz

from securevfl.crypto.secret import Secret


class FixedBase(Secret):
    """A table for computing base^e mod m with 0 <= e < 2^bits. It may be secret, so it is not shown or pickled.

    Args:
        base: the number that is raised to powers.
        modulus: the modulus m.
        bits: largest number of bits of an exponent.
        window: the number of bits w of a digit.
    """

    __slots__ = ("_mask", "_modulus", "_rows", "_window", "bits")

    def __init__(self, base: int, modulus: int, bits: int, window: int = 8) -> None:
        self.bits = bits
        self._window = window
        self._mask = (1 << window) - 1
        self._modulus = m = mpz(modulus)
        self._rows: list[list[mpz]] = []
        step = mpz(base) % m
        for _ in range(-(-bits // window)):
            row = [mpz(1), step]
            for _ in range(self._mask - 1):
                row.append(row[-1] * step % m)
            self._rows.append(row)
            step = row[-1] * step % m

    def power(self, e: int) -> mpz:
        """Return base^e mod m. Raise ValueError if e is negative or has more than `bits` bits."""
        if e < 0 or e.bit_length() > self.bits:
            raise ValueError(f"the exponent must have 0 to {self.bits} bits")
        m, w, mask = self._modulus, self._window, self._mask
        result = mpz(1)
        for row in self._rows:
            result = result * row[e & mask] % m
            e >>= w
        return result

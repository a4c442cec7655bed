"""The hardness of RLWE at the moduli in use, for a table of docs/proof.md, computed without other tools.

RLWE (ring learning with errors) is the problem on which the security of the encryption rests.

    python benchmarks/rlwe_estimate.py

The primal attack uses m samples of LWE (n = N = 4096, ternary secret, errors of standard deviation sigma = 3.24). It
embeds them in a lattice of dimension d = m + n + 1 and volume vol, with the secret scaled to the size of the errors
(Bai, Galbraith 2014). The lattice reduction BKZ with blocks of size beta, which has the root Hermite factor delta,
finds the short vector if

    sigma sqrt(beta) <= delta^(2 beta - d - 1) vol^(1/d),   delta = (beta / (2 pi e) (pi beta)^(1/beta))^(1/(2 beta -
    2))

(Alkim, Ducas, Poeppelmann, Schwabe 2016), and costs 2^(0.292 beta + 16.4 + log2(8 d)) operations, the cost model of the
table of HomomorphicEncryption.org (2018). m is the number with the smallest cost. For a modulus of 109 bits the result
is 2^128, as in that table.
"""

from __future__ import annotations

import argparse
import math

N = 4096
ERROR = math.sqrt(10.5)
USED = {  # log2 of the modulus of keys
    "kernel, L to 40": 72.0,
    "kernel, L to 48": 79.3,
    "kernel, L to 56": 91.9,
    "SEAL, L to 48": 96.0,
    "SEAL, L to 56": 108.0,
    "CKKS": 109.0,
}


def root(beta: int) -> float:
    """Return the root Hermite factor delta of BKZ with blocks of size beta."""
    inner: float = beta / (2 * math.pi * math.e) * (math.pi * beta) ** (1 / beta)
    return math.pow(inner, 1 / (2 * beta - 2))


def blocks(m: int, bits: float) -> int:
    """Return the smallest block size beta with which the attack succeeds, given m samples and log2 of the modulus."""
    d = m + N + 1
    volume = m * bits + N * math.log2(ERROR / math.sqrt(2 / 3))
    low, high = 60, 2000
    while low < high:
        beta = (low + high) // 2
        result = math.log2(ERROR) + math.log2(beta) / 2 <= (2 * beta - d - 1) * math.log2(root(beta)) + volume / d
        low, high = (low, beta) if result else (beta + 1, high)
    return low


def security(bits: float) -> float:
    """Return log2 of the number of operations of the cheapest attack on a modulus of `bits` bits."""
    return min(0.292 * blocks(m, bits) + 16.4 + math.log2(8 * (m + N + 1)) for m in range(N // 2, 2 * N, 64))


def main() -> None:
    """Run the benchmark from the command line."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, bits in USED.items():
        print(f"{name}: log2 q = {bits:.1f}, 2^{security(bits):.0f} operations")


if __name__ == "__main__":
    main()

"""Masks that cancel in the sum (Bonawitz et al. 2017, section 4: double masking), in Z_2^16, Z_2^32 or Z_2^64.

In sum t party i sends, with names ordered,

    y_i = v_i + PRG(b_i,t) + sum_{j > i} PRG(s_ij,t) - sum_{j < i} PRG(s_ij,t)

where the pair seed s_ij,t and the self seed b_i,t are made anew for every sum. The collector adds the y_i of the
parties that arrived (survivors). The pair masks between survivors cancel. What is left over is removed with the self
seed of each survivor (shared with `shamir.split` beforehand) and the pair seeds between each dropped party and each
survivor.

Why two masks: if the collector calls a party dropped and its y_i arrives after all, its pair masks are known, and b_i
still hides v_i. For this no party may help to open both for one party in one sum (`protocols.sums.dropout_sum` sees to
it). Why seeds of one sum: a seed opened in one says nothing about masks of another.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import Prg, Unsigned
from securevfl.errors import CryptoError, LeakageError

__all__ = ["double_mask", "unmask"]


def double_mask(
    name: str, values: NDArray[Unsigned], self_seed: bytes, pair_seeds: Mapping[str, bytes]
) -> NDArray[Unsigned]:
    """y_i of party `name` from b_i,t and, by peer, s_ij,t. A seed (32 bytes) serves one vector: make it anew."""
    total = np.array(values, order="C")
    _apply(total, self_seed, "self mask", add=True)
    for peer, seed in pair_seeds.items():
        _apply(total, seed, "pair mask", add=name < peer)
    return total


def unmask(
    total: NDArray[Unsigned], self_seeds: Mapping[str, bytes], pair_seeds: Mapping[str, Mapping[str, bytes]]
) -> NDArray[Unsigned]:
    """Return the sum of the survivors' values from the sum of what they sent.

    self_seeds: survivor -> b_i,t. pair_seeds: dropped party -> survivor -> s_ij,t (empty if nobody dropped).
    LeakageError with fewer than two survivors (a collector that is one itself should ask for three). CryptoError if a
    party is called both, or a seed is missing.
    """
    survivors = set(self_seeds)
    if len(survivors) < 2:
        raise LeakageError("masked sum: fewer than two survivors, the sum would be one party's values; run it again")
    if both := sorted(survivors & set(pair_seeds)):
        raise CryptoError(f"masked sum: {both} called survivors and dropped; only one of their masks may be opened")
    result = np.array(total, order="C")
    for seed in self_seeds.values():
        _apply(result, seed, "self mask", add=False)
    for dropped, seeds in pair_seeds.items():
        if set(seeds) != survivors:
            raise CryptoError(
                f"masked sum: expected the seeds of {dropped!r} with all {len(survivors)} survivors and nobody else; "
                f"they differ for {sorted(survivors ^ set(seeds))}"
            )
        for survivor, seed in seeds.items():
            _apply(result, seed, "pair mask", add=survivor > dropped)
    return result


def _apply(total: NDArray[Unsigned], seed: bytes, label: str, *, add: bool) -> None:
    """Add PRG(seed) to `total`, or subtract it, in place. A seed serves one vector: stream 0 alone."""
    mask = np.empty_like(total)
    Prg(seed, label).fill(mask)
    (np.add if add else np.subtract)(total, mask, out=total)

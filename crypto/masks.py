"""Masks that cancel in the sum (Bonawitz et al. 2017, section 4: double masking), in Z_2^16, Z_2^32 or Z_2^64.

In round t party i sends, with names ordered,

    y_i = v_i + PRG(b_i,t) + sum_{j > i} PRG(s_ij,t) - sum_{j < i} PRG(s_ij,t)

where s_ij,t, the pair seed, comes one-way from the pair key k_ij and t, and b_i,t, the self seed, from a key only i
holds and t. The collector adds the y_i of the parties that arrived (survivors). The pair masks between survivors
cancel. What is left over is removed with the self seed of each survivor (shared with `shamir.split` beforehand) and
the pair seeds between each dropped party and each survivor, which the survivors hold themselves.

Why two masks: if the collector calls a party dropped and its y_i arrives after all, its pair masks are known, and b_i
still hides v_i. For this no party may help to open both for one party in one round: `Disclosures` keeps the record.
Why seeds of one round: a seed opened in one round says nothing about masks of another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.prg import KEY_BYTES, Prg, Unsigned, derive_key
from securevfl.crypto.scheme import Secret
from securevfl.errors import CryptoError, LeakageError

__all__ = ["Disclosures", "Masker", "double_mask", "unmask"]


class Masker(Secret):
    """One party's side: masks one vector a round and derives the seeds that others may need to remove the masks.

    One masker for one set of pair keys: a second one would repeat their pair masks, so a party that starts again agrees
    on new keys.
    """

    __slots__ = ("_own_key", "_pair_keys", "_round", "name")

    def __init__(self, name: str, pair_keys: Mapping[str, bytes]) -> None:
        """`pair_keys`: peer's name -> 32-byte key from `KeyPair.agree`. CryptoError if there is none or one's own."""
        if not pair_keys or name in pair_keys:
            raise CryptoError(
                f"masks of {name!r}: expected a pair key with each peer (at least one), and none with itself"
            )
        short = [peer for peer, key in pair_keys.items() if len(key) != KEY_BYTES]
        if short:
            raise CryptoError(f"masks of {name!r}: expected keys of {KEY_BYTES} bytes, not so with {short}; agree anew")
        self.name = name
        self._pair_keys = dict(pair_keys)
        self._own_key = os.urandom(KEY_BYTES)
        self._round = -1

    def self_seed(self, round: int) -> bytes:
        """b_i,t (32 bytes). Share it before masking; it is opened if this party survives round t."""
        return derive_key(self._own_key, "self seed", round)

    def pair_seed(self, round: int, peer: str) -> bytes:
        """s_ij,t (32 bytes), to be opened if `peer` dropped out of round t. CryptoError if the peer is unknown."""
        if peer not in self._pair_keys:
            raise CryptoError(f"masks of {self.name!r}: no pair key with {peer!r}; it is not of this sum")
        return derive_key(self._pair_keys[peer], "pair seed", round)

    def mask(self, round: int, values: NDArray[Unsigned]) -> NDArray[Unsigned]:
        """y_i: `values` (any shape, uint16, uint32 or uint64) under all masks of round t.

        CryptoError if `round` is not above every earlier one: a mask serves once.
        """
        if round <= self._round:
            raise CryptoError(f"masks of {self.name!r}: expected a round above {self._round}, got {round}")
        self._round = round
        seeds = {peer: self.pair_seed(round, peer) for peer in self._pair_keys}
        return double_mask(self.name, values, self.self_seed(round), seeds)


def double_mask(
    name: str, values: NDArray[Unsigned], self_seed: bytes, pair_seeds: Mapping[str, bytes]
) -> NDArray[Unsigned]:
    """y_i of party `name` from b_i,t and, by peer, s_ij,t. A seed (32 bytes) serves one vector; `Masker` sees to it.

    For seeds that are themselves made anew for every vector, as where shares of them are opened.
    """
    total = np.array(values, order="C")
    _apply(total, self_seed, "self mask", add=True)
    for peer, seed in pair_seeds.items():
        _apply(total, seed, "pair mask", add=name < peer)
    return total


def unmask(
    total: NDArray[Unsigned], self_seeds: Mapping[str, bytes], pair_seeds: Mapping[str, Mapping[str, bytes]]
) -> NDArray[Unsigned]:
    """The sum of the survivors' values from the sum of what they sent in one round.

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


class Disclosures:
    """What one party has helped to open in one round: for each peer its self seed or its pair seeds, never both."""

    def __init__(self) -> None:
        self._survived: dict[str, bool] = {}

    def survived(self, peer: str) -> None:
        """Call before giving a share of the peer's self seed. CryptoError if it was called dropped."""
        self._settle(peer, survived=True)

    def dropped(self, peer: str) -> None:
        """Call before giving a pair seed with the peer, or a share of its key. CryptoError if it was a survivor."""
        self._settle(peer, survived=False)

    def _settle(self, peer: str, *, survived: bool) -> None:
        if self._survived.setdefault(peer, survived) != survived:
            raise CryptoError(
                f"masked sum: the collector calls {peer!r} both survivor and dropped in one round; opening both of its "
                "masks would show its values, stop and ask the collector why"
            )


def _apply(total: NDArray[Unsigned], seed: bytes, label: str, *, add: bool) -> None:
    """Adds PRG(seed) to `total`, or takes it away, in place. A seed is of one round and one pair: stream 0 alone."""
    mask = np.empty_like(total)
    Prg(seed, label).fill(mask)
    (np.add if add else np.subtract)(total, mask, out=total)

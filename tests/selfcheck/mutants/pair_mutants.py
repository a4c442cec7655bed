"""Mutants (deliberate errors) of pairs, the products of two parties' components."""

from __future__ import annotations

from securevfl.protocols.shares.iteration import TrainingRole
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.pair_phase import PairPhase
from securevfl.protocols.shares.pair_weights import PairParams
from securevfl.protocols.shares.small_products import WordFactors
from selfcheck.mutants.mutant import Mutant, edited, patched

_CHECK = "shares: pairs"

MUTANTS = [
    Mutant(
        "a mask of pairs for all iterations",
        "one keystream masks the gradients of pairs of all iterations of a chunk",
        _CHECK,
        "masks",
        patched(
            edited(
                PairPhase,
                "advance",
                ("(len(batches), pairs.products))", "(1, pairs.products)).repeat(len(batches), axis=0)"),
            )
        ),
    ),
    Mutant(
        "a gradient of pairs without its mask",
        "share holders send their shares of gradients of pairs as they are",
        _CHECK,
        "training",
        patched(edited(TrainingRole, "_exchange_pairs", ("self._pair_change - self._pair_mask", "self._pair_change"))),
    ),
    Mutant(
        "limbs that overflow",
        "limbs of shared products lose their highest bit",
        "shares: limbs of pairs",
        "gradients",
        patched(
            edited(PairParams, "split", ("(left & np.uint64(2**LIMB_BITS - 1))", "(left & np.uint64(2**13 - 1))")),
        ),
    ),
    Mutant(
        "products without keys",
        "words of correlated transfers are sent without the words of their keys",
        _CHECK,
        "uniform",
        patched(edited(WordFactors, "_multiply", ("zeros - ones + weighted[part]", "weighted[part]"))),
    ),
    Mutant(
        "material of other shares",
        "precomputed material does not depend on the shares of products",
        "shares: material of pairs",
        "material",
        patched(edited(OfflinePhase, "state_digest", ("self.pairs.columns.name + ", ""))),
    ),
]

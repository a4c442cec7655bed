"""The settings of the fault campaign: small jobs of every kind of sum, residual, kernel model and secret sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import securevfl as vfl

ROUNDS = 12  # for every job here


@dataclass(frozen=True)
class Setting:
    """A setting of the campaign.

    Attributes:
        name: name of the setting.
        sums: the sum protocol.
        residual: the residual protocol; None for a kernel model or for secret shares.
        count: number of parties.
        hub: name of the hub through which the parties communicate; None if they connect directly.
        bound: largest allowed distance of the weights from those of the undisturbed run. For trees, the largest mean
            distance of model outputs from those of the same trees in floating point.
        labelled: number of parties with labels.
        trees: whether the model consists of trees.
    """

    name: str
    sums: Any
    residual: Any
    count: int = 2
    hub: str | None = None
    bound: float = 0.0
    labelled: int = 1
    trees: bool = False

    @property
    def kernel(self) -> bool:
        """Whether the model is a kernel model."""
        return self.residual is None

    @property
    def seal(self) -> bool:
        """Whether the library SEAL encrypts. It writes to files in memory, so a limit of file sizes affects it."""
        return isinstance(self.residual, vfl.Ckks) or isinstance(self.sums, vfl.CipherSum)

    @property
    def shared(self) -> bool:
        """Whether the training is on secret shares."""
        return isinstance(self.residual, vfl.Shares)

    @property
    def job(self) -> vfl.Job:
        """Return the job."""
        if self.trees:
            model = vfl.Trees(trees=3, depth=2, boosted_score=False)
            protocol = vfl.Protocol(shares=self.residual)
            accepts = ["small_metrics"]
            steps = vfl.BlockDescent()  # safe steps, which no evaluation stops or reverts
            return vfl.Job(
                model=model,
                optimizer=steps,
                protocol=protocol,
                test_fraction=0.2,
                evaluate_every=5,
                seed=3,
                accepts=accepts,
            )
        bits = 16 if isinstance(self.sums, vfl.CipherSum) else 32  # sums are exact with these numbers of bits
        return vfl.Job(
            model=vfl.Kernel(gamma=0.05, blocks=3, block_size=16, bits=bits) if self.kernel else vfl.Logistic(l2=1e-3),
            optimizer=vfl.FDSKL(lr=0.4) if self.kernel else vfl.FedBCD(lr=0.3, local_steps=2),
            protocol=vfl.Protocol(shares=self.residual)
            if self.shared
            else vfl.Protocol(sum=self.sums, residual=self.residual),
            batch_size=152,
            epochs=ROUNDS // 3,
            test_fraction=0.2,
            evaluate_every=5,
            seed=3,
            accepts=["small_metrics" if self.shared else "columns"],
        )

    @property
    def tables(self) -> list[vfl.Party]:
        """Return the parties with their tables."""
        first, *others = vfl.datasets.breast_cancer(self.count)
        for other in others[: self.labelled - 1]:
            other.y = first.y
        return [first, *others]


PAILLIER = vfl.Paillier(bits=2048)
SHARES_PROTOCOL = vfl.Shares(chunk=2)
SETTINGS = (
    Setting("direct, open", "direct", "open"),
    Setting("pairwise, open", "pairwise", "open", 3),
    Setting("tree, open, hub", "tree", "open", 3, "bank"),
    Setting("direct, paillier", "direct", PAILLIER),
    Setting("direct, ckks", "direct", vfl.Ckks(), bound=1e-2),
    Setting("tree, ckks", "tree", vfl.Ckks(), 3, bound=1e-2),
    Setting("cipher ckks, open", vfl.CipherSum(), "open", 3, bound=1e-3),
    Setting("cipher ckks, ckks, hub", vfl.CipherSum(), vfl.Ckks(), 3, "bank", bound=1e-2),
    Setting("cipher paillier, paillier", vfl.CipherSum(engine=PAILLIER), PAILLIER, 3),
    Setting("tree, FDSKL", "tree", None, 3),
    Setting("pairwise, FDSKL, hub", "pairwise", None, 3, "bank", labelled=2),
    Setting("cipher ckks, FDSKL", vfl.CipherSum(), None, 3),
    Setting("shares", "auto", SHARES_PROTOCOL, bound=0.12),
    Setting("trees", "auto", SHARES_PROTOCOL, bound=0.15, trees=True),
    Setting("trees, three parties", "auto", SHARES_PROTOCOL, 3, bound=0.15, trees=True),
    Setting("shares, three parties", "auto", SHARES_PROTOCOL, 3, bound=0.12),
    Setting("shares, four parties, hub", "auto", SHARES_PROTOCOL, 4, "bank", bound=0.12),
)

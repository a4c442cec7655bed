"""What is run: the systems of each part, and their settings by cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import securevfl as vfl
from benchmarks.peers.environments import Environment

NEAR = 0.001  # distance from the AUC of the pooled table that counts as reached
HELD_OUT = 0.25  # share of the rows, as in the default job
BETTER = 0.0002  # smaller gains of more expensive settings do not count
SECRETFLOW = Environment("secretflow", "3.10", "secretflow-lite 1.13.0b0")
SPU = Environment("spu", "3.11", "spu 0.9.5")
CRYPTEN = Environment("crypten", "3.11", "crypten 0.4.1", alone="crypten==0.4.1")
OPENMINED = Environment("openmined", "3.11", "openmined-psi 2.0.6")


@dataclass(frozen=True)
class System:
    """One system in one part.

    Attributes:
        name: name on a page. settings: settings of a peer's script. jobs: settings of ours. ports: number of ports that
            each party of a peer binds; None if it opens ports of its choice, so that no link can be
            put between.
    """

    name: str
    words: str
    reads: str
    settings: tuple[dict[str, Any], ...] = ({},)
    quick: tuple[dict[str, Any], ...] | None = None
    environment: Environment | None = None
    script: str = ""
    ports: int | None = 1
    job: Callable[[dict[str, Any]], vfl.Job] | None = None

    def ladder(self, quick: bool) -> tuple[dict[str, Any], ...]:
        """The settings to try in order."""
        return self.quick if quick and self.quick is not None else self.settings


def _default(_: dict[str, Any]) -> vfl.Job:
    return vfl.Job(model=vfl.Logistic())


def _descent(settings: dict[str, Any]) -> vfl.Job:
    iterations = settings["iterations"]
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.BlockDescent(),
        batch_size="all",
        epochs=iterations,
        evaluate_every=iterations,
        test_fraction=HELD_OUT,
        protocol=vfl.Protocol(shares=vfl.Shares()),
    )


def _sgd(settings: dict[str, Any]) -> vfl.Job:
    epochs = settings["epochs"]
    return vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedSGD(lr=settings["step"]),
        batch_size=settings["batch"],
        epochs=epochs,
        test_fraction=settings.get("held_out", HELD_OUT),
        protocol=vfl.Protocol(shares=vfl.Shares(chunk=epochs)),
    )


def _trees(settings: dict[str, Any]) -> vfl.Job:
    return vfl.Job(model=vfl.Trees(**settings), test_fraction=HELD_OUT)


OURS_READ = "sizes; of the held-out rows pairs of a rounded score and a label, in an order that nobody knows"


def _regression(protocol: str, field: str) -> dict[str, Any]:
    return {"protocol": protocol, "field": field, "batch": 1024, "l2": 0.1}


CHEETAH, SEMI2K = _regression("CHEETAH", "FM64"), _regression("SEMI2K", "FM128")
# the sigmoid t1 is SS-LR's default; with sr, which it also offers, fewer rows suffice (measured on floats, over five
# batch sizes and seven steps, more than a user of either system would try)
EPOCH_SETTINGS = (
    {"sigmoid": "t1", "step": 0.3, "epochs": 3},
    {"sigmoid": "sr", "step": 0.5, "epochs": 2},
    {"sigmoid": "sr", "step": 0.5, "epochs": 3},
)
SMALL_EPOCH_SETTINGS = ({"sigmoid": "t1", "step": 0.3, "epochs": 1, "batch": 256},)

LINEAR_SYSTEMS = (
    System("ours-default", "securevfl, default options", OURS_READ, job=_default),
    System(
        "ours-cheapest",
        "securevfl, block_descent, the fewest iterations that are enough",
        OURS_READ,
        settings=tuple({"iterations": iterations} for iterations in (8, 12, 16)),
        quick=({"iterations": 4},),
        job=_descent,
    ),
    System(
        "ours-sgd",
        "securevfl, FedSGD on shares",
        OURS_READ,
        settings=({"batch": 1024, "step": 0.5, "epochs": 10},),
        quick=({"batch": 256, "step": 0.3, "epochs": 1},),
        job=_sgd,
    ),
    System(
        "secretflow-cheetah",
        "SecretFlow SS-LR on CHEETAH, no dealer",
        "sizes; the party that asks for scores reads each of them exactly",
        settings=tuple(CHEETAH | settings for settings in EPOCH_SETTINGS),
        quick=tuple(CHEETAH | settings for settings in SMALL_EPOCH_SETTINGS),
        environment=SECRETFLOW,
        script="secretflow_regression.py",
        ports=2,
    ),
    System(
        "secretflow-semi2k",
        "SecretFlow SS-LR on SEMI2K, its default",
        "the first party makes the triples, so between two it can read the other's table, and all that is computed",
        settings=tuple(SEMI2K | settings for settings in EPOCH_SETTINGS),
        quick=tuple(SEMI2K | settings for settings in SMALL_EPOCH_SETTINGS),
        environment=SECRETFLOW,
        script="secretflow_regression.py",
        ports=2,
    ),
    System(
        "crypten",
        "CrypTen, triples of a trusted first party, its default",
        "the first party makes the triples, so between two it can read the other's table, and all that is computed",
        settings=tuple({"batch": 1024, "step": 0.5, "epochs": epochs} for epochs in (3, 5, 8)),
        quick=({"batch": 256, "step": 0.5, "epochs": 1},),
        environment=CRYPTEN,
        script="crypten_regression.py",
        ports=None,
    ),
)
SGB = {"trees": 30, "depth": 3, "step": 0.3, "bins": 32, "scheme": "ou", "bits": 2048}
TREE_SYSTEMS = (
    System("ours-trees", "securevfl, trees on shares", OURS_READ, quick=({"trees": 4},), job=_trees),
    System(
        "ours-pairs",
        "securevfl, trees with interactions on shares",
        OURS_READ,
        settings=({"pairs": 16},),
        quick=({"trees": 4, "pairs": 4},),
        job=_trees,
    ),
    System(
        "secretflow-sgb",
        "SecretFlow SGB, Okamoto-Uchiyama 2048",
        "the label's holder decrypts the sums of gradients of every bin of the other's columns; the other reads which "
        "of its splits were taken; both the rows of each node",
        settings=(SGB,),
        quick=(SGB | {"trees": 2},),
        environment=SECRETFLOW,
        script="secretflow_trees.py",
        ports=1,
    ),
)
MILLION, FEWER_IDS = 1_000_000, 20_000
BOTH_READ = "both: which of their own ids the other has too, and how many ids it has"
PSI = (
    System(
        "ours-align",
        "securevfl align",
        BOTH_READ,
        settings=({"ids": MILLION}, {"ids": FEWER_IDS}),
        quick=({"ids": 400},),
    ),
    *(
        System(
            f"spu-{protocol.lower()}",
            f"SPU, {protocol}",
            BOTH_READ,
            settings=({"protocol": f"PROTOCOL_{protocol}", "ids": MILLION},),
            quick=({"protocol": f"PROTOCOL_{protocol}", "ids": 400},),
            environment=SPU,
            script="spu_psi.py",
        )
        for protocol in ("RR22", "KKRT")
    ),
    System(
        "openmined",
        "OpenMined PSI, elliptic curves",
        "the client: which of its own ids the server has; the server: how many ids the client has",
        settings=({"ids": FEWER_IDS},),
        quick=({"ids": 400},),
        environment=OPENMINED,
        script="openmined_psi.py",
    ),
)
NO_HELD_OUT = {"held_out": 0.0}  # FATE's epoch has all rows
WIDE_SYSTEMS = (
    System(
        "ours-wide",
        "securevfl on shares, one epoch in batches of 4,096",
        OURS_READ,
        settings=({"rows": 100_000, "own": 30, "other": 300, "batch": 4096, "step": 0.3, "epochs": 1} | NO_HELD_OUT,),
        quick=({"rows": 1200, "own": 3, "other": 6, "batch": 256, "step": 0.3, "epochs": 1} | NO_HELD_OUT,),
        job=_sgd,
    ),
)
PARTS = {"linear": LINEAR_SYSTEMS, "trees": TREE_SYSTEMS, "psi": PSI, "wide": WIDE_SYSTEMS}

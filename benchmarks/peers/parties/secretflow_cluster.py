"""A party of SecretFlow in production mode, without Ray, and the SPU of two parties."""

from __future__ import annotations

from typing import Any

import secretflow as sf
from secretflow.data import FedNdarray, PartitionWay
from told import address

NAMES = "alice", "bob"


def start(arguments: dict[str, Any]) -> tuple[Any, Any]:
    """Connect to the other party, and return the devices of both."""
    rank = arguments["rank"]
    parties = {}
    for k, name in enumerate(NAMES):
        port = address(arguments["own"][0] if k == rank else arguments["other"][0])
        parties[name] = {"address": port, "listen_addr": address(arguments["own"][0]) if k == rank else port}
    sf.init(
        address="local",
        cluster_config={"parties": parties, "self_party": NAMES[rank]},
        ray_mode=False,
        cross_silo_comm_backend="grpc",
        log_to_driver=False,
    )
    return sf.PYU("alice"), sf.PYU("bob")


def spu(arguments: dict[str, Any]) -> Any:
    """Return the SPU of both parties, with the protocol of the settings."""
    rank, nodes = arguments["rank"], []
    for k, name in enumerate(NAMES):
        port = address(arguments["own"][1] if k == rank else arguments["other"][1])
        nodes.append({"party": name, "address": port, "listen_address": port if k == rank else ""})
    protocol, field = arguments["settings"]["protocol"], arguments["settings"]["field"]
    return sf.SPU({"nodes": nodes, "runtime_config": {"protocol": protocol, "field": field}})


def tables(arguments: dict[str, Any], alice: Any, bob: Any) -> tuple[Any, Any, Any]:
    """Load training columns, labels and held-out columns of both parties."""

    def load(path: str, key: str) -> Any:
        import numpy as np

        return np.load(path)[key]

    def of(key: str, sides: dict[Any, str]) -> Any:
        results = {side: side(load)(f"{arguments['tables']}/{name}.npz", key) for side, name in sides.items()}
        return FedNdarray(results, PartitionWay.VERTICAL)

    both = {alice: "bank", bob: "shop"}
    generated = of("train", both), of("labels", {alice: "bank"}), of("held_out", both)
    sf.wait([part for item in generated for part in item.partitions.values()])
    return generated


def save(scores: Any, path: str) -> None:
    """Store the scores at the party that reads them."""
    import numpy as np

    np.save(path, np.asarray(scores).ravel())

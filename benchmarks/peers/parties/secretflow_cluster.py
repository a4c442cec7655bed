"""A party of SecretFlow in its production mode, without Ray, and the SPU of two parties."""

from __future__ import annotations

from typing import Any

import secretflow as sf
from secretflow.data import FedNdarray, PartitionWay
from told import address

NAMES = "alice", "bob"


def start(given: dict[str, Any]) -> tuple[Any, Any]:
    """Connect to the other, and return the devices of both."""
    rank = given["rank"]
    parties = {}
    for k, name in enumerate(NAMES):
        port = address(given["own"][0] if k == rank else given["other"][0])
        parties[name] = {"address": port, "listen_addr": address(given["own"][0]) if k == rank else port}
    sf.init(
        address="local",
        cluster_config={"parties": parties, "self_party": NAMES[rank]},
        ray_mode=False,
        cross_silo_comm_backend="grpc",
        log_to_driver=False,
    )
    return sf.PYU("alice"), sf.PYU("bob")


def spu(given: dict[str, Any]) -> Any:
    """The SPU of both parties, with the protocol of the settings."""
    rank, nodes = given["rank"], []
    for k, name in enumerate(NAMES):
        port = address(given["own"][1] if k == rank else given["other"][1])
        nodes.append({"party": name, "address": port, "listen_address": port if k == rank else ""})
    protocol, field = given["settings"]["protocol"], given["settings"]["field"]
    return sf.SPU({"nodes": nodes, "runtime_config": {"protocol": protocol, "field": field}})


def tables(given: dict[str, Any], alice: Any, bob: Any) -> tuple[Any, Any, Any]:
    """Training columns, labels and held-out columns of both, loaded."""

    def load(path: str, key: str) -> Any:
        import numpy as np

        return np.load(path)[key]

    def of(key: str, sides: dict[Any, str]) -> Any:
        found = {side: side(load)(f"{given['tables']}/{name}.npz", key) for side, name in sides.items()}
        return FedNdarray(found, PartitionWay.VERTICAL)

    both = {alice: "bank", bob: "shop"}
    made = of("train", both), of("labels", {alice: "bank"}), of("held_out", both)
    sf.wait([part for each in made for part in each.partitions.values()])
    return made


def save(scores: Any, path: str) -> None:
    """Keep the scores at the party that reads them."""
    import numpy as np

    np.save(path, np.asarray(scores).ravel())

"""Logistic regression on CrypTen with its default provider of triples, a trusted first party.

CrypTen 0.4.1 imports a module that today's torch has removed, for the export of networks only, which is not used here;
an empty module replaces it. Its communicator opens ports of its choice, so no link can be put between, and the bytes
are those that it counts itself.
"""

from __future__ import annotations

import os
import sys
import types

STAND_IN = types.ModuleType("torch.onnx._internal.registration")
STAND_IN.registry = None
sys.modules[STAND_IN.__name__] = STAND_IN

import crypten  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from told import Work, task  # noqa: E402


def main() -> None:
    """Run this party."""
    arguments = task()
    rank, settings = arguments["rank"], arguments["settings"]
    os.environ |= {
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "RENDEZVOUS": f"file://{arguments['tables']}/meeting",
        "DISTRIBUTED_BACKEND": "gloo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)  # one core each
    crypten.cfg.communicator.verbose = True  # counts bytes
    crypten.init()
    shapes = [np.load(f"{arguments['tables']}/{name}.npz")["train"].shape[1] for name in ("bank", "shop")]
    local_columns = np.load(f"{arguments['tables']}/{('bank', 'shop')[rank]}.npz")

    def shared(key: str, source: int, columns: int) -> crypten.CrypTensor:
        rows = len(local_columns["train" if key == "labels" else key])
        mine = torch.tensor(local_columns[key], dtype=torch.float32) if source == rank else torch.zeros(rows, columns)
        return crypten.cryptensor(mine, src=source)

    with Work() as work:
        x, new = (crypten.cat([shared(key, k, shapes[k]) for k in (0, 1)], dim=1) for key in ("train", "held_out"))
        y = shared("labels", 0, 1)
        model = crypten.nn.Linear(sum(shapes), 1)
        for parameter in model.parameters():
            parameter.data.fill_(0)  # as all other systems start
        model = model.encrypt()
        loss = crypten.nn.BCEWithLogitsLoss()
        batch = settings["batch"]
        for _ in range(settings["epochs"]):
            for start in range(0, len(local_columns["train"]) - batch + 1, batch):
                elapsed = slice(start, start + batch)
                model.zero_grad()
                loss(model(x[elapsed]), y[elapsed]).backward()
                model.update_parameters(settings["step"])
    scores = model(new).get_plain_text(dst=0)
    if rank == 0:
        np.save(f"{arguments['out']}.npy", scores.numpy().ravel())
    work.tell(arguments, bytes_own_count=crypten.communicator.get().get_communication_stats()["bytes"])
    os._exit(0)  # the threads of its transport may abort a process that ends normally


if __name__ == "__main__":
    main()

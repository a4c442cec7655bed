"""SecretFlow's SS-LR: logistic regression on the SPU, and its scores of the held-out rows, which alice reads."""

from __future__ import annotations

import secretflow as sf
from secretflow.ml.linear.ss_sgd import SSRegression
from secretflow_cluster import save, spu, start, tables
from told import Work, task


def main() -> None:
    """Run this party."""
    arguments = task()
    settings = arguments["settings"]
    alice, bob = start(arguments)
    device = spu(arguments)
    x, y, new = tables(arguments, alice, bob)
    with Work() as work:
        model = SSRegression(device)
        model.fit(
            x,
            y,
            settings["epochs"],
            settings["step"],
            settings["batch"],
            settings["sigmoid"],
            "logistic",
            "l2",
            settings["l2"],
        )
        sf.wait(model.spu_w)
    scores = model.predict(new, batch_size=settings["batch"], to_pyu=alice)
    sf.wait(alice(save)(scores.partitions[alice], f"{arguments['out']}.npy"))
    work.tell(arguments)
    sf.shutdown()


if __name__ == "__main__":
    main()

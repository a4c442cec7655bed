"""SecretFlow's SGB: boosted trees on encrypted gradients; alice, who has the labels, decrypts every histogram."""

from __future__ import annotations

import secretflow as sf
from secretflow.ml.boost.sgb_v import Sgb, get_classic_XGB_params
from secretflow_cluster import save, start, tables
from spu import FieldType
from told import Work, task


def main() -> None:
    """Run this party."""
    arguments = task()
    settings = arguments["settings"]
    alice, bob = start(arguments)
    x, y, new = tables(arguments, alice, bob)
    with Work() as work:
        heu = sf.HEU(
            {
                "sk_keeper": {"party": "alice"},
                "evaluators": [{"party": "bob"}],
                "mode": "PHEU",
                "he_parameters": {
                    "schema": settings["scheme"],
                    "key_pair": {"generate": {"bit_size": settings["bits"]}},
                },
                "encoding": {"cleartext_type": "DT_I32", "encoder": "IntegerEncoder", "encoder_args": {"scale": 1}},
            },
            FieldType.FM128,
        )
        params = get_classic_XGB_params() | {
            "num_boost_round": settings["trees"],
            "max_depth": settings["depth"],
            "learning_rate": settings["step"],
            "sketch_eps": 1 / settings["bins"],
        }
        model = Sgb(heu).train(params, x, y)
        sf.wait(model.trees[-1].leaf_weight)
    scores = model.predict(new, to_pyu=alice)
    sf.wait(alice(save)(scores.partitions[alice], f"{arguments['out']}.npy"))
    work.tell(arguments)
    sf.shutdown()


if __name__ == "__main__":
    main()

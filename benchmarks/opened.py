"""Labels that opened gradients reveal under BlockNewton, by number of rows and compared with minibatches.

    python benchmarks/opened.py --data ../shared/data

A party learns ("opens") the gradients of its own weights, which depend on the labels. The attacker is a third party
with 15 columns of pure noise. It carries out all label attacks of the audit that apply to the values that it received
in a run under CKKS; the highest AUC counts. The first table is generated and has n rows. The second one is
default_credit with its two parties, on which FedBCD with batches of 256 rows and BlockNewton on all rows train to the
same AUC.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import securevfl as vfl
from benchmarks.tables import default_credit
from securevfl.audit.attacks import ATTACKS, LabelAttack, label_auc
from securevfl.audit.recording.real_ideal_pair import RealIdealPair
from securevfl.errors import SecureVFLError
from securevfl.training.text_table import format_table

COLUMNS = 15
STRANGER = "stranger"


def noise(like: vfl.Party, seed: int) -> vfl.Party:
    """Return a party with the same rows and columns of noise."""
    X = np.random.default_rng([seed, 1]).normal(size=(len(like), COLUMNS))
    return vfl.Party(STRANGER, X, ids=like.ids, aligned=like.ids is None)


def made_up(rows: int, seed: int) -> list[vfl.Party]:
    """Return a party whose ten columns correlate with the labels, and the attacker, whose columns are noise."""
    generator = np.random.default_rng([seed, 0])
    X = generator.normal(size=(rows, 10))
    y = (X.sum(axis=1) + 2 * generator.normal(size=rows) > 0).astype(int)
    bank = vfl.Party("bank", X, y, aligned=True)
    return [bank, noise(bank, seed)]


def attacked(job: vfl.Job, parties: Sequence[vfl.Party]) -> tuple[float, str, float, int]:
    """Return the best attack's label AUC, its name, the model's AUC and the number of exchanges."""
    worlds = RealIdealPair(job, parties, job.seed, attacker=STRANGER)
    run, result = worlds.real_run[0], [(0.5, "none")]
    for name, attack in ATTACKS.items():
        if isinstance(attack, LabelAttack) and not attack.skip_reason(job):
            try:
                result.append((label_auc(attack.guess(worlds.real(), worlds), worlds.labels), name))
            except SecureVFLError as error:
                print(f"{name}: {error}")
    return *max(result), run.metrics["auc"], run.costs.rounds


def job(**keys: object) -> vfl.Job:
    """Return a job of BlockNewton on all rows under CKKS."""
    defaults: dict[str, object] = {"optimizer": vfl.BlockNewton(tolerance=1e-5), "batch_size": "all", "epochs": 8}
    defaults |= {"model": vfl.Logistic(l2=1e-3), "protocol": vfl.Protocol(residual=vfl.Ckks()), "accepts": ["columns"]}
    return vfl.Job(**(defaults | keys))  # type: ignore[arg-type]


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=Path("../shared/data"))
    options.add_argument("--rows", type=int, nargs="*", default=[300, 1000, 3000, 10_000, 20_000, 50_000])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--table-rows", type=int, help="of default_credit; all by default")
    arguments = options.parse_args()
    rows: list[dict[str, str | int | float]] = []
    for n in arguments.rows:
        tried = [attacked(job(seed=seed), made_up(n, seed)) for seed in range(arguments.seeds)]
        best = max(tried)
        mean = float(np.mean([setting[0] for setting in tried]))
        rows.append({"rows": n, "exchanges": best[3], "label AUC, mean": mean, "most": best[0], "by": best[1]})
        print(rows[-1], flush=True)
    print(format_table(rows))
    align = vfl.align(default_credit(arguments.data))
    align = [party.take(np.arange(min(arguments.table_rows or len(party), len(party)))) for party in align]
    parties = [*align, noise(align[0], 0)]
    settings = {
        "FedBCD-p, Q = 5, batches of 256": job(
            optimizer=vfl.FedBCD(local_steps=5, lr=0.1), batch_size=256, epochs=10, test_fraction=0.25
        ),
        "BlockNewton, all rows": job(epochs=8, test_fraction=0.25),
    }
    rows = []
    for name, setting in settings.items():
        best, by, auc, exchanges = attacked(setting, parties)
        rows.append({"algorithm": name, "exchanges": exchanges, "AUC": auc, "label AUC": best, "by": by})
    print(format_table(rows))


if __name__ == "__main__":
    main()

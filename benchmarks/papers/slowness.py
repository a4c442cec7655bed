"""The gain of stale sums if parties are slow at random: FDML in the simulator, and a queue model of it.

Every worker pauses before a push with probability `share`, for an exponential time of mean `seconds`. In synchronous
training all wait for the pausing worker. With tau above 0 the others continue, and that worker catches up. The queue
model has only these pauses, the link's latency and the time of a step:

    push(k, t)   = max(push(k, t - 1) + step, answer(k, t - 1 - tau)) + pause(k, t)
    answer(k, t) = max over j of push(j, t - tau), and of push(k, t), + a round trip
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.papers.study import Rows
from securevfl.runtime.network import Network, Pauses


@dataclass(frozen=True)
class SlowPlan:
    """Trainings whose parties pause at random.

    Attributes:
        parties: numbers of parties.
        taus: values of the staleness tau.
        rtts: round-trip times of the link in milliseconds.
        share: probability of a pause before a push.
        seconds: mean of a pause in seconds.
        epochs: number of passes over the rows.
        batch: number of rows of a batch.
        seeds: number of random splits.
    """

    parties: tuple[int, ...] = (2, 3)
    taus: tuple[int, ...] = (0, 2, 8, 32)
    rtts: tuple[float, ...] = (0.2, 20.0)
    share: float = 0.1
    seconds: float = 0.3
    epochs: int = 4
    batch: int = 256
    seeds: int = 3


FULL = SlowPlan()
QUICK = SlowPlan((2,), (0, 4), (0.2,), epochs=4, batch=64, seeds=1)


def run(data: Path | None, plan: SlowPlan, on_row: Callable[[str], None]) -> Rows:
    """Return seconds of a training for each staleness, simulated and by the queue model, and relative to tau = 0."""
    from benchmarks.papers import fdml_training as fdml

    rows: Rows = []
    for count in plan.parties:
        parties = fdml.tables(data, count)
        fdml_plan = fdml.Plan((count,), ("linear",), epochs=plan.epochs, batch=plan.batch, every=10**6)
        for rtt in plan.rtts:
            network, result = Network(rtt_ms=rtt), []
            for tau in plan.taus:
                on_row(f"{count} parties, round trip {rtt:g} ms, tau {tau}")
                seconds, aucs, model = [], [], []
                for seed in range(plan.seeds):
                    pauses = {f"p{k}": Pauses(plan.share, plan.seconds, 100 * seed + k) for k in range(count)}
                    setting = fdml.Setting("linear", tau, first=tau == 0)
                    done = fdml.train(parties, fdml_plan, setting, 3.0, seed, network, dict(pauses))
                    seconds.append(done.costs.training)
                    aucs.append(done.metrics["auc"])
                    model.append(queued(count, tau, done.costs.rounds, network, [*pauses.values()]))
                result.append((tau, float(np.mean(seconds)), float(np.mean(model)), float(np.mean(aucs))))
            for tau, simulated, queue, auc in result:
                rows.append(
                    {
                        "parties": count,
                        "rtt_ms": rtt,
                        "tau": tau,
                        "seconds": simulated,
                        "of_in_step": simulated / result[0][1],
                        "queue_s": queue,
                        "queue_of_in_step": queue / result[0][2],
                        "auc": auc,
                    }
                )
    return rows


def queued(
    workers: int, tau: int, iterations: int, network: Network, pauses: list[Pauses], step: float = 0.001
) -> float:
    """Return the time of the last answer of the queue model, in seconds."""
    drawn = [[length for length, _ in zip(pause.lengths(), range(iterations), strict=False)] for pause in pauses]
    push, answer = np.zeros((workers, iterations)), np.zeros((workers, iterations))
    for t in range(iterations):
        for k in range(workers):
            before = push[k, t - 1] + step if t else 0.0
            allowed = answer[k, t - 1 - tau] if t - 1 - tau >= 0 else 0.0
            push[k, t] = max(before, allowed) + drawn[k][t]
        slowest = push[:, t - tau].max() if t >= tau else 0.0
        answer[:, t] = np.maximum(push[:, t], slowest) + 2 * network.latency
    return float(answer[:, -1].max())

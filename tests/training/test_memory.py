"""Memory of a training run does not grow with its rounds."""

from pathlib import Path

import pytest

import securevfl as vfl
from securevfl.protocols.engines import Engine

PAGE_BYTES = 4096


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("residual", ["open", pytest.param(vfl.Ckks(), marks=pytest.mark.slow)], ids=str)
@pytest.mark.long
def test_memory_is_flat_over_rounds(residual: Engine | str) -> None:
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual=residual),  # type: ignore[arg-type]
        batch_size=100,
        epochs=100,
        accepts=["columns"],
    )
    seen: dict[int, int] = {}

    def on_round(done: int, of: int) -> None:
        if done in (of // 3, of):
            seen[done] = resident()

    vfl.simulate(job, vfl.datasets.breast_cancer(), on_round=on_round)
    early, late = seen.values()
    assert late - early < 12 << 20

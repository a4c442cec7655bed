"""A passive party caches prepared batches up to a bound; the cache does not change its model."""

from dataclasses import dataclass

import numpy as np
import pytest

import securevfl as vfl
from securevfl.crypto import batch_cache
from securevfl.crypto.batch_cache import BatchCache
from securevfl.crypto.lattice.lattice_gradient import LatticeGradient
from securevfl.crypto.paillier.paillier_product import PaillierScheme
from securevfl.crypto.scheme import LinearScheme
from securevfl.training.run import Run
from tests.small_keys import SMALL


@dataclass
class Thing:
    nbytes: int


def test_the_first_batches_stay_until_the_cache_is_full() -> None:
    cache, things = BatchCache(max_bytes=10), [Thing(4), Thing(4), Thing(4), Thing(2)]
    for batch, thing in enumerate(things):
        cache.put(batch, thing)
    assert [cache.get(batch) for batch in range(4)] == [things[0], things[1], None, things[3]]
    things[1].nbytes = 5  # grown beyond the bound
    cache.put(1, things[1])
    assert cache.get(1) is None
    cache.put(2, things[2])
    assert cache.get(2) is things[2]
    cache.put(2, things[2])  # storing the same batch again takes no more space
    assert [cache.get(batch) for batch in range(4)] == [things[0], None, things[2], things[3]]


@pytest.mark.parametrize("scheme", [LatticeGradient(), PaillierScheme(2048)], ids=["lattice", "paillier"])
def test_prepared_batches_report_their_size(scheme: LinearScheme) -> None:
    evaluator = scheme.evaluator(scheme.keygen().public)
    generator = np.random.default_rng(0)
    small, large = (evaluator.prepare(generator.normal(size=(n, 3))).nbytes for n in (200, 6000))
    assert 200 * 3 * 4 < small < large < 6000 * 3 * 2000


def train(prepared: list[int], monkeypatch: pytest.MonkeyPatch) -> Run:
    prepare = PaillierScheme.evaluator

    def counted(self: PaillierScheme, *args: object, **keys: object) -> object:
        evaluator = prepare(self, *args, **keys)  # type: ignore[arg-type]
        inner = evaluator.prepare

        def once(J: np.ndarray, *, max_bytes: int) -> object:
            prepared.append(len(J))
            return inner(J, max_bytes=max_bytes)

        evaluator.prepare = once  # type: ignore[method-assign, assignment]
        return evaluator

    monkeypatch.setattr(PaillierScheme, "evaluator", counted)
    rows = np.arange(60)
    job = vfl.Job(
        model=vfl.Logistic(),
        optimizer=vfl.FedBCD(lr=0.1),
        protocol=vfl.Protocol(residual=SMALL),
        batch_size=20,
        epochs=3,
    )
    parties = [party.take(rows) for party in vfl.datasets.breast_cancer()]
    run = vfl.simulate(job, parties, workers=1)
    monkeypatch.undo()
    return run


@pytest.mark.exact_outputs
def test_the_model_is_the_same_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    anew: list[int] = []
    one = train(sizes, monkeypatch)
    monkeypatch.setattr(batch_cache, "MAX_CACHED_BYTES", 0)
    other = train(anew, monkeypatch)
    for name, part in one.parts.items():
        np.testing.assert_array_equal(part.theta, other.parts[name].theta)
    assert (len(sizes), len(anew)) == (3, 9)

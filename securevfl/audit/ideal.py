"""The ideal functionality of a job: the same training with nothing hidden, from the same data and the same draws.

What a party is handed by it is its declared output. So that the two runs differ by messages alone, the ideal one takes
over what the real one has drawn at random: what a defence has made of g, and the keys of random features.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest import mock

from securevfl.audit.defended import defence_of, given
from securevfl.crypto.scheme import Floats
from securevfl.job import Job, Protocol
from securevfl.models.kernel import Frequencies, Kernel
from securevfl.protocols.direct_sum import DirectSum
from securevfl.protocols.no_residual import NoResidual
from securevfl.protocols.open_residual import OpenResidual


def ideal_job(job: Job, blurred: Sequence[Floats] = ()) -> Job:
    """The same training with nothing hidden: what the declared outputs are computed from.

    blurred: what the job's defence, if it has one, has made of each g of the real run.
    """
    defence = defence_of(job.protocol.residual)
    silent = isinstance(job.protocol.residual, NoResidual)
    plain = OpenResidual(defence=None if defence is None else given(defence, blurred))
    residual = NoResidual() if silent else plain
    protocol = Protocol(sum=DirectSum(), residual=residual)
    return job.model_copy(update={"protocol": protocol, "max_label_auc": None})


@contextmanager
def drawing_from(keys: Mapping[str, bytes]) -> Iterator[None]:
    """While the block runs, each party named, at work in a thread of its name, draws random features from its key."""
    draw = Frequencies.__init__

    def pinned(self: Frequencies, model: Kernel, key: bytes, columns: int) -> None:
        draw(self, model, keys.get(threading.current_thread().name) or key, columns)

    with mock.patch.object(Frequencies, "__init__", pinned):
        yield

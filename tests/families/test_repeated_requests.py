"""A session of a kernel model caches features of rows, and scores in each request the rows of this request."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.arrays import Floats
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.party_threads import run_threads
from tests.builders import make_job, parties_of, random_blocks

COLUMNS = 3
ACCEPTS = ("columns", "rank", "fresh_equations")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_later_request_scores_the_rows_that_it_names(blocks: int) -> None:
    """Requests with the same number of rows, fewer, more, and the first rows again have the scores of a new session."""
    columns = random_blocks(2, 60, COLUMNS)
    y = (sum(block.sum(axis=1) for block in columns) > 0).astype(int)
    model = vfl.Kernel(gamma=0.1, blocks=blocks, block_size=16)
    job = make_job(
        model=model, optimizer="fdskl", protocol=vfl.Protocol(sum="direct"), batch_size="all", epochs=1, accepts=ACCEPTS
    )
    run = vfl.simulate(job, parties_of(columns, y))
    requests = [random_blocks(2, rows, COLUMNS, seed=seed) for seed, rows in enumerate((5, 5, 2, 7), 1)]
    requests.append(requests[0])

    def answer(channel: Channel, party: str, number: int) -> list[Floats | None]:
        part = run.parts[party]
        context = PartyContext(
            channel,
            run.roles,
            Meter(channel.clock, channel.counters),
            outputs=part.outputs,
            resources=LocalResources(simulated=True),
        )
        participant = job.family.participant(job, context, COLUMNS, part.state)
        return [participant.model_outputs(part.rows(request[number])) for request in requests]

    names = ("bank", "shop")
    roles = {party: partial(answer, party=party, number=number) for number, party in enumerate(names)}
    answers = run_threads(roles, WallClock)
    for request, f in zip(requests, answers["bank"], strict=True):
        assert f is not None
        np.testing.assert_allclose(f, run.decision(dict(zip(names, request, strict=True))), atol=2.0**-12)
    assert answers["shop"] == [None] * len(requests)

"""The workset table against a slow implementation of its rules, and against the random published sampler."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securevfl.optim.workset import Workset


@dataclass
class Slow:
    """The rules, evaluated on the whole history at every request.

    In the history, `None` is a local step, and a batch is its exchange.
    """

    W: int
    R: int
    history: list[tuple[str, int | None]]

    def newest_batches(self) -> list[int]:
        """Return the W batches with the newest exchanges, the newest first."""
        exchanged = [batch for kind, batch in self.history if kind == "put" and batch is not None]
        return list(dict.fromkeys(reversed(exchanged)))[: self.W]

    def sample(self) -> int | None:
        steps = [batch for kind, batch in self.history if kind == "step"]
        waiting = []
        for batch in self.newest_batches():
            came = max(k for k, event in enumerate(self.history) if event == ("put", batch))
            before = sum(kind == "step" for kind, _ in self.history[:came])
            uses = [k for k, sampled in enumerate(steps) if sampled == batch and k >= before]
            recent = steps[max(0, len(steps) - self.W + 1) :]
            if 1 + len(uses) < self.R and batch not in recent:
                waiting.append((uses[-1] if uses else before - self.W, came, batch))
        return min(waiting)[2] if waiting else None


@given(
    st.integers(1, 4), st.integers(1, 4), st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, None, None, None]), max_size=40)
)
def test_equals_the_rules_read_slowly(W: int, R: int, events: list[int | None]) -> None:
    table: Workset[int] = Workset(W, R)
    history: list[tuple[str, int | None]] = []
    for exchange, batch in enumerate(events):
        if batch is None:
            expected = Slow(W, R, history).sample()
            assert table.sample() == expected
            history.append(("step", expected))
        else:
            before = Slow(W, R, history).newest_batches()
            history.append(("put", batch))
            after = Slow(W, R, history).newest_batches()
            left = table.put(batch, batch, exchange)
            assert sorted(left) == sorted([entry for entry in before if entry not in after or entry == batch])


def schedule(W: int, R: int, exchanges: int) -> list[list[int | None]]:
    """Return the batches of the R - 1 local steps of each round; no batch occurs twice."""
    table: Workset[int] = Workset(W, R)
    entries = []
    for t in range(exchanges):
        entries.append([table.sample() for _ in range(R - 1)])
        table.put(t, t, t)
    return entries


@pytest.mark.parametrize("W", [2, 3, 5, 8])
@pytest.mark.parametrize("R", [1, 2, 3, 5, 8])
def test_every_exchange_is_used_r_times_and_never_soon_again(W: int, R: int) -> None:
    rounds = schedule(W, R, 12 * W)
    steps = [batch for sampled in rounds for batch in sampled]
    uses = Counter(steps)
    assert all(uses[t] == R - 1 for t in range(4 * W, 10 * W))  # and once when it arrived
    assert not any(None in sampled for sampled in rounds[4 * W :])
    for k, batch in enumerate(steps):
        assert batch is None or batch not in steps[max(0, k - W + 1) : k]
    for t, sampled in enumerate(rounds):
        assert all(batch is None or t - W <= batch < t for batch in sampled)


@pytest.mark.parametrize("R", [2, 5])
def test_a_table_of_one_is_stepped_on_again_and_again(R: int) -> None:
    table: Workset[int] = Workset(1, R)
    for t in range(6):
        table.put(t, t, t)
        assert [table.sample() for _ in range(R)] == [t] * (R - 1) + [None]


def test_a_table_resumes_from_its_rows() -> None:
    W, R = 3, 4
    one: Workset[int] = Workset(W, R)
    for t in range(30):
        if t == 17:
            other: Workset[int] = Workset(W, R, steps=one.steps, recent=list(one.recent))
            for row in one.rows():
                other.restore(row.entry, type(row)(row.entry, row.inserted, row.sampled, row.uses))
        steps = [one.sample() for _ in range(R - 1)]
        assert t < 17 or [other.sample() for _ in range(R - 1)] == steps
        one.put(t, t, t)
        if t >= 17:
            other.put(t, t, t)


class Rejecting:
    """The sampler of the code that was published with the paper: any row at random, unless it was taken in the last
    W - 1 local steps; rows leave after R uses, or when W R steps of either kind have passed."""

    def __init__(self, W: int, R: int, seed: int) -> None:
        self._W, self._R = W, R
        self._random = random.Random(seed)
        self._rows: dict[int, list[int]] = {}
        self._last: list[int] = []
        self._clock = 0

    def put(self, batch: int) -> None:
        self._rows[batch] = [self._clock, 0]
        self._clock += 1

    def sample(self) -> int | None:
        stale = [batch for batch, (came, _) in self._rows.items() if self._clock - came >= self._W * self._R]
        for batch in stale:
            del self._rows[batch]
        recent = self._last[max(0, len(self._last) - self._W + 1) :]
        free = [batch for batch in self._rows if batch not in recent]
        if not free:  # it would draw again until an exchange adds a row
            return None
        batch = self._random.choice(free)
        self._clock += 1
        self._last.append(batch)
        self._rows[batch][1] += 1
        if self._rows[batch][1] >= self._R:
            del self._rows[batch]
        return batch


def test_drawing_at_random_uses_exchanges_unevenly() -> None:
    W, R, exchanges = 5, 5, 400
    table, uses = Rejecting(W, R, seed=0), Counter[int | None]()
    for t in range(exchanges):
        uses.update(table.sample() for _ in range(R - 1))
        table.put(t)
    middle = range(5 * W, exchanges - 5 * W)
    assert len({uses[t] for t in middle}) > 1
    in_turn = Counter(batch for sampled in schedule(W, R, exchanges) for batch in sampled)
    assert {in_turn[t] for t in middle} == {R - 1}

"""Training on additive shares over threads, against integer arithmetic, floats and attacks."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.metrics import roc_auc_score

from securevfl.base.roles import Roles
from securevfl.crypto.lattice.bfv_product import LatticeShares
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import ConfigError, ProtocolError, SecureVFLError
from securevfl.models.losses import LOSSES
from securevfl.protocols.seat import Desk, Seat
from securevfl.protocols.shares import visits as shares
from securevfl.protocols.shares import work_ahead
from securevfl.protocols.shares.chunk_store import InMemory, OnDisk, Ready
from securevfl.protocols.shares.share_numbers import LookUp, Numbers
from securevfl.protocols.shares.share_steps import Descent, FixedCoefficients
from securevfl.protocols.shares.spent_names import SpentNames
from securevfl.protocols.shares.visits import (
    Delta,
    MaskedPart,
    SharesActive,
    SharesPartner,
    SharesPassive,
    Tables,
    Turn,
    VisitColumns,
)
from securevfl.protocols.shares.work_ahead import Ahead, Terms
from securevfl.runtime.channel import Event
from securevfl.runtime.clock import Network, VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.threads import run_threads

RATE = 0.3
LOSS = LOSSES["logistic"]


class Case:
    """The parties' columns, labels and batches; the second party is the partner."""

    def __init__(self, X, y, size, rate=RATE, loss=LOSS, rule=None, chunks=1, P=None, **sizes):
        self.names = "abcd"[: len(X)]
        self.X = dict(zip(self.names, X, strict=True))
        self.y = y.reshape(len(y), -1)
        self.rate, self.loss, self.rule, self.P = rate, loss, rule or Descent(), P or {}
        self.batches = np.array_split(np.random.default_rng(0).permutation(len(y)), max(1, len(y) // size))
        rows = tuple(map(len, self.batches))
        self.numbers = Numbers(max(rows), rate, m=self.rule.m, **sizes)
        widths = {name: X.shape[1] for name, X in self.X.items()}
        self.terms = Terms(self.numbers, rows, widths, "b", self.rule, self.y.shape[1], chunks)
        self.scheme = LatticeShares(self.numbers.bits)

    @property
    def order(self):
        return list(range(len(self.batches)))

    def columns(self, name):
        return VisitColumns(self.numbers, self.rate, lambda k: self.X[name][self.batches[k]], self.P.get(name))

    def tables(self, k):
        return LookUp(self.numbers, self.loss.residual, self.y[self.batches[k]].reshape(-1, 1))


def breast(*widths, rows=None):
    """Columns of so many parties, the first with a column of ones, and labels."""
    table = load_breast_cancer()
    X = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    X, y = X[:rows], np.where(table.target, 1.0, -1.0)[:rows]
    at = np.cumsum([0, *(widths or (6, 9))])
    parts = [X[:, start:stop] for start, stop in pairwise(at)]
    parts[0] = np.hstack([parts[0], np.ones((len(y), 1))])
    return parts, y


class Watched:
    """Keeps what a party steps by, for the oracle: of g psi_A + delta at A, g_B at B."""

    def _step(self, visit, g):
        self.seen.append((visit.batch, (visit.own if isinstance(self, SharesActive) else g).copy()))
        return super()._step(visit, g)


class WatchedActive(Watched, SharesActive):
    pass


class WatchedPartner(Watched, SharesPartner):
    pass


class WatchedPassive(Watched, SharesPassive):
    pass


KINDS = {"a": WatchedActive, "b": WatchedPartner, "c": WatchedPassive, "d": WatchedPassive}


class Run:
    """One session of all parties: chunks of visits, as `play` goes through them."""

    def __init__(
        self,
        case,
        chunks,
        *,
        states=None,
        stop=None,
        ready=None,
        kinds=KINDS,
        repeat=1,
        make=True,
        train=True,
        desks=None,
    ):
        self.desks = desks or defaultdict(Desk)
        self.case, self.chunks, self.stop, self.given = case, chunks, stop, states or {}
        self.ready = ready or {name: InMemory() for name in case.names}
        self.repeat, self.kinds, self.make, self.train = repeat, kinds, make, train
        self.states = {name: [] for name in case.names}
        self.seen = {name: [] for name in case.names}
        self.events: list[Event] = []
        self.lock = threading.Lock()

    def watch(self, event):
        with self.lock:
            self.events.append(event)

    def role(self, name):
        def play(channel):
            case = self.case
            meter = Meter(channel.clock, channel.books)
            seat = Seat(channel, Roles.labelled("a", case.names[1:]), meter, desk=self.desks[name])
            columns = case.columns(name)
            ahead = Ahead(seat, case.terms, (case.scheme,), columns.integers, self.ready[name])
            extra = (case.tables,) if name == "a" else ()
            side = self.kinds[name](seat, case.terms, columns, ahead, *extra, self.given.get(name))
            side.seen = self.seen[name]
            self.states[name].append(side.state)
            for number, visits in enumerate(self.chunks):
                if self.make:
                    ahead.make(number, visits)
                if not self.train:
                    continue
                for state in (state for _ in range(self.repeat) for state in side.train(number, len(visits))):
                    self.states[name].append(state)
                    if self.stop == (name, state.visits):
                        raise Killed

        return play

    def go(self):
        def clock():
            return VirtualClock(Network())

        try:
            run_threads({name: self.role(name) for name in self.case.names}, clock, timeout=60, observe=self.watch)
        finally:
            for store in self.ready.values():
                store.close()
        return self

    def theta(self, visits=-1):
        """Weights as integers (d x c), opened."""
        ring, rule, opened = ShareRing(self.case.numbers.bits), self.case.rule, {}
        for name in self.case.names:
            held = [self.states[name][visits].own]
            held += [self.states[holder][visits].others[name] for holder in "ab" if holder != name]
            opened[name] = ring.reduce(sum(rule.theta(state, visits) for state in held))
        return opened

    @property
    def weights(self):
        return np.concatenate([self.case.numbers.weights(words) for words in self.theta().values()])

    def scores(self):
        return np.clip(np.hstack(list(self.case.X.values())), -8, 8) @ self.weights

    @property
    def residuals(self):
        """Batch and g (n x c) of each visit, opened."""
        ring, seen = ShareRing(self.case.numbers.bits), (self.seen["a"], self.seen["b"])
        return [(k, ring.signed(ring.reduce(psi + g))) for (k, psi), (_, g) in zip(*seen, strict=True)]

    def received(self, kind, by="abcd"):
        events = [event for event in self.events if event.direction == "recv" and event.me in by]
        return [event.message for event in events if type(event.message) is kind]


class Killed(SecureVFLError):
    pass


def floats(case, visits):
    """FedSGD with the exact residual, the same visits: weights and scores."""
    X = np.clip(np.hstack(list(case.X.values())), -8, 8)
    theta = np.zeros((X.shape[1], case.y.shape[1]))
    for k in visits:
        rows, y = case.batches[k], case.y[case.batches[k]]
        g = case.loss.residual((X[rows] @ theta).reshape(-1, 1), y.reshape(-1, 1)).reshape(y.shape)
        theta -= case.rate / len(rows) * X[rows].T @ g
    return theta, X @ theta


@pytest.fixture(scope="module", params=[(6, 9), (4, 9, 5), (4, 6, 3, 2)], ids=["two", "three", "four"])
def run(request):
    case = Case(*breast(*request.param), 120)
    visits = 4 if len(request.param) == 2 else 1
    return Run(case, [case.order * visits, case.order[::-1] * 3]).go()


def test_the_weights_are_those_of_the_residuals_that_the_tables_gave(run):
    """The oracle: integer arithmetic on opened residuals, visit by visit. Products may be off by one unit each."""
    ring = ShareRing(run.case.numbers.bits)
    total = {name: np.zeros((X.shape[1], 1), np.uint64) for name, X in run.case.X.items()}
    for visit, (k, g) in enumerate(run.residuals):
        for name, X in run.case.X.items():
            W = run.case.numbers.steps(X[run.case.batches[k]], run.case.rate)
            total[name] = ring.reduce(total[name] - (W.T @ g).view(np.uint64))
            errors = ring.signed(ring.reduce(run.theta(visit + 1)[name] - total[name]))
            assert np.abs(errors).max() <= visit + 1
            assert (errors != 0).sum() <= max(2, 0.2 * errors.size)  # a party may have two columns


def test_each_residual_is_one_of_the_two_entries_around_the_sum(run):
    case, numbers = run.case, run.case.numbers
    upper = 0
    for visit, (k, g) in enumerate(run.residuals):
        theta = run.theta(visit)
        H = sum(
            np.ldexp(numbers.columns(X[case.batches[k]]), -numbers.f_x) @ numbers.weights(theta[name])
            for name, X in case.X.items()
        )
        y, got = case.y[case.batches[k]], np.ldexp(g.astype(float), -numbers.f_g)
        around = [case.loss.residual(f, y) for f in (np.floor(H), np.floor(H) + 1)]
        near = [np.abs(got - each) <= 2.0**-numbers.f_g for each in around]
        assert (near[0] | near[1]).all()
        upper += float((near[1] & ~near[0]).mean())
    assert upper > 0


def test_the_model_is_that_of_floats(run):
    case = run.case
    theta, f = floats(case, [k for k, _ in run.residuals])
    aucs = [roc_auc_score(case.y, scores) for scores in (run.scores(), f)]
    assert abs(aucs[0] - aucs[1]) <= 0.001
    assert np.abs(run.weights - theta).max() < 0.03


def test_the_residual_is_unbiased():
    """Many visits of one batch at a fixed sum: the mean of g is the line between the entries."""
    numbers = Numbers(4000, 1.0)
    look, ring, prg = (
        LookUp(numbers, LOSS.residual, np.ones((4000, 1))),
        ShareRing(numbers.bits),
        shares.Prg.fresh("test"),
    )
    for H in (-3.3, 0.0, 0.71, 2.5):
        h = np.full(4000, int(H * 2.0**numbers.shift) % 2**numbers.bits, np.uint64)
        h_a = ring.uniform(prg, 4000)
        i_a, i_b = numbers.index(h_a), numbers.index(ring.reduce(h - h_a))
        g = np.ldexp(look.entries(i_a, prg)[i_b, np.arange(4000)].astype(float), -numbers.f_g)
        low, high = (LOSS.residual(np.array([[f]]), np.ones((1, 1)))[0, 0] for f in (np.floor(H), np.floor(H) + 1))
        line = low + (H - np.floor(H)) * (high - low)
        assert abs(g.mean() - line) < 6 * max(g.std(), 1e-3) / 4000**0.5


def test_one_round_trip_a_visit_and_two_a_chunk(run):
    sent = defaultdict(int)
    for event in run.events:
        if event.direction == "send":
            sent[event.me, type(event.message)] += 1
    visits, further = len(run.residuals), run.case.names[2:]
    turns = {("a", Tables): visits, ("b", Turn): visits + len(run.chunks), ("b", Delta): visits * len(further)}
    turns |= {(name, MaskedPart): visits for name in further}
    expected = {key: count for key, count in turns.items() if count}
    assert {key: count for key, count in sent.items() if key[1] in (Tables, Turn, Delta, MaskedPart)} == expected


def test_every_message_is_declared(run):
    roles = dict(zip("abcd", ("active", "partner", "passive", "passive"), strict=True))
    present = [roles[name] for name in run.case.names]
    declared = {
        (d.message, d.sender, d.receiver)
        for d in [*shares.declares(), *work_ahead.declares()]
        if {d.sender, d.receiver} <= set(present) and (d.sender != d.receiver or present.count(d.sender) > 1)
    }
    assert {(type(e.message), roles[e.peer], roles[e.me]) for e in run.events if e.direction == "recv"} == declared


def test_who_must_pool_what_they_hold_is_said():
    found = shares.coalitions("a", "b", ("b", "c", "d"))
    assert {name: sorted(each.members) for name, each in found.items()} == {"c": ["a", "b"], "d": ["a", "b"]}


def test_two_of_the_three_shares_of_a_third_partys_weights_are_noise(run):
    """Weights of a third party take its own share and both holders': two of the three are noise."""
    ring, numbers = ShareRing(run.case.numbers.bits), run.case.numbers
    for name in run.case.names[2:]:
        shares_of = [run.states[name][-1].own[0], *(run.states[holder][-1].others[name][0] for holder in "ab")]
        theta = numbers.weights(ring.reduce(sum(shares_of)))
        for left_out in range(3):
            rest = numbers.weights(ring.reduce(sum(each for i, each in enumerate(shares_of) if i != left_out)))
            assert np.abs(rest - theta).max() > 1


UNIFORM = 1e-10  # of some thirty p-values in all


def uniform(octets: bytes) -> float:
    return float(stats.chisquare(np.bincount(np.frombuffer(octets, np.uint8), minlength=256)).pvalue)


def test_what_either_party_receives_in_visits_is_uniform(run):
    octets = run.case.numbers.bits // 8
    assert uniform(b"".join(turn.delta for turn in run.received(Turn))) > UNIFORM
    places = np.frombuffer(b"".join(turn.places for turn in run.received(Turn)), np.uint8)
    assert stats.chisquare(np.bincount(places, minlength=64)).pvalue > UNIFORM
    assert uniform(b"".join(table.entries for table in run.received(Tables))) > UNIFORM
    own = [np.concatenate([g.ravel() for _, g in run.seen["b"]]) & ShareRing(run.case.numbers.bits).mask]
    own += [np.concatenate([state.own.ravel() for state in run.states[name][1:]]) for name in run.case.names]
    for words in own:
        assert uniform(words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :octets].tobytes()) > UNIFORM
    for kind, by in ((MaskedPart, "a"), *((Delta, name) for name in run.case.names[2:])):
        if messages := run.received(kind, by):
            assert uniform(b"".join(message.words for message in messages)) > UNIFORM


def test_b_ranks_no_label_by_what_it_opens(run):
    case = run.case
    votes = np.zeros(len(case.y))
    for k, g in run.seen["b"]:
        votes[case.batches[k]] += ShareRing(case.numbers.bits).signed(g)[:, 0].astype(float)
    assert 0.35 < roc_auc_score(case.y, votes) < 0.65  # of 357 against 212 rows: six standard errors of .025


@pytest.mark.parametrize("keys", [{"table_bits": 7, "step": -1}, {"table_bits": 5, "f_g": 10}], ids=str)
def test_other_tables(keys):
    case = Case(*breast(rows=200), 200, **keys)
    run = Run(case, [case.order * 10]).go()
    _, f = floats(case, case.order * 10)
    assert abs(roc_auc_score(case.y, run.scores()) - roc_auc_score(case.y, f)) <= 0.002


@pytest.mark.parametrize("name", ["square", "smooth_hinge"])
def test_other_losses(name):
    X, y = breast(rows=200)
    if name == "square":
        y = X[0][:, 0] - X[1][:, 0] + 0.1 * np.random.default_rng(0).normal(size=200)
        y = (y - y.mean()) / y.std()
    case = Case(X, y, 200, rate=0.1, loss=LOSSES[name], step=-1)
    run = Run(case, [case.order * 12]).go()
    theta, _ = floats(case, case.order * 12)
    assert np.abs(run.weights - theta).max() < 0.05


def test_several_outputs_train_one_against_the_rest():
    table = load_wine()
    X = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    y = np.where(table.target[:, None] == np.arange(3), 1.0, -1.0)
    case = Case([X[:, :5], X[:, 5:9], X[:, 9:]], y, 89, rate=1.0)
    run = Run(case, [case.order * 4]).go()
    theta, f = floats(case, case.order * 4)
    assert run.weights.shape == theta.shape == (13, 3)
    assert np.abs(run.weights - theta).max() < 0.06
    assert ((run.scores().argmax(axis=1) == table.target).mean() - (f.argmax(axis=1) == table.target).mean()) > -0.01


# --- rules and steps of a party's own --------------------------------------------------------------------------------


def accelerated(momentum):
    """Rows of Nesterov's method, v = momentum v + u, theta -= u + momentum v, as coefficients of the changes."""

    def row(t):
        return [sum(momentum**k for k in range(t - s)) + momentum ** (t - s) for s in range(t)]

    return row


def test_momentum_with_coefficients_fixed_ahead_is_that_of_floats():
    rule = FixedCoefficients(accelerated(0.6))
    case = Case(*breast(5, 6, 4, rows=200), 200, rule=rule)
    run = Run(case, [case.order * 5, case.order * 4]).go()
    X = np.clip(np.hstack(list(case.X.values())), -8, 8)
    changes = []
    for t in range(9):
        theta = -sum((c * u for c, u in zip(accelerated(0.6)(t), changes, strict=True)), np.zeros((X.shape[1], 1)))
        rows = case.batches[0]
        changes.append(case.rate / len(rows) * X[rows].T @ LOSS.residual(X[rows] @ theta, case.y[rows]))
    theta = -sum(c * u for c, u in zip(accelerated(0.6)(9), changes, strict=True))
    assert np.abs(run.weights - theta).max() < 0.1
    assert abs(roc_auc_score(case.y, run.scores()) - roc_auc_score(case.y, X @ theta)) <= 0.002


def test_a_rule_is_that_of_its_coefficients_on_any_share():
    rng, ring = np.random.default_rng(0), ShareRing(48)
    rule = FixedCoefficients(lambda t: [0.5 + s - t for s in range(t)], m=4)
    shares_of = [rng.integers(0, 2**48, (5, 3, 2), dtype=np.uint64) for _ in range(2)]
    states = [rule.start(each[0]) for each in shares_of]
    for t in range(1, 5):
        states = [ring.reduce(rule.step(state, each[t], t - 1)) for state, each in zip(states, shares_of, strict=True)]
    whole = [int(x) for x in sum(rule.theta(state, 4) for state in states).ravel() & ring.mask]
    total = sum(shares_of)
    slow = [
        (int(total[0].flat[i]) - sum(round(16 * (0.5 + s - 4)) * int(total[s + 1].flat[i]) for s in range(4))) % 2**48
        for i in range(6)
    ]
    assert whole == slow


def test_a_rule_of_other_bits_than_agreed_is_refused():
    with pytest.raises(ConfigError, match="coefficients"):
        Terms(Numbers(10, 0.1), (10,), {"a": 1, "b": 1}, "b", FixedCoefficients(lambda t: [1.0] * t))


def test_a_party_turns_its_steps_by_a_matrix_of_its_own():
    """The step of Newton's method with the bound 1/4 on the curvature, each party on its own columns."""
    X, y = breast(6, 9)
    bounds = [x.T @ x / (4 * len(y)) + 1e-2 * np.eye(x.shape[1]) for x in X]
    P = {name: np.linalg.inv(bound) for name, bound in zip("ab", bounds, strict=True)}
    case = Case(X, y, len(y), rate=0.5, P=P)
    run = Run(case, [case.order * 6]).go()
    plain = np.clip(np.hstack(X), -8, 8)
    theta = np.zeros((plain.shape[1], 1))
    turn = np.block([[P["a"], np.zeros((7, 9))], [np.zeros((9, 7)), P["b"]]])
    for _ in range(6):
        theta -= 0.5 / len(y) * turn @ plain.T @ LOSS.residual(plain @ theta, case.y)
    assert abs(roc_auc_score(y, run.scores()) - roc_auc_score(y, plain @ theta)) <= 0.001


# --- breaking off and going on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [("a", 3), ("b", 3), ("b", 1), ("c", 2)])
def test_a_broken_training_goes_on_from_the_states_all_have(stop):
    case = Case(*breast(4, 6, 5, rows=200), 100)
    visits = case.order * 3
    first = Run(case, [visits], stop=stop)
    with pytest.raises(Killed):
        first.go()
    reached = {name: len(states) - 1 for name, states in first.states.items()}
    done = min(reached.values())
    assert max(reached.values()) - done <= 1
    rest = Run(case, [visits[done:]], states={name: first.states[name][done] for name in case.names}).go()
    assert rest.states["a"][-1].visits == len(visits)
    theta, _ = floats(case, visits)
    assert np.abs(rest.weights - theta).max() < 0.05


def sums_read(case):
    """How well A ranks the sums after a step by the deltas of one visit before and after it, in two sessions."""
    first = Run(case, [[0]]).go()
    second = Run(case, [[0]], states={name: first.states[name][-1] for name in "ab"}).go()
    ring = ShareRing(case.numbers.bits)
    deltas = [ring.unpack(run.received(Turn)[-1].delta, (200,)) for run in (first, second)]
    _, f = floats(case, [0])
    return stats.spearmanr(ring.signed(ring.reduce(deltas[1] - deltas[0])), f[case.batches[0], 0]).statistic


def test_a_keystream_used_again_after_a_break_tells_every_sum_and_ours_is_new(monkeypatch):
    """delta - delta' is g - g' where psi and gamma are the same; g of the first visit is known up to the label."""
    case = Case(*breast(rows=200), 200, rate=3.0)
    assert abs(sums_read(case)) < 0.45  # of 200 rows: six standard errors of .071
    own = work_ahead.Prg
    fixed = {name: bytes([number] * 32) for number, name in enumerate("ab")}
    monkeypatch.setattr(own, "fresh", lambda label: own(fixed[threading.current_thread().name], label))
    assert sums_read(case) > 0.95


def test_a_visit_is_gone_through_once():
    case = Case(*breast(rows=100), 100)
    with pytest.raises(ProtocolError, match="spent"):
        Run(case, [[0]], repeat=2).go()
    store = InMemory()
    store.put(0, bytes(16), 0, [b"one", b"two"])
    assert store.take(0, 0) == b"one"
    for place in (0, 2):
        with pytest.raises(ProtocolError, match="spent"):
            store.take(0, place)
    assert store.take(0, 1) == b"two"


def test_on_disk_a_spent_chunk_does_not_survive_its_process(tmp_path: Path):
    store = OnDisk(tmp_path)
    records = [bytes([i]) * (i + 1) for i in range(40)]
    store.put(3, b"three".ljust(16), 7, records)
    store.put(4, b"four".ljust(16), 47, records)
    with pytest.raises(ConfigError, match="another process has it"):
        OnDisk(tmp_path)
    for place in range(20):
        assert store.take(3, place) == records[place]
    store.close()
    again = OnDisk(tmp_path)  # a new process after a crash
    assert again.untouched == (4,)
    with pytest.raises(ProtocolError):
        again.take(3, 20)
    assert (again.chunk(4).name, again.chunk(4).first) == (b"four".ljust(16), 47)
    assert again.take(4, 0) == records[0]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    again.drop(4)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_chunk_that_was_copied_or_put_back_is_thrown_away(tmp_path: Path):
    """A backup of the folder, whole or of one chunk with its mark of being bound, into the same place or another."""
    folder, backup = tmp_path / "ahead", tmp_path / "backup"
    store = OnDisk(folder)
    store.put(0, b"none".ljust(16), 0, [b"one", b"two"])
    store.put(1, b"more".ljust(16), 2, [b"one", b"two"])
    store.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    shutil.copytree(folder, backup)
    kept = OnDisk(folder)
    assert kept.untouched == (0, 1)
    kept.take(0, 0)
    kept.close()
    for name in ("chunk-0.ready", "chunk-0.bound"):
        shutil.copy2(backup / name, folder / name)
    (folder / "chunk-0.spent").unlink()
    assert OnDisk(folder).untouched == (1,)
    assert OnDisk(backup).untouched == ()
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    assert not OnDisk(folder).numbers


def test_a_name_is_spent_once_by_whoever_has_the_chunk_again(tmp_path: Path):
    """Another process and another folder, as after a backup of the folder alone was put back."""
    names = SpentNames(tmp_path / "own" / "names")
    other = SpentNames(tmp_path / "own" / "names")
    names.spend(b"one".ljust(16))
    assert other.holds(b"one".ljust(16))
    assert not other.holds(b"two".ljust(16))
    with pytest.raises(ProtocolError, match="begun before is spent"):
        other.spend(b"one".ljust(16))
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "own", tmp_path / "own" / "names")} == {0o700, 0o600}


def test_work_ahead_put_back_at_all_parties_is_gone_through_by_nobody(tmp_path: Path, monkeypatch):
    """An attack: folders are put back with their old inodes and times, as no file system lets them be."""
    case = Case(*breast(rows=100), 100)
    monkeypatch.setattr(OnDisk, "_is_bound", lambda *_: True)
    desks = {name: Desk(chunks=tmp_path / f"{name}.chunks") for name in case.names}

    def stores():
        return {name: OnDisk(tmp_path / name) for name in case.names}

    Run(case, [[0, 0]], ready=stores(), desks=desks, train=False).go()
    shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}.backup"))
    Run(case, [[0, 0]], ready=stores(), desks=desks, make=False).go()
    for name in case.names:  # the folders, and neither party's names
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path.with_name(f"{tmp_path.name}.backup") / name, tmp_path / name)
    with pytest.raises(ProtocolError, match="begun before is spent"):
        Run(case, [[0, 0]], ready=stores(), desks=desks, make=False).go()


def test_a_record_is_marked_spent_before_it_is_handed_out(tmp_path: Path, monkeypatch):
    """A crash while the mark is written gives nobody the record; one right after it leaves the mark."""
    store = OnDisk(tmp_path)
    store.put(0, bytes(16), 0, [b"mask"] * 20)

    def crash(*_):
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr("securevfl.protocols.shares.chunk_store.write_whole", crash)
        with pytest.raises(OSError):
            store.take(0, 0)
    assert (tmp_path / "chunk-0.ready").exists()
    store.close()
    store = OnDisk(tmp_path)
    store.take(0, 0)
    assert (tmp_path / "chunk-0.spent").exists()
    store.close()
    assert OnDisk(tmp_path).untouched == ()


@pytest.mark.parametrize("make", [lambda path: InMemory(100), lambda path: OnDisk(path, 100)])
def test_a_store_is_bounded(make, tmp_path: Path):
    store: Ready = make(tmp_path)
    store.put(0, bytes(16), 0, [bytes(60)])
    with pytest.raises(ConfigError, match="smaller"):
        store.put(1, bytes(16), 1, [bytes(60)])
    with pytest.raises(ProtocolError, match="twice"):
        store.put(0, bytes(16), 0, [b""])
    store.drop(0)
    store.put(1, bytes(16), 1, [bytes(60)])


def test_a_training_from_disk_is_as_good(tmp_path: Path):
    case = Case(*breast(rows=200), 100)
    ready = {name: OnDisk(tmp_path / name) for name in "ab"}
    run = Run(case, [case.order * 2, case.order * 2], ready=ready).go()
    theta, _ = floats(case, case.order * 4)
    assert np.abs(run.weights - theta).max() < 0.05
    assert OnDisk(tmp_path / "a").untouched == ()


def test_what_was_prepared_in_one_session_serves_another(tmp_path: Path):
    case = Case(*breast(4, 6, 5, rows=200), 100)
    chunks = [case.order * 2, case.order]

    def stores():
        return {name: OnDisk(tmp_path / name) for name in case.names}

    Run(case, chunks, ready=stores(), train=False).go()
    run = Run(case, chunks, ready=stores(), make=False).go()
    theta, _ = floats(case, [*chunks[0], *chunks[1]])
    assert np.abs(run.weights - theta).max() < 0.05
    with pytest.raises(ProtocolError, match="spent"):
        Run(case, chunks, ready=stores(), make=False).go()


def test_chunks_that_were_not_made_together_are_refused(tmp_path: Path):
    case = Case(*breast(rows=100), 100)
    ready = {}
    for session in "xy":
        ready[session] = {name: OnDisk(tmp_path / session / name) for name in case.names}
        Run(case, [[0, 0]], ready=ready[session], train=False).go()
    with pytest.raises(ProtocolError, match="made with others"):
        Run(case, [[0, 0]], ready={"a": ready["x"]["a"], "b": ready["y"]["b"]}, make=False).go()


def test_a_chunk_for_another_visit_is_refused():
    case = Case(*breast(rows=100), 100)
    first = Run(case, [[0]]).go()
    ready = {name: InMemory() for name in "ab"}
    Run(case, [[0]], ready=ready, train=False).go()
    with pytest.raises(ProtocolError, match="is for visit 0, the training is at visit 1"):
        Run(case, [[0]], ready=ready, make=False, states={name: first.states[name][-1] for name in "ab"}).go()


# --- a peer that sends something else --------------------------------------------------------------------------------


def tampered(kind, change):
    """A run in which one kind of message is changed on its way."""
    case = Case(*breast(6, 5, 4, rows=100), 100)

    class Changed:
        def _send(self, name, message):
            super()._send(name, change(message) if type(message) is kind else message)

    class A(Changed, WatchedActive):
        pass

    class B(Changed, WatchedPartner):
        pass

    class C(Changed, WatchedPassive):
        pass

    return Run(case, [[0, 0]], kinds={"a": A, "b": B, "c": C})


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Turn, lambda m: Turn(m.chunk, m.delta, m.places[:-1])),
        (Turn, lambda m: Turn(m.chunk, m.delta, b"\xff" * len(m.places))),
        (Turn, lambda m: Turn(m.chunk, m.delta[:-1], m.places)),
        (Tables, lambda m: Tables(m.entries[:-1])),
        (Tables, lambda m: Tables(b"")),
        (MaskedPart, lambda m: MaskedPart(m.chunk, m.words + b"0")),
        (Delta, lambda m: Delta(m.words[:-1])),
    ],
    ids=["short places", "places beyond", "short delta", "short tables", "no tables", "long part", "short delta to C"],
)
def test_messages_of_another_size_end_the_run_with_a_word(kind, change):
    with pytest.raises(ProtocolError, match="expected"):
        tampered(kind, change).go()


def test_sizes_that_do_not_fit_are_refused_beforehand():
    with pytest.raises(ConfigError, match="bits are needed"):
        Numbers(2**30, 1e-3, table_bits=8)
    assert Numbers(256, 0.1).needed == 41
    assert Numbers(256, 0.1).bits == 48
    assert Numbers(256, 0.1).reach == 31
    assert Numbers(256, 0.1).f_w == 19 + 3
    assert Numbers(128, 0.1).bits == Numbers(128, 0.1).needed == 40
    assert Numbers(2, 4.0).f_w == 6 + 3


def test_columns_of_one_batch_become_integers_once():
    """W is a product of n x d with d x d under a preconditioner: products ahead and visits take the same one."""
    read = []
    columns = VisitColumns(Numbers(50, RATE), RATE, lambda k: read.append(k) or np.ones((50, 3)), np.eye(3))
    steps, sums = columns.integers(0), columns.integers(0)
    columns.factors(0)
    assert read == [0]
    assert steps is sums

"""Training on additive shares, with one thread for each party, compared with integer
arithmetic and floats, and attacked.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.metrics import roc_auc_score

from securevfl.base.roles import Roles
from securevfl.crypto.kernel.shares import KernelShares
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.errors import SecureVFLError
from securevfl.models.losses import LOSSES
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.protocols.shares import delayed_transfers, offline_phase, reply_sums
from securevfl.protocols.shares import iteration as shares
from securevfl.protocols.shares.column_blocks import LocalColumns
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.iteration import (
    FeatureParty,
    LabelParty,
    LookupRequest,
    MaskedResidual,
    MaskedSum,
    MaskedTables,
    PartnerParty,
    SharedState,
)
from securevfl.protocols.shares.offline_phase import OfflinePhase
from securevfl.protocols.shares.preprocessing_store import MemoryStore
from securevfl.protocols.shares.residual_tables import ResidualTables
from securevfl.protocols.shares.share_products import ProductQuery, ProductReply
from securevfl.protocols.shares.shares_params import ROWS_PER_BLOCK, SharesParams
from securevfl.protocols.shares.table_transfers import TransferCorrections
from securevfl.protocols.shares.update_rules import Descent
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.meter import Meter
from securevfl.runtime.network import Network
from securevfl.runtime.observer import Event
from securevfl.runtime.party_threads import run_threads

RATE = 0.3
LOSS = LOSSES["logistic"]


class Case:
    """The parties' columns, labels and batches. The second party is the partner of the first, which has the labels."""

    def __init__(
        self, X, y, size, rate=RATE, loss=LOSS, rule=None, chunks=1, P=None, batches=None, block=ROWS_PER_BLOCK, **sizes
    ):
        self.names = "abcd"[: len(X)]
        self.X = dict(zip(self.names, X, strict=True))
        self.y = y.reshape(len(y), -1)
        self.rate, self.loss, self.rule, self.P = rate, loss, rule or Descent(), P or {}
        order = np.random.default_rng(0).permutation(len(y))
        self.batches = batches or np.array_split(order, max(1, len(y) // size))
        rows = tuple(map(len, self.batches))
        self.numbers = FixedPointEncoding(max(rows), rate, m=self.rule.m, **sizes)
        widths = {name: X.shape[1] for name, X in self.X.items()}
        self.terms = SharesParams(self.numbers, rows, widths, "b", self.rule, self.y.shape[1], chunks, block=block)
        self.scheme = LatticeShares(self.numbers.bits)

    @property
    def order(self):
        return list(range(len(self.batches)))

    def columns(self, name):
        return LocalColumns(self.numbers, self.rate, lambda k: self.X[name][self.batches[k]], self.P.get(name))

    def tables(self, piece):
        y = self.y[self.batches[piece.batch]][piece.start : piece.stop]
        return ResidualTables(self.numbers, self.loss.residual, y.reshape(-1, 1))


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def breast(*widths, rows=None):
    """Return columns (first party: plus a column of ones) with these widths, and labels."""
    table = load_breast_cancer()
    X = (table.data - table.data.mean(axis=0)) / table.data.std(axis=0)
    X, y = X[:rows], np.where(table.target, 1.0, -1.0)[:rows]
    at = np.cumsum([0, *(widths or (6, 9))])
    parts = [X[:, start:stop] for start, stop in pairwise(at)]
    parts[0] = np.hstack([parts[0], np.ones((len(y), 1))])
    return parts, y


class Watched:
    """Record each party's share of the residual in a step, to compare: psi_A + delta at A, g_B at B."""

    def _step(self, visit, g):
        self.seen.append((visit.block, (visit.psi if isinstance(self, LabelParty) else g).copy()))
        return super()._step(visit, g)


class WatchedActive(Watched, LabelParty):
    pass


class WatchedPartner(Watched, PartnerParty):
    pass


class WatchedPassive(Watched, FeatureParty):
    pass


KINDS = {"a": WatchedActive, "b": WatchedPartner, "c": WatchedPassive, "d": WatchedPassive}


class Run:
    """One session of all parties. A chunk is a number of iterations whose random products are computed in advance."""

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
        delays=False,
    ):
        self.delays = delays
        self.desks = desks or defaultdict(LocalResources)
        self.case, self.chunks, self.stop, self.start_states = case, chunks, stop, states or {}
        self.ready = ready or {name: MemoryStore() for name in case.names}
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
            meter = Meter(channel.clock, channel.counters)
            context = PartyContext(channel, Roles.labelled("a", case.names[1:]), meter, resources=self.desks[name])
            columns = case.columns(name)
            ahead = OfflinePhase(context, case.terms, case.scheme, columns.factor, self.ready[name])
            extra = (case.tables,) if name == "a" else ()
            side = self.kinds[name](context, case.terms, columns, ahead, *extra, self.start_states.get(name))
            side.seen = self.seen[name]
            self.states[name].append(side.state)
            for number, visits in enumerate(self.chunks):
                if self.make:
                    ahead.generate(number, visits, delays_transfers=self.delays)
                if not self.train:
                    continue
                for state in (state for _ in range(self.repeat) for state in side.train(number, len(visits))):
                    self.states[name].append(state)
                    if self.stop == (name, state.iterations):
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
        """The weights as integers (d x c), the sum of all shares."""
        ring, rule, opened = ShareRing(self.case.numbers.bits), self.case.rule, {}
        for name in self.case.names:
            summands = [self.states[name][visits].own_share]
            summands += [self.states[holder][visits].peer_shares[name] for holder in "ab" if holder != name]
            opened[name] = ring.reduce(sum(rule.theta(state, visits) for state in summands))
        return opened

    @property
    def weights(self):
        return np.concatenate([self.case.numbers.decode_weights(words) for words in self.theta().values()])

    def scores(self):
        return np.clip(np.hstack(list(self.case.X.values())), -8, 8) @ self.weights

    @property
    def residuals(self):
        """The batch and residuals g (n x c) of each iteration, the sum of both shares."""
        ring, seen, opened_batches = ShareRing(self.case.numbers.bits), (self.seen["a"], self.seen["b"]), []
        for (piece, psi), (other, g) in zip(*seen, strict=True):
            assert piece == other
            opened = ring.signed(ring.reduce(psi + g))
            joined = opened if not piece.start else np.concatenate([opened_batches.pop()[1], opened])
            opened_batches.append((piece.batch, joined))
        return opened_batches

    def received(self, kind, by="abcd"):
        events = [event for event in self.events if event.direction == "recv" and event.me in by]
        return [event.message for event in events if type(event.message) is kind]


class Killed(SecureVFLError):
    pass


def floats(case, visits):
    """Return weights and scores of FedSGD with exact residuals, on the same batches."""
    X = np.clip(np.hstack(list(case.X.values())), -8, 8)
    theta = np.zeros((X.shape[1], case.y.shape[1]))
    for k in visits:
        rows, y = case.batches[k], case.y[case.batches[k]]
        g = case.loss.residual((X[rows] @ theta).reshape(-1, 1), y.reshape(-1, 1)).reshape(y.shape)
        theta -= case.rate / len(rows) * X[rows].T @ g
    return theta, X @ theta


ROWS = 285  # two batches, of 143 and 142 rows
LIFTED = {"lift_bits": 8, "f_g": 7}
SHAPES = {
    "two": ((6, 9), ROWS_PER_BLOCK, {}),
    "three": ((4, 9, 5), ROWS_PER_BLOCK, {}),
    "four": ((4, 6, 3, 2), ROWS_PER_BLOCK, {}),
    "two, by blocks": ((6, 9), 33, {}),  # three batches and a rest, so that the partner requests in advance
    "three, by blocks": ((4, 9, 5), 100, {}),
    "two, lifted": ((6, 9), ROWS_PER_BLOCK, LIFTED),
    "two, lifted by blocks": ((6, 9), 33, LIFTED),
    "three, lifted by blocks": ((4, 9, 5), 40, LIFTED),
    "two, transfers while training": ((6, 9), 33, {**LIFTED, "delays": True}),
    "three, transfers while training": ((4, 9, 5), 100, {"delays": True}),
    "four, lifted from 16 bits": ((4, 6, 3, 2), 60, {"lift_bits": 16}),
    # the last block is too small for its products to be added to others, so it gets a separate reply
    "two, one reply a batch": ((6, 9), 33, {"scheme": KernelShares}),
    "three, one reply a batch": ((4, 9, 5), 31, {"scheme": KernelShares}),
}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES)
def run(request, monkeypatch_module):
    widths, block, numbers = request.param
    scheme = numbers.get("scheme", LatticeShares)
    smaller = {
        "_MAX_PENDING_VALUES": (offline_phase, 500),
        "MIN_SUMMED_ROWS": (reply_sums, 30),
        "_MIN_CHOICE_BITS": (delayed_transfers, 1000),  # transfers of two iterations at once, and of nine for the lift
    }
    for name, (module, value) in smaller.items() if block < ROWS_PER_BLOCK else ():  # several groups of blocks
        monkeypatch_module.setattr(module, name, value)
    case = Case(
        *breast(*widths, rows=ROWS),
        120,
        block=block,
        **{name: numbers[name] for name in numbers if name not in {"scheme", "delays"}},
    )
    case.scheme = scheme(case.numbers.bits)
    visits = 4 if len(widths) == 2 else 1
    result = Run(case, [case.order * visits, case.order[::-1] * 3], delays="delays" in numbers).go()
    monkeypatch_module.undo()
    return result


def test_weights_follow_from_the_residuals_of_the_tables(run):
    """Weights are compared with integer arithmetic on the summed residuals. Each product may be off by one unit."""
    ring = ShareRing(run.case.numbers.bits)
    total = {name: np.zeros((X.shape[1], 1), np.uint64) for name, X in run.case.X.items()}
    for visit, (k, g) in enumerate(run.residuals):
        for name, X in run.case.X.items():
            W = run.case.numbers.encode_steps(X[run.case.batches[k]], run.case.rate)
            total[name] = ring.reduce(total[name] - (W.T @ g).view(np.uint64))
            errors = ring.signed(ring.reduce(run.theta(visit + 1)[name] - total[name]))
            pieces = len(run.case.terms.blocks_of(k))
            assert np.abs(errors).max() <= (visit + 1) * pieces
            assert (errors != 0).sum() <= max(2, 0.2 * pieces * errors.size)  # a party may have two columns


def test_steps_on_growing_subsets_follow_from_their_residuals():
    """The same holds for nested subsets: W has fewer bits for smaller subsets, and its products are shifted left."""
    parts, y = breast(6, 9)
    order = np.random.default_rng(1).permutation(len(y))
    case = Case(parts, y, None, batches=[order[:40], order[:150], order], w=3, f_g=7, spare=0)
    run, ring = Run(case, [[0, 0, 1, 1, 2, 2]]).go(), ShareRing(case.numbers.bits)
    lifts = [case.numbers.lift(len(rows)) for rows in case.batches]
    assert lifts == [3, 1, 0]
    total = {name: np.zeros((X.shape[1], 1), np.uint64) for name, X in case.X.items()}
    for visit, (k, g) in enumerate(run.residuals):
        for name, X in case.X.items():
            W = case.numbers.encode_steps(X[case.batches[k]], case.rate)
            total[name] = ring.reduce(total[name] - ((W.T @ g) << lifts[k]).view(np.uint64))
            errors = ring.signed(ring.reduce(run.theta(visit + 1)[name] - total[name]))
            assert np.abs(errors).max() <= sum(1 << lifts[item] for item, _ in run.residuals[: visit + 1])
    theta, _ = floats(case, [k for k, _ in run.residuals])
    # 40 rows, w = 3, and g in steps of 2^-7 from a table with entries at distance 1
    assert np.abs(run.weights - theta).max() < 0.1


def test_each_residual_is_one_of_the_two_entries_around_the_sum(run):
    case, numbers = run.case, run.case.numbers
    upper = 0
    for visit, (k, g) in enumerate(run.residuals):
        theta = run.theta(visit)
        H = sum(
            np.ldexp(numbers.encode_columns(X[case.batches[k]]), -numbers.f_x) @ numbers.decode_weights(theta[name])
            for name, X in case.X.items()
        )
        y, got = case.y[case.batches[k]], g / numbers.residual_unit
        around = [case.loss.residual(f, y) for f in (np.floor(H), np.floor(H) + 1)]
        near = [np.abs(got - item) <= 1.001 / numbers.residual_unit for item in around]
        assert (near[0] | near[1]).all()
        upper += float((near[1] & ~near[0]).mean())
    assert upper > 0


def test_the_model_is_that_of_floats(run):
    case = run.case
    theta, f = floats(case, [k for k, _ in run.residuals])
    aucs = [roc_auc_score(case.y, scores) for scores in (run.scores(), f)]
    # residuals are rounded at random: over runs, the AUC has a standard deviation of at most .0005, a weight of .005
    assert abs(aucs[0] - aucs[1]) <= 0.0025
    assert np.abs(run.weights - theta).max() < 0.045


def test_the_residual_is_unbiased():
    """Over many iterations with a fixed sum, the mean of g is on the line between the entries of the lookup table."""
    numbers = FixedPointEncoding(4000, 1.0)
    look, ring, prg = (
        ResidualTables(numbers, LOSS.residual, np.ones((4000, 1))),
        ShareRing(numbers.bits),
        shares.Prg.fresh("test"),
    )
    for H in (-3.3, 0.0, 0.71, 2.5):
        h = np.full(4000, int(H * 2.0**numbers.shift) % 2**numbers.bits, np.uint64)
        h_a = ring.uniform(prg, 4000)
        i_a, i_b = numbers.index(h_a), numbers.index(ring.reduce(h - h_a))
        g = np.ldexp(look.entries(i_a, prg)[np.arange(4000), i_b].astype(float), -numbers.f_g)
        low, high = (LOSS.residual(np.array([[f]]), np.ones((1, 1)))[0, 0] for f in (np.floor(H), np.floor(H) + 1))
        line = low + (H - np.floor(H)) * (high - low)
        assert abs(g.mean() - line) < 6 * max(g.std(), 1e-3) / 4000**0.5


@pytest.mark.parametrize("loss", [LOSSES["logistic"], LOSSES["square"], LOSSES["poisson"]], ids=lambda loss: loss.name)
def test_tables_are_centred_where_sums_of_their_rows_lie(loss):
    """A quarter of the range of a class's lookup table is where the prediction is wrong, three quarters elsewhere.

    The table of a number is centred at half of that number.
    """
    numbers = FixedPointEncoding(1000, 1.0)
    y, span = {
        "logistic": ([-1.0, 1.0], [(-47, 16), (-15, 48)]),
        "square": ([-3.0, 0.5, 30.0], [(-33, 30), (-31, 32), (-16, 47)]),
        "poisson": ([0.0, 0.5, 30.0], [(-33, 30), (-31, 32), (-29, 34)]),
    }[loss.name]
    look = ResidualTables(numbers, loss.residual, np.array(y)[:, None], loss.minimizer)
    # the entry for a share of 0, so that the other holder's share is the sum
    entry = numbers.index(np.zeros(1, np.uint64))
    for row, (low, high) in enumerate(span):
        f = np.arange(low, high + 1)
        offsets = numbers.index(
            ((f.astype(np.int64) - 1) << numbers.shift).astype(np.uint64)
        )  # an entry is that of the next larger value
        read = np.ldexp(look._tables.reshape(len(y), -1)[row][(offsets + entry) % numbers.entries], -numbers.f_g - 16)
        expected = loss.residual(f[:, None].astype(float), np.full((len(f), 1), y[row]))[:, 0]
        np.testing.assert_allclose(
            read, expected.clip(-128, 127.996), atol=2.0**-8 if expected.max() > 127 else 2.0**-20
        )


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("name", ["logistic", "smooth_hinge", "square", "poisson", "gamma"])
def test_lifted_entries_are_residuals_above_their_base(name, bits):
    """They fit into k - 1 bits, whatever the label; residuals near 0 are never clipped."""
    loss = LOSSES[name]
    if bits == 8 and not loss.has_unit_range:
        return
    numbers = FixedPointEncoding(3000, 1.0, lift_bits=bits, f_g=min(8, bits - 1))
    y = np.array({"logistic": [-1.0, 1.0], "smooth_hinge": [-1.0, 1.0]}.get(name, [0.02, 1.0, 30.0]))[:, None]
    look = ResidualTables(numbers, loss.residual, y, loss.minimizer, smooth=loss.smooth)
    plain = ResidualTables(FixedPointEncoding(3000, 1.0), loss.residual, y, loss.minimizer, smooth=loss.smooth)
    entries = look.entries(np.zeros(len(y), np.uint8), shares.Prg.fresh("test"))
    assert entries.dtype.itemsize * 8 == bits
    assert entries.max() < 2 ** (bits - 1)
    got = (look._tables.reshape(len(y), -1) / 2.0**16 + look.bases()[:, None]) / numbers.residual_unit
    expected = plain._tables.reshape(len(y), -1) / 2.0**24
    error, width = np.abs(got - expected), 2.0 ** (bits - 1) / numbers.residual_unit
    assert error[np.abs(expected) < width / 2 - 1].max(initial=0.0) <= 2.0**-16
    exact = np.ptp(expected, axis=1) < width - 0.01
    assert error[exact].max(initial=0.0) <= 2.0**-16
    middle = numbers.index(np.array([-1 << numbers.shift], np.int64).view(np.uint64))[0]  # the sum 0
    assert error[:, middle].max() <= 2.0**-16


def test_labels_too_far_for_lifted_entries_are_refused():
    numbers = FixedPointEncoding(3000, 1.0, lift_bits=16)
    with pytest.raises(SecureVFLError) as caught:
        ResidualTables(numbers, LOSSES["square"].residual, np.array([[0.0], [140.0]]))
    assert caught.value.code == "SVFL-LABEL-RANGE"
    for bits in (4, 12, 40):
        with pytest.raises(SecureVFLError) as caught:
            FixedPointEncoding(100, 1.0, lift_bits=bits)
        assert caught.value.code == "SVFL-CRYPTO-PARAMETERS"


class LastingStore(MemoryStore):
    """A store whose records remain after the session."""

    def close(self):
        pass


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_sums_of_short_products_are_within_the_tolerance(names):
    """With the kernel, shares of X @ r use two primes; they add up to the products, with an error of at most 2^-10."""
    case = Case(*breast(*(4,) * len(names)), 300)
    numbers, prg, states = case.numbers, Prg(bytes(32), "shares of weights"), {}
    ring, (block, *_), shapes = ShareRing(numbers.bits), case.terms.blocks, case.terms.columns
    case.scheme = KernelShares(numbers.bits)
    for name in names:
        peers = [k for k in names if k != name] if name in "ab" else []
        r = {k: ring.uniform(prg, (1, shapes[k], 1)) for k in peers}
        states[name] = SharedState(0, ring.uniform(prg, (1, shapes[name], 1)), r)
    ready = {name: LastingStore() for name in names}
    selected = numbers.sum_tolerance(2 * len(names) - 2), numbers.largest_entry
    short = case.scheme.within(*selected, [(d, 1, block.rows) for d in shapes.values()])
    assert short != case.scheme
    Run(case, [[0]], states=states, ready=ready, train=False).go()
    records = [offline_phase._decode_record(store.peek(0, 0, 1)) for store in ready.values()]
    total = sum(ring.unpack(record.sums, (block.rows, 1)) for record in records)
    for k in names:
        X = case.columns(k).factor(block, steps=False).astype(np.uint64)
        for holder in set("ab") - {k}:
            total = total - X @ states[holder].peer_shares[k][0]
    errors = np.ldexp(ring.signed(ring.reduce(total)).astype(float), -numbers.f_x - numbers.f_theta)
    assert 0 < np.abs(errors).max() < 2**-10
    assert numbers.sum_tolerance(1) == 2.0 ** (numbers.f_x + numbers.f_theta - 10)


def test_one_round_trip_a_visit_and_one_more_for_the_lift(run):
    sent = defaultdict(int)
    for event in run.events:
        if event.direction == "send":
            sent[event.me, type(event.message)] += 1
    further, blocks = run.case.names[2:], [len(run.case.terms.blocks_of(k)) for k, _ in run.residuals]
    visits = sum(blocks)  # blocks of all iterations
    # the bits of a lift are sent with the request for a later block, as long as there is one: three blocks ahead
    lifts = sum(min(count, 3) for count in blocks) if run.case.numbers.lift_bits else 0
    # the residuals of all blocks but the last one of an iteration have a message of their own
    several = sum(count > 1 for count in blocks)
    turns = {
        ("a", MaskedTables): visits + lifts,
        ("b", LookupRequest): visits + lifts + several + len(run.chunks),
        ("b", MaskedResidual): visits * len(further),
    }
    turns |= {(name, MaskedSum): visits for name in further}
    expected = {key: count for key, count in turns.items() if count}
    assert {
        key: count for key, count in sent.items() if key[1] in (MaskedTables, LookupRequest, MaskedResidual, MaskedSum)
    } == expected


def test_one_query_of_sums_and_one_reply_about_steps_a_batch(run):
    """SEAL does not add up products, so it replies about the steps of each block. Sums have a reply for each block."""
    case, sent = run.case, defaultdict(int)
    for event in run.events:
        if event.direction == "send" and isinstance(event.message, ProductQuery | ProductReply):
            sent[type(event.message)] += bool(event.message.ciphertext)
    blocks = [case.terms.blocks[block] for chunk in run.chunks for k in set(chunk) for block in case.terms.blocks_of(k)]
    batches = sum(len(set(chunk)) for chunk in run.chunks)
    pairs = 2 * (len(case.names) - 1)  # pairs of a share holder and another party
    replies = len(blocks)
    if isinstance(case.scheme, KernelShares):
        replies = batches + sum(block.rows < 30 for block in blocks)
    # psi is encrypted once for all other parties, r once for each
    assert sent == {ProductQuery: pairs * (len(blocks) + batches), ProductReply: pairs * (len(blocks) + replies)}


def test_delayed_transfers_follow_the_first_requests(run):
    """Both holders generate the transfers of an iteration in the one before, while the tables are on the line."""
    sent = [e.message for e in run.events if (e.direction, e.me, e.peer, e.subchannel) == ("send", "b", "a", "")]
    groups = [number for number, message in enumerate(sent) if isinstance(message, TransferCorrections)]
    assert bool(groups) == run.delays
    requests = [number for number, message in enumerate(sent) if isinstance(message, LookupRequest)]
    during = [number for number in groups if requests[0] < number]
    assert not run.delays or len(during) > 2
    for number in during:
        before = sent[max(item for item in requests if item < number)]
        after = sent[min(item for item in requests if item > number)]
        if before.chunk == after.chunk:  # otherwise these are the transfers of a chunk's first iterations
            assert before.offsets
            assert not before.carries


def test_every_message_is_declared(run):
    roles = dict(zip("abcd", ("active", "partner", "passive", "passive"), strict=True))
    present = [roles[name] for name in run.case.names]
    declared = {
        (d.message, d.sender, d.receiver)
        for d in [*shares.declares(), *offline_phase.declares()]
        if {d.sender, d.receiver} <= set(present) and (d.sender != d.receiver or present.count(d.sender) > 1)
    }
    assert {(type(e.message), roles[e.peer], roles[e.me]) for e in run.events if e.direction == "recv"} == declared


def test_coalitions_are_listed():
    coalitions = shares.coalitions("a", "b", ("b", "c", "d"))
    assert {name: sorted(item) for name, item in coalitions.items()} == {"c": ["a", "b"], "d": ["a", "b"]}


def test_two_of_three_shares_of_weights_are_noise(run):
    """Weights of a third party consist of three shares; the sum of any two is noise."""
    ring, numbers = ShareRing(run.case.numbers.bits), run.case.numbers
    for name in run.case.names[2:]:
        shares_of = [
            run.states[name][-1].own_share[0],
            *(run.states[holder][-1].peer_shares[name][0] for holder in "ab"),
        ]
        theta = numbers.decode_weights(ring.reduce(sum(shares_of)))
        for left_out in range(3):
            from_two = numbers.decode_weights(
                ring.reduce(sum(item for i, item in enumerate(shares_of) if i != left_out))
            )
            assert np.abs(from_two - theta).max() > 1


UNIFORM = 1e-10  # smallest accepted p-value, of about thirty in all


def uniform(octets: bytes) -> float:
    return float(stats.chisquare(np.bincount(np.frombuffer(octets, np.uint8), minlength=256)).pvalue)


def test_what_either_party_receives_in_visits_is_uniform(run):
    octets = run.case.numbers.bits // 8
    assert uniform(b"".join(turn.delta for turn in run.received(LookupRequest))) > UNIFORM
    places = np.frombuffer(b"".join(turn.offsets for turn in run.received(LookupRequest)), np.uint8)
    assert stats.chisquare(np.bincount(places, minlength=64)).pvalue > UNIFORM
    assert uniform(b"".join(table.entries for table in run.received(MaskedTables))) > UNIFORM
    if run.case.numbers.lift_bits:
        assert uniform(b"".join(table.lifts for table in run.received(MaskedTables))) > UNIFORM
        packed = b"".join(turn.carries for turn in run.received(LookupRequest))
        ones, bits = int.from_bytes(packed, "little").bit_count(), sum(len(g) for _, g in run.residuals)
        assert stats.binomtest(ones, bits).pvalue > UNIFORM  # the last bits of a byte may be padding, which is 0
    else:
        assert not any(table.lifts for table in run.received(MaskedTables))
    arrays = [np.concatenate([g.ravel() for _, g in run.seen["b"]]) & ShareRing(run.case.numbers.bits).mask]
    arrays += [np.concatenate([state.own_share.ravel() for state in run.states[name][1:]]) for name in run.case.names]
    for words in arrays:
        assert uniform(words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :octets].tobytes()) > UNIFORM
    for kind, by in ((MaskedSum, "a"), *((MaskedResidual, name) for name in run.case.names[2:])):
        if messages := run.received(kind, by):
            assert uniform(b"".join(message.words for message in messages)) > UNIFORM


def test_b_ranks_no_label_by_what_it_opens(run):
    case = run.case
    votes = np.zeros(len(case.y))
    for (k, start, stop), g in run.seen["b"]:
        votes[case.batches[k][start:stop]] += ShareRing(case.numbers.bits).signed(g)[:, 0].astype(float)
    # 140 rows of one class, 145 of the other: 5 standard errors of .034
    assert 0.33 < roc_auc_score(case.y, votes) < 0.67


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


# --- update rules and steps of one party -------------------------------------------------------------------------

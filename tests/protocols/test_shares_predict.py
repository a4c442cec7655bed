"""Scores on shares. Attacks by unlimited queries succeed without a ledger, and the ledger refuses them."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import securevfl as vfl
from securevfl.base.roles import Roles
from securevfl.crypto.lattice.lattice_shares import LatticeShares
from securevfl.crypto.prg import Prg
from securevfl.crypto.share_ring import ShareRing
from securevfl.data.schedule import subset_sizes
from securevfl.errors import LeakageError, ProtocolError
from securevfl.families.shares.shares_job import trains_on_shares
from securevfl.families.shares.shares_plan import make_plan
from securevfl.models import MODELS
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.party_context import PartyContext
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ROW_REFUSED, ROW_STORED, ScoreLedger
from securevfl.protocols.shares import opened_scores
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.forward_sums import ForwardSumShare
from securevfl.protocols.shares.iteration import SharedState
from securevfl.protocols.shares.opened_scores import (
    RoundedScores,
    RowCommitments,
    ScoringParams,
    ScoringSession,
    ShareStored,
)
from securevfl.protocols.shares.quantizer import Quantizer
from securevfl.protocols.shares.shares_params import SharesParams
from securevfl.protocols.shares.shares_session import SharesSession
from securevfl.protocols.shares.update_rules import Descent
from securevfl.runtime.clock import VirtualClock
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.meter import Meter
from securevfl.runtime.network import Network
from securevfl.runtime.observer import Event, Observer
from securevfl.runtime.party_threads import run_threads
from tests.builders import raises_code

ENCODING = FixedPointEncoding(256, 0.1)
RING = ShareRing(ENCODING.bits)
SCHEME = LatticeShares(ENCODING.bits)
EXACT, HALVES = Quantizer.exact(ENCODING), Quantizer(-1, 7)
FRACTION = 16


class Killed(Exception):
    """Raised in place of the end of a party's process."""


class Open(ScoreLedger):
    """A mutant of the ledger that records nothing and refuses nothing."""

    def __init__(self):
        super().__init__(None)

    def admit(self, question, *_, **__):
        return np.full(len(question.rows), ROW_NEW, np.uint8)

    def record_query(self, question):
        return np.full(len(question.rows), ROW_NEW, np.uint8)


class Model:
    """Weights of the parties a, b (the partner) and further ones, and their shares."""

    def __init__(self, *widths, outputs=1, seed=0, size=0.25):
        self.names = "abcd"[: len(widths)]
        self.widths = dict(zip(self.names, widths, strict=True))
        generator = np.random.default_rng(seed)
        scale = 2.0**ENCODING.f_theta
        self.theta = {name: generator.normal(size=(d, outputs)) * size for name, d in self.widths.items()}
        self.theta = {name: np.rint(theta * scale) / scale for name, theta in self.theta.items()}
        self.terms = SharesParams(ENCODING, (256,), self.widths, "b", Descent(), outputs)
        peer_shares = {name: {} for name in self.names}
        own_shares = {}
        for name, theta in self.theta.items():
            remainder = RING.of((theta * scale).astype(np.int64))
            for holder in "ab":
                if holder != name:
                    peer_shares[holder][name] = RING.uniform(Prg.fresh("shares of a test"), remainder.shape)
                    remainder = RING.reduce(remainder - peer_shares[holder][name])
            own_shares[name] = remainder
        self.states = {
            name: SharedState(20, own_shares[name][None], {other: r[None] for other, r in peer_shares[name].items()})
            for name in self.names
        }

    def ask(
        self, blocks, ids, ledgers=None, model=b"model", to="a", raw=None, levels=EXACT, most=float("inf"), cut=None,
        rounded=None, barred=(),
    ):  # fmt: skip
        """Return the scores of each block at the requesting party.

        cut: the kind of message at whose arrival a party's process ends.
        barred: for each block, the mask of the rows about which a party discloses nothing, by name of the party.
        """
        self.events: list[Event] = []
        self.entries: list[DisclosureRecord] = []
        lock = threading.Lock()
        ledgers = ledgers or {name: Open() for name in self.names}

        def role(name):
            def play(channel):
                context = PartyContext(
                    channel, Roles.labelled("a", self.names[1:]), Meter(channel.clock, channel.counters)
                )
                asking = ScoringParams(model, ledgers.get(name) or Open(), levels, to, most, rounded)
                met, rows = SharesSession(context, "b", SCHEME, ENCODING), max(len(block["a"]) for block in blocks)
                tops = None if levels.step == EXACT.step else lambda: met.top_transfers
                side = ScoringSession(
                    met.products, self.terms, self.states[name], asking, top_transfers=tops, rows=rows
                )
                masks = [barring.get(name) for barring in barred] or [None] * len(blocks)
                requests = [
                    RowsToScore(ids[i][: len(block[name])], (raw or block)[name], masks[i])
                    for i, block in enumerate(blocks)
                ]
                return [side.block(i, block[name], requests[i]).f for i, block in enumerate(blocks)]

            return play

        seen = self

        class Watch(Observer):
            def __call__(self, event):
                with lock:
                    seen.events.append(event)
                if event.direction == "recv" and type(event.message) is cut:
                    raise Killed

            def note(self, me, fact):
                if isinstance(fact, DisclosureRecord):
                    with lock:
                        seen.entries.append(fact)

        results = run_threads(
            {name: role(name) for name in self.names}, lambda: VirtualClock(Network()), timeout=60, observe=Watch()
        )
        assert all(block is None for name in self.names if name != to for block in results[name])
        return results[to]

    def columns(self, rows, seed=1):
        generator = np.random.default_rng(seed)
        return {name: np.rint(generator.normal(size=(rows, d)) * 256) / 256 for name, d in self.widths.items()}

    def exact(self, block):
        return sum(block[name] @ self.theta[name] for name in self.names)


def names(rows, start=0):
    return [f"row {start + i}".encode() for i in range(rows)]


def admit(ledger, model, peer, ids, columns=40, **keys):
    """Query rows with random columns and commitments derived from the ids; return the state of each row."""
    question = ledger.query(model, peer, ids, b"".join(name.ljust(COMMITMENT_BYTES) for name in ids))
    return ledger.admit(question, np.random.default_rng().normal(size=(len(ids), columns)), **keys)


@pytest.mark.parametrize(("widths", "outputs"), [((5, 7), 1), ((5, 7, 3), 1), ((4, 2, 3, 5), 3)])
def test_scores_are_those_of_the_weights(widths, outputs):
    model = Model(*widths, outputs=outputs)
    blocks = [model.columns(rows, rows) for rows in (300, 7, 1)]
    for scores, block in zip(model.ask(blocks, [names(len(b["a"])) for b in blocks]), blocks, strict=True):
        assert scores.shape == (len(block["a"]), outputs)
        assert np.abs(scores - model.exact(block)).max() <= 1.5 * 2.0**-FRACTION


@pytest.mark.parametrize(("widths", "to"), [((5, 7), "b"), ((5, 7, 3), "b"), ((5, 7, 3), "c"), ((4, 2, 3, 5), "d")])
def test_another_party_than_the_active_one_may_ask(widths, to):
    model = Model(*widths)
    block = model.columns(300)
    (scores,) = model.ask([block], [names(300)], to=to)
    assert np.abs(scores - model.exact(block)).max() <= 1.5 * 2.0**-FRACTION
    assert {e.me for e in model.events if e.direction == "recv" and isinstance(e.message, RoundedScores)} == {to}


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("to", ["a", "b", "c"])
def test_every_score_of_every_row_and_output_is_entered(outputs, to):
    """The scores are in several blocks of different lengths."""
    model, rows = Model(2, 3, 2, outputs=outputs), (7, 4)
    blocks = [model.columns(n, seed=n) for n in rows]
    scores = model.ask(blocks, [names(7), names(4, 50)], to=to, levels=HALVES)
    assert [block.shape for block in scores] == [(n, outputs) for n in rows]
    recorded = [(entry.numbers, entry.bits) for entry in model.entries if (entry.kind, entry.to) == ("scores", to)]
    assert recorded == [(n * outputs, HALVES.bits) for n in rows]


@pytest.mark.parametrize(("to", "loses"), [("a", "a"), ("c", "a"), ("b", "b")])
def test_a_row_with_a_lost_share_gets_no_score(to, loses, tmp_path):
    """Neither party makes a lost share again, because it would be rounded differently."""
    model, ledgers = Model(2, 3, 2), {name: ScoreLedger(tmp_path / name) for name in "abc"}
    for ledger in ledgers.values():
        ledger.record_model(b"model", 20, names(5, 1000))
    block, ids = model.columns(6), names(6)
    (first,) = model.ask([block], [ids], ledgers, to=to, levels=HALVES)
    lost = ledgers[loses]._digests(ids[2:3])[0]
    with ledgers[loses]._file.changing() as tables:
        tables.execute("UPDATE scored SET part = NULL WHERE row = ?", (lost,))
    (again,) = model.ask([block], [ids], ledgers, to=to, levels=HALVES)
    assert np.isnan(again[2]).all()
    np.testing.assert_array_equal(np.delete(again, 2, axis=0), np.delete(first, 2, axis=0))


@pytest.mark.parametrize("to", ["a", "b", "c"])
def test_a_row_that_one_party_bars_gets_no_score(to):
    """Each other party bars a new row, and later a row whose score is stored; then no party bars the new row."""
    model, ledgers = Model(2, 3, 2), {name: ScoreLedger(None) for name in "abc"}
    for ledger in ledgers.values():
        ledger.record_model(b"model", 20, [])
    block, ids = model.columns(6), names(6)
    others = [name for name in "abc" if name != to]
    new, stored = ({name: np.arange(6) == row + start for row, name in enumerate(others)} for start in (1, 3))
    first, again = model.ask([block] * 2, [ids] * 2, ledgers, to=to, barred=[new, stored])
    assert np.isnan(first[:, 0]).tolist() == [False, True, True, False, False, False]
    assert np.isnan(again[:, 0]).tolist() == [False, False, False, True, True, False]
    np.testing.assert_array_equal(first[[0, 5]], again[[0, 5]])
    assert [entry.numbers for entry in model.entries if (entry.kind, entry.to) == ("scores", to)] == [4, 4]


def test_a_row_beyond_the_levels_is_not_stored(tmp_path):
    levels, ledgers = Quantizer(0, 6), {name: ScoreLedger(tmp_path / name) for name in "ab"}
    for ledger in ledgers.values():
        ledger.record_model(b"model", 20, names(5, 1000))
    model = Model(1, 1, outputs=2, seed=4, size=12.5)
    block = {"a": np.array([[0.5], [5.0]]), "b": np.zeros((2, 1))}
    far = np.abs(model.exact(block)) > levels.reach
    assert far.tolist() == [[False, False], [True, False]]
    entries = np.diff(ENCODING.top_knots).max()  # a sum is read as its table entry or as the next one
    assert (np.abs(model.exact(block))[~far] < levels.max_reported - 2 * entries).all()
    (scores,) = model.ask([block], [names(2)], ledgers, levels=levels)
    np.testing.assert_array_equal(np.isinf(scores), far)
    question = ledgers["a"].query(b"model", "", names(2), ledgers["a"].commitments(names(2), block["a"]))
    assert [item is None for item in ledgers["a"].stored(question, of="score")] == [False, True]


def test_each_party_asks_its_own_ledger_about_whoever_asks():
    model, ledgers = Model(5, 7, 3), {name: ScoreLedger(None) for name in "abc"}
    for ledger in ledgers.values():
        ledger.record_model(b"model", 20, [])
    block = model.columns(3)
    first = model.ask([block], [names(3)], ledgers, to="b")[0]
    model.ask([block], [names(3)], ledgers, to="a")  # other answers for another peer
    again = model.ask([{name: X[1:] for name, X in block.items()}], [names(2, 1)], ledgers, to="b")[0]
    np.testing.assert_array_equal(again, first[1:])
    assert np.isnan(model.ask([model.columns(3, 2)], [names(3)], ledgers, to="b")[0]).all()  # with other columns


@pytest.mark.parametrize("asker", ["a", "b", "c"])
def test_every_message_is_declared(asker):
    model = Model(3, 4, 5, 2) if asker == "c" else Model(3, 4, 5)
    model.ask([model.columns(5)], [names(5)], to=asker, levels=HALVES)
    roles = {"a": "active", "b": "partner", "c": "passive", "d": "passive"}
    seen = {(type(e.message), roles[e.peer], roles[e.me]) for e in model.events if e.direction == "recv"}
    declarations = opened_scores.declares(roles[asker])
    between = {(message, sender, receiver) for message, sender, receiver in seen if sender != receiver}
    assert between == {(d.message, d.sender, d.receiver) for d in declarations if d.sender != d.receiver}
    assert seen <= {(d.message, d.sender, d.receiver) for d in declarations}


@pytest.mark.parametrize(("widths", "to", "outputs"), [((2, 2), "a", 1), ((2, 2), "b", 1), ((2, 3, 2), "c", 3)])
@pytest.mark.parametrize("bits", [3, 4, 6, 7])
def test_a_sum_beyond_the_levels_is_reported_as_beyond(widths, to, outputs, bits):
    """With sums up to 230 in absolute value and levels up to 32, every score is a level next to its sum or `beyond`."""
    largest = np.abs(sum(theta.sum(axis=0) for theta in Model(*widths, outputs=outputs).theta.values())).max()
    model, levels = Model(*widths, outputs=outputs, size=0.25 * 230 / (8 * largest)), Quantizer(6 - bits, bits)
    x = np.rint(np.linspace(-8, 8, 321) * 256)[:, None] / 256
    block = {name: x * np.ones(d) for name, d in model.widths.items()}
    (scores,) = model.ask([block], [names(len(x))], to=to, levels=levels)
    exact, beyond = model.exact(block), np.isinf(scores)
    assert np.abs(exact).max() > 229
    far = np.abs(exact) >= levels.max_reported
    assert beyond[far].all()
    assert (np.abs(scores - exact)[~beyond] <= 1.5 * levels.size).all()
    assert (np.abs(exact)[beyond] > levels.max_reported - max(4, 1.5 * levels.size)).all()


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("rows", [50, 20_000, 199_999, 2**28])
def test_levels_of_every_model_have_room_in_its_ring(name, rows):
    """The highest bits cover four times the range of levels for any number of rows in a batch.

    Levels cover the range of the table.
    """
    try:
        job = vfl.Job(model=name)
    except vfl.errors.ConfigError:
        pytest.skip("a model that needs more than its name")
    if not trains_on_shares(job):
        pytest.skip("a model that does not train on shares")
    numbers, options = make_plan(job, rows=subset_sizes(rows)[-1], batches=1, parties=2).numbers, job.protocol.shares
    requested = options.score_quantizer(job.model.loss.spacing)
    levels, ring = requested.within(numbers), 2.0 ** (numbers.integer_bits - 1)
    assert numbers.has_headroom
    assert levels == requested
    assert levels.reach <= ring / 4
    assert numbers.integer_bits <= numbers.bits - numbers.f_x - numbers.f_theta
    assert numbers.reach < max(levels.reach, 16)
    near = np.abs(numbers.top_knots) < levels.max_reported
    moves = levels.overflow_shifts(numbers.top_knots).astype(np.int64)
    assert not moves[near].any()
    reported = (numbers.top_knots + moves * levels.size + levels.reach) % (2 * levels.reach) - levels.reach
    assert (np.abs(reported)[~near] > levels.reach - levels.size).all()


def test_what_is_opened_is_rounded_at_random_and_says_no_more():
    """Each opened number is the sum rounded up or down to 16 bits, with the probability given by the lower bits."""
    model = Model(2, 2)
    block = {"a": np.ones((4000, 2)), "b": np.ones((4000, 2))}
    exact = float(model.exact(block)[0, 0]) * 2**FRACTION
    (scores,) = model.ask([block], [names(4000)])
    levels = scores[:, 0] * 2**FRACTION
    sent = next(event.message for event in model.events if type(event.message) is RoundedScores)
    octets = len(sent.words) // 4000
    assert octets < RING.octets
    assert np.abs(levels - exact).max() < 1.5
    assert abs(levels.mean() - exact) < 0.05


@pytest.mark.parametrize(("widths", "to"), [((2, 2), "a"), ((2, 2, 2), "c")])
def test_the_rounding_party_may_send_fewer_bits(widths, to):
    """Every score differs from its sum by less than a step, and is unbiased.

    By Hoeffding's bound, the mean of 4,000 unbiased errors of at most two steps exceeds 0.15 steps once in 1e9 runs.
    """
    model, coarse = Model(*widths), Quantizer(HALVES.step + 3, HALVES.bits - 3)
    block = {name: np.ones((4000, 2)) for name in model.names}
    ledgers = {name: ScoreLedger(None) for name in model.names}
    for ledger in ledgers.values():
        ledger.record_model(b"model", 20, [])
    raw = {name: np.arange(160_000.0).reshape(4000, 40) for name in model.names}
    (scores,) = model.ask([block], [names(4000)], ledgers, to=to, levels=HALVES, rounded=coarse, raw=raw)
    sent = next(event.message for event in model.events if type(event.message) is RoundedScores)
    assert sent.finer == 3
    assert len(sent.words) == ShareRing(coarse.bits).size(4000)
    error = (scores - model.exact(block)) / coarse.size
    assert np.abs(error).max() <= 1 + 1 / 8
    assert abs(error.mean()) < 0.15
    assert {scored for scored, _ in ledgers["b"].disclosed_bits(names(4000))} == ({coarse.bits} if to != "b" else {0})


def test_parts_of_further_parties_are_uniform():
    model = Model(2, 2, 2)
    model.ask([{name: np.ones((6000, 2)) for name in "abc"}], [names(6000)])
    (part,) = [e.message for e in model.events if type(e.message) is ForwardSumShare and e.direction == "recv"]
    counts = np.bincount(np.frombuffer(part.words, np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 450  # 255 degrees of freedom: exceeded once in 1e12


def test_each_score_has_a_dither_of_its_own():
    """A share is rounded up with a probability equal to its fraction, independently for outputs and rows.

    So sometimes only the share with the smaller fraction is rounded up, which is impossible if both share one dither.
    """
    scored_shares = {}

    moved = ScoringSession._move_overflow

    def watched(self, *arguments):
        scored_shares[self._context.me] = result = moved(self, *arguments)
        return result

    model = Model(4, 4, outputs=2)
    with mock.patch.object(ScoringSession, "_move_overflow", watched):
        model.ask([model.columns(2000)], [names(2000)], levels=HALVES)
    sent = next(event.message for event in model.events if type(event.message) is RoundedScores)
    rounded = ShareRing(HALVES.bits).unpack(sent.words, (2000, 2))
    h, s = RING.reduce(scored_shares["b"]), 2.0 ** HALVES.shift(ENCODING)
    part = (h % np.uint64(s)) / s
    up = (rounded - HALVES.truncate(ENCODING, h)) % np.uint64(2**HALVES.bits) == 1
    # 400 with a standard deviation of 19: 6.3 standard errors
    assert ((part > 0.4) & (part < 0.6) & up).sum() == pytest.approx(0.1 * part.size, rel=0.3)
    for one, other in (np.s_[:, 0], np.s_[:, 1]), (np.s_[1:, 0], np.s_[:-1, 0]):
        turned = (part[one] < part[other]) & up[one] & ~up[other]
        assert turned.mean() == pytest.approx(1 / 24, rel=0.75)  # seven standard errors of .0045


def test_a_level_has_no_bits_but_its_own():
    h = RING.uniform(Prg.fresh("shares of a test"), 10_000)  # each of 128 levels is in it
    assert HALVES.truncate(ENCODING, h).max() == 2**HALVES.bits - 1


def test_commitments_of_another_number_end_it_with_a_word():
    model, short = Model(3, 4), ScoreLedger(None)
    short.commitments = lambda *arguments: ScoreLedger.commitments(short, *arguments)[:-1]
    with raises_code(ProtocolError, "SVFL-PROTOCOL-SIZE"):
        model.ask([model.columns(5)], [names(5)], {"a": short, "b": Open()})


def test_unlimited_queries_reveal_weights_and_sums(tmp_path: Path):
    """d_A + 1 requests about one row of B, with columns of A's choice, reveal A's weights;
    then honest ones give X_B theta_B.
    """
    model = Model(5, 7)
    chosen = np.vstack([np.zeros((1, 5)), np.eye(5)])
    one = model.columns(1, 3)["b"]
    questions = [{"a": row[None], "b": one} for row in chosen]
    answers = [scores[0, 0] for scores in model.ask(questions, [names(1)] * 6)]
    theta = np.array(answers[1:]) - answers[0]
    np.testing.assert_allclose(theta, model.theta["a"][:, 0], atol=2.0 ** (2 - FRACTION))
    block = model.columns(50, 4)
    sums = model.ask([block], [names(50)])[0][:, 0] - block["a"] @ theta
    np.testing.assert_allclose(sums, (block["b"] @ model.theta["b"])[:, 0], atol=1e-3)

    ledger = ScoreLedger(tmp_path / "scores")
    ledger.record_model(b"model", 20, names(100, 1000))
    first, *others = model.ask(questions, [names(1)] * 6, {"b": ledger})
    assert not np.isnan(first).any()
    assert np.isnan(others).all()


@pytest.mark.parametrize("to", ["a", "c"])
def test_a_query_repeated_after_a_crash_gets_the_same_scores(to: str, tmp_path: Path):
    """A party's process ends at each kind of message, and each session has other shares:
    a score never has two values.
    """
    opened_words = set()
    for cut in (RowCommitments, ForwardSumShare, ShareStored, RoundedScores, None, None):
        model = Model(5, 7, 3)  # with fresh shares
        ledgers = {name: ScoreLedger(tmp_path / name) for name in "abc"}
        for ledger in ledgers.values():
            if not ledger.knows_model(b"model"):
                ledger.record_model(b"model", 20, names(100, 1000))
        block = model.columns(40, 3)
        ended = nullcontext() if cut is None else pytest.raises(Killed)
        with ended:
            scores = model.ask([block], [names(40)], ledgers, to=to, levels=HALVES, cut=cut)[0]
        opened_words |= {e.message.words for e in model.events if isinstance(e.message, RoundedScores)}
    assert len(opened_words) == 1
    assert not any(isinstance(e.message, ForwardSumShare) for e in model.events)
    assert np.abs(scores - model.exact(block)).max() < 0.8


def test_scores_by_many_models_reveal_the_columns(tmp_path: Path):
    """They reveal B's columns up to an invertible matrix: these are in the span of the scores and A's own columns."""
    models = [Model(5, 8, seed=seed) for seed in range(10)]
    block = models[0].columns(60, 5)
    scores = [model.ask([block], [names(60)])[0] for model in models]
    known = np.hstack([*scores, block["a"]])
    residual = block["b"] - known @ np.linalg.lstsq(known, block["b"], rcond=None)[0]
    assert residual.var() < 1e-4 * block["b"].var()

    ledger = ScoreLedger(tmp_path / "scores")
    answered = []
    for number, model in enumerate(models):
        name = f"model {number}".encode()
        ledger.record_model(name, 20, names(100, 1000))
        (scores,) = model.ask([block], [names(60)], {"b": ledger}, name)
        if not np.isnan(scores).any():
            answered.append(scores)
    assert len(answered) == 1  # fewer than 8 / 4
    known = np.hstack([*answered, block["a"]])
    residual = block["b"] - known @ np.linalg.lstsq(known, block["b"], rcond=None)[0]
    assert residual.var() > 0.5 * block["b"].var()


def test_refused_rows_are_not_recorded(tmp_path: Path):
    path = tmp_path / "scores"
    ledger = ScoreLedger(path)
    with raises_code(LeakageError, "SVFL-MODEL-NOT-TRAINED"):
        admit(ledger, b"m", "bank", names(3))
    ledger.record_model(b"m", 9, names(3))
    with raises_code(LeakageError, "SVFL-LIMIT-REACHED"):
        admit(ledger, b"m", "bank", names(3, 10))
    ledger.record_model(b"m", 10, names(3))
    assert admit(ledger, b"m", "bank", names(4, 2)).tolist() == [ROW_REFUSED, ROW_NEW, ROW_NEW, ROW_NEW]
    with raises_code(ProtocolError, "SVFL-PROTOCOL-REPEATED"):
        admit(ledger, b"m", "bank", [b"x", b"x"])
    assert (admit(ledger, b"m", "bank", names(4, 3)) == ROW_NEW).all()
    question = ledger.query(b"m", "bank", names(4, 3), b"".join(name.ljust(COMMITMENT_BYTES) for name in names(4, 3)))
    ledger.store(question, [b"part"] * 4)
    assert (admit(ledger, b"m", "bank", names(5, 3)) == [ROW_STORED] * 4 + [ROW_NEW]).all()


def test_blocks_of_other_sizes_end_the_session_with_a_word():
    model = Model(3, 4)
    block = model.columns(6)
    block["b"] = block["b"][:5]
    with raises_code(ProtocolError, "SVFL-PROTOCOL-SIZE"):
        model.ask([block], [names(6)])

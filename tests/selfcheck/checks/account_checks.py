"""Checks of joint statistics and scores of new rows: their disclosures, their records and the agreements.

Kinds of findings, in addition to those of `transcripts`:

rounding    a sum over rows is disclosed too precisely
groups      a count of a group with too few rows
count       a disclosure that is not recorded, or recorded as less
stop        a training that does not end where its losses require it, or returns another model than a complete one
consent     a sheet that is accepted without its owner's agreement, or a training that starts or does not start against
            it
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from builders import parties_of
from numpy.typing import NDArray

from securevfl.audit.transcript_checks import Outcome
from securevfl.base.arrays import Floats
from securevfl.base.roles import ACTIVE, PARTNER, Roles
from securevfl.consent import statistics_consent
from securevfl.consent.agreed_sheets import AgreedSheets
from securevfl.consent.consent_sheet import ConsentSheet
from securevfl.credit import correlate, fairness_by_group
from securevfl.data import datasets
from securevfl.data.party import Party
from securevfl.disclosure.information_content import code_bits
from securevfl.disclosure.ledger import MAX_EARLY_ABORTS, DisclosureLedger
from securevfl.errors import LeakageError
from securevfl.families.run_facts import pooled_run_facts
from securevfl.families.shares.shares_job import trains_on_shares
from securevfl.families.shares.shares_outputs import LOSS_SUMS
from securevfl.families.shares.shares_participant import SharesParticipant
from securevfl.families.shares.shares_plan import make_plan
from securevfl.job import Job
from securevfl.models.linear import Logistic
from securevfl.optim.block_descent import BlockDescent
from securevfl.optim.fedbcd import FedBCD
from securevfl.options import Target
from securevfl.organisations import join, peer_session
from securevfl.protocols.handshake import StopDecision
from securevfl.protocols.joint_prediction import RowsToScore
from securevfl.protocols.party_context import LocalResources, PartyContext
from securevfl.protocols.permits import STOP_DECISION_BITS
from securevfl.protocols.score_ledger.row_digests import COMMITMENT_BYTES
from securevfl.protocols.score_ledger.row_ledger import ROW_NEW, ScoreLedger
from securevfl.protocols.shares import column_correlations, group_counts
from securevfl.protocols.shares.column_correlations import CORRELATION_LEVELS, RoundedProducts
from securevfl.protocols.shares.fixed_point import FixedPointEncoding
from securevfl.protocols.shares.group_counts import OUTCOME_CELLS, GroupCounts
from securevfl.protocols.shares.opened_loss import LossSum
from securevfl.protocols.shares.opened_scores import ScoringSession
from securevfl.protocols.shares.shares_options import Shares
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.disclosure_gate import DisclosureRecord
from securevfl.runtime.meter import Meter
from securevfl.runtime.observer import Event, Observer
from securevfl.runtime.party_threads import run_threads
from securevfl.training.checkpoint import Checkpoints
from securevfl.training.simulate import simulate
from securevfl.transport.peers import Peers

_N = 1000


class _Looked(Observer):
    """Bits that a party has disclosed in words, and bits that its gate has recorded."""

    def __init__(self, me: str) -> None:
        self.me, self.sent, self.entered = me, 0, 0

    def __call__(self, event: Event) -> None:
        if (event.me, event.direction) == (self.me, "send"):
            message = event.message
            self.sent += 8 * len(message.words) if isinstance(message, GroupCounts | RoundedProducts) else 0

    def note(self, me: str, fact: object) -> None:
        if me == self.me and isinstance(fact, DisclosureRecord) and fact.kind == "columns":
            self.entered += fact.numbers * fact.bits


def _contexts(bank: Callable[[PartyContext], Any], shop: Callable[[PartyContext], Any]) -> Any:
    """Run both sides of a protocol for two parties, and return the bank's result."""
    roles = Roles.of((("bank", ACTIVE), ("shop", PARTNER)))

    def side(role: Callable[[PartyContext], Any], channel: Channel) -> Any:
        return role(PartyContext(channel, roles, Meter(channel.clock, channel.counters), subchannel="look"))

    return run_threads({"bank": partial(side, bank), "shop": partial(side, shop)}, WallClock)["bank"]


def _off(outcome: Outcome, errors: Floats) -> None:
    """Find errors of 40 numbers or more, in steps, that all lie on one side: those of a fair rounding do in one of
    2^39 cases."""
    if (errors < 1e-2).all() or (errors > -1e-2).all():
        outcome.add("rounding", "bank", "sums over rows are cut, or exact: they are not rounded up or down at random")


def _looks(outcome: Outcome, look: Callable[[DisclosureLedger, Observer], object], bits: float) -> None:
    """Request statistics twice from a shop with this information content: disclosures are recorded at its gate and in
    its ledger, each time, and in bits."""
    with tempfile.TemporaryDirectory() as folder:
        ledger, seen = DisclosureLedger(Path(folder) / "shop", "shop"), _Looked("shop")
        for _ in range(2):
            look(ledger, seen)
        entries = ledger.read().entries
    if not 0 <= seen.sent - seen.entered < 16:
        outcome.add("count", "shop", f"{seen.sent} bits were disclosed, {seen.entered} were recorded at the gate")
    share = seen.sent / 2 / bits
    if len(entries) != 2 or any(entry.disclosure.share < share - 8 / bits for entry in entries):
        outcome.add("count", "shop", "two looks are not two in the ledger, each with its share of the bits")


def groups() -> Outcome:
    """Check counts by group: rounded at random, of groups of at least 100 rows, and recorded with all of their bits."""
    outcome, names = Outcome(), [f"g{k}" for k in range(10)]
    marks = np.eye(10, dtype=np.int64)[np.arange(_N) % 10]
    cells = np.eye(OUTCOME_CELLS, dtype=np.int64)[np.arange(_N) % 7 % 4]
    _, counts = _contexts(
        lambda context: group_counts.receive_group_counts(context, cells, 10),
        lambda context: group_counts.send_group_counts(context, marks, names),
    )
    _off(outcome, (counts - marks.T @ cells) / group_counts.COUNT_STEP)
    merge_groups = fairness_by_group.merge_small_groups
    for sizes in ((300, 200, 99), (300, 120, 1), (300, 200, 60, 50)):
        group_sizes: NDArray[np.int64] = merge_groups(np.repeat(np.arange(len(sizes)), sizes))[1].sum(axis=0)
        if (group_sizes < 100).any():
            outcome.add("groups", "shop", f"a group of {group_sizes.min()} rows is disclosed")
    bank, shop = parties_of([*np.random.default_rng(0).normal(size=(2, _N, 3))], None, ids=range(_N))
    two = np.eye(2, dtype=np.int64)[np.arange(_N) % 2]

    def look(ledger: DisclosureLedger, seen: Observer) -> None:
        sides: dict[str, Callable[[Channel], Any]] = {
            "bank": partial(fairness_by_group._request, bank, cells, peer="shop"),
            "shop": partial(fairness_by_group._provide, shop, ["a", "b"], two, ledger, None, peer="bank"),
        }
        run_threads(sides, WallClock, observe=seen)

    with mock.patch.object(statistics_consent, "check_statistics", return_value=None):
        _looks(outcome, look, _N)
    try:  # where each look is 2.8% of the bits, a second is one too many
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                look(DisclosureLedger(Path(folder) / "shop", "shop"), _Looked("shop"))
        outcome.add("count", "shop", "statistics disclose more bits of the groups than permitted")
    except LeakageError:
        pass
    return outcome


def correlations() -> Outcome:
    """Check that correlations are rounded at random, and that the ledger records each request separately."""
    outcome, tables = Outcome(), parties_of([*np.random.default_rng(0).normal(size=(2, _N, 3))], None, ids=range(_N))
    draw = np.random.default_rng(1)
    X, Y = (draw.normal(size=(_N, 7)) for _ in range(2))
    (R,) = _contexts(
        lambda context: column_correlations.rounded_correlations(context, [X], [7]),
        lambda context: column_correlations.rounded_correlations(context, [Y], [7]),
    )
    _off(outcome, (R - X.T @ Y / _N) * CORRELATION_LEVELS)

    def look(ledger: DisclosureLedger, seen: Observer) -> None:
        correlate.correlate(tables, ledgers={"shop": ledger}, observe=seen)

    _looks(outcome, look, _N * 3 * 5.1)
    return outcome


def consent() -> Outcome:
    """Check that a consent sheet is accepted by its digest, or without one if it was agreed
    to before, and never by another.
    """
    outcome = Outcome()
    one, other = ConsentSheet("one sheet"), ConsentSheet("another sheet")
    with tempfile.TemporaryDirectory() as folder:
        agreed = AgreedSheets(DisclosureLedger(Path(folder) / "shop", "shop"))
        accepted = [agreed.accepts(one, None), agreed.accepts(one, other.digest), agreed.accepts(one, one.digest)]
        accepted += [agreed.accepts(one, None), agreed.accepts(one, other.digest), agreed.accepts(other, None)]
    if accepted != [False, False, True, True, False, False]:
        outcome.add("consent", "shop", "a sheet passes, or does not, contrary to its owner's decision")
    return outcome


def again() -> Outcome:
    """Check that a finished training does not start again without its owner's request."""
    outcome, sessions = Outcome(), list[tuple[bool, Any]]()
    job = Job(model=Logistic(), optimizer=FedBCD(lr=0.1), batch_size=60, epochs=1, accepts=("columns",))
    parties = [party.take(np.arange(120, dtype=np.intp)) for party in datasets.breast_cancer(parties=2)]
    part = simulate(job, parties, workers=1).parts["shop"]
    peers = Peers(active="bank", passives=("shop",), address={"bank": "localhost:1", "shop": "localhost:2"})

    def run_session(*arguments: Any, stored_result: Callable[[], Any], **_: Any) -> Any:
        stored = stored_result()
        sessions.append((stored is not None, arguments[3].args[0].keywords["again"]))
        return part if stored is None else stored

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(join, "run_session", run_session):
        save = Path(folder) / "shop.model.json"
        part.save(save)
        for retrain in (False, True):
            states = Checkpoints(Path(folder) / "states", "shop")
            ledger = DisclosureLedger(Path(folder) / "ledger", "shop")
            join.join(job, parties[1], peers, checkpoints=states, save=save, ledger=ledger, workers=1, retrain=retrain)
    if sessions != [(True, False), (False, True)]:
        outcome.add("consent", "shop", "a finished training starts again, or does not, contrary to its owner's request")
    return outcome


class _Kept(ScoreLedger):
    """A score ledger that records the bits of a row that it was asked to admit."""

    bits = 0.0

    def admit(self, query: Any, X: Floats, *, bits: float = 0, **keys: Any) -> Any:
        """Note the bits and refuse nothing."""
        self.bits = bits
        return np.full(len(query.rows), ROW_NEW, np.uint8)


def _scored(c: int, information_bits: float, codes: int) -> tuple[ScoringSession, _Kept]:
    """Return the shop's scoring session for a model with c outputs, and the shop's ledger.

    Args:
        c: number of outputs.
        information_bits: information content of the shop's six columns of a row.
        codes: number of reason codes for each row.
    """
    roles = Roles.of((("bank", ACTIVE), ("shop", PARTNER)))
    ledger, options = _Kept(None), Shares(open_weights=("shop",))
    numbers = FixedPointEncoding(64, 0.5)
    context = SimpleNamespace(
        me="shop",
        active="bank",
        outputs=c,
        roles=roles,
        parties=("bank", "shop"),
        resources=LocalResources(),
        channel=SimpleNamespace(permit=lambda record: None),
    )
    committed = SimpleNamespace(rows=bytes(COMMITMENT_BYTES), states=bytes([ROW_NEW]))
    products = SimpleNamespace(context=context, others=("bank",), recv=lambda *_: committed, send=lambda *_, **__: None)
    player: Any = SimpleNamespace(
        _state=SimpleNamespace(iterations=20),
        _context=context,
        _options=options,
        _job=SimpleNamespace(
            loss=Logistic().loss, accepts=(), reason_codes=codes, protocol=SimpleNamespace(shares=options)
        ),
        facts=SimpleNamespace(plan=SimpleNamespace(numbers=numbers), information_bits=information_bits),
        params=SimpleNamespace(partner="shop", encoding=numbers, outputs=c, columns={"shop": 6}),
        session=SimpleNamespace(products=products, top_transfers=None),
        _record_model=lambda: b"model",
        ledger=ledger,
        max_bits_per_row=information_bits / 4,
        _max_pair_bits=None,
        _requester="bank",
    )
    return SharesParticipant._begin_scoring(player, 1), ledger


def scores() -> Outcome:
    """Check that scores of a row have at most the remaining bits of its columns, over all
    outputs, and that all are recorded.
    """
    outcome = Outcome()
    for c, information_bits, codes in ((1, 400.0, 0), (1, 16.0, 0), (3, 48.0, 0), (1, 28.0, 1)):
        scoring, ledger = _scored(c, information_bits, codes)
        scoring._decide(RowsToScore([b"1"], np.zeros((1, 6))), ledger, "")
        bits = scoring._quantizer.bits
        most = information_bits / 4 - code_bits(6, codes)
        if bits * c > most:
            outcome.add("limits", "shop", f"{c} scores of {bits} bits a row are disclosed, {most:.1f} are permitted")
        if ledger.bits != bits * c:
            outcome.add("count", "shop", f"{c} scores of {bits} bits are noted as {ledger.bits} bits")
        below = scoring._scoring.quantizer.bits - bits
        h = np.arange(0, 2**40, 2**20 + 1, dtype=np.uint64)[:, None]
        scoring._sums = SimpleNamespace(block=lambda *_, h=h: h)  # type: ignore[assignment]
        shares = scoring._compute(0, np.zeros((len(h), 6)), None)
        if shares is None or (shares % 2**below).any():
            outcome.add("limits", "shop", "scores are finer than the recorded number of bits")
    return outcome


def tries() -> Outcome:
    """Check that an abort that may depend on data is recorded, and that aborts are limited over all peers together."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder:
        ledger = DisclosureLedger(Path(folder) / "ledger", "shop")
        for number in range(MAX_EARLY_ABORTS):
            if _refused(ledger):
                outcome.add("count", "shop", f"the limit holds after {number} ends already")
                break
            error = peer_session._record_abort(LeakageError("no"), ledger, [("bank", "telco")[number % 2]])
            if not isinstance(error, LeakageError):
                outcome.add("count", "shop", "a recorded abort is reported as another error")
        if len(_refused(ledger)) < 3:
            outcome.add("count", "shop", "ends with several peers are not limited together")
    return outcome


def _refused(ledger: DisclosureLedger) -> list[list[str]]:
    """Return the peers with which no further session may begin."""
    refused = []
    for peers in (["bank"], ["telco"], ["bank", "telco"]):
        try:
            ledger.check_early_aborts(peers)
        except LeakageError:
            refused.append(peers)
    return refused


def verdicts() -> Outcome:
    """Check that the party with labels records each decision of early stopping as bits of labels."""
    outcome, rng = Outcome(), np.random.default_rng(0)
    ids = np.arange(240)
    parties = [
        Party("bank", rng.normal(size=(240, 2)), rng.integers(0, 2, 240), ids=ids),
        Party("shop", rng.normal(size=(240, 9)), ids=ids),
    ]
    job = Job(
        model=Logistic(),
        optimizer=FedBCD(lr=0.1),
        target=Target(metric="loss", value=1e-9),
        epochs=3,
        batch_size="all",
        test_fraction=0.25,
        accepts=("columns", "small_metrics", "scores", "fresh_equations", "rank"),
    )
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {party.name: DisclosureLedger(Path(folder) / party.name, party.name) for party in parties}
        simulate(job, parties, ledgers=ledgers, workers=1)
        disclosures = [
            entry.disclosure for entry in ledgers["bank"].read().entries if entry.disclosure.group == "verdicts"
        ]
    if sum(item.count for item in disclosures) < 3 * STOP_DECISION_BITS:
        outcome.add("count", "bank", "verdicts that follow from labels are not in its ledger")
    return outcome


def early_stops() -> Outcome:
    """Check that a training that stops early, and one that does not, opens no more than its sheet states."""
    outcome, rng = Outcome(), np.random.default_rng(0)
    y = np.arange(240) % 2
    parties = parties_of([rng.normal(size=(240, 2)) + 4 * y[:, None] for _ in range(2)], y, ids=range(240))
    # no loss decreases by 9, and in twelve iterations the second evaluation is the last one
    for gain, epochs in ((9.0, 20), (1e-9, 12)):
        job = Job(
            model=Logistic(),
            optimizer=BlockDescent(early_stop=gain),
            epochs=epochs,
            batch_size="all",
            accepts=("small_metrics", "scores", "label_auc"),
        )
        sent = list[Any]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = simulate(
                job,
                parties,
                workers=1,
                observe=lambda event: sent.append(event) if event.direction == "send" else None,  # noqa: B023
            )
            outputs = pooled_run_facts(job, parties).outputs
        for name, kind in ((LOSS_SUMS, LossSum), ("decisions to stop or to roll back", StopDecision)):
            stated = sum(output.times for output in outputs if output.name == name)
            opened = sum(isinstance(event.message, kind) for event in sent)
            if opened > stated:
                outcome.add("count", "bank", f"{opened} {kind.__name__}, and the sheet states {stated}")
        if {part.rounds for part in run.parts.values()} != {12}:
            outcome.add("stop", "bank", "the training does not stop after twelve iterations")
        assert trains_on_shares(run.job), "the job has a section for shares"
        rule = make_plan(run.job, rows=180, batches=1, parties=2).rule
        state = rng.integers(-1000, 1000, (13, 1, 1)).view(np.uint64)
        latest = [rule.theta(state[: t + 1], t).view(np.int64) for t in (11, 12)]
        if abs(np.mean(latest) - rule.result(state, 12).view(np.int64).mean()) > len(state) * 1000:
            outcome.add("stop", "bank", "the model is not the mean of the latest fifth of all weights")
    return outcome


CHECKS: dict[str, Callable[[], Outcome]] = {
    "counts by group": groups,
    "correlations of columns": correlations,
    "bits of scores": scores,
    "consent": consent,
    "trainings that are over": again,
    "ends of conversations": tries,
    "verdicts of early stopping": verdicts,
    "early stops": early_stops,
}

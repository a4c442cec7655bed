"""Decisions, counts, flags and sizes that a peer sends, and that the job or the state does not allow, are refused.

Each field of a message that is neither an array nor opaque bytes is in one of three tables: `REFUSED` has lies that the
receiver must refuse, `ELSEWHERE` the test that sends them, and `FREE` the reason why the sender may choose the value. A
new message fails the first test until its fields are in a table. Bytes that contain a count are in `REFUSED` too.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import securevfl as vfl
from securevfl.audit.message_bytes import byte_fields
from securevfl.credit.reason_codes import ReasonCodePolicy
from securevfl.disclosure.ledger import DisclosureLedger
from securevfl.organisations.align import align_privately
from securevfl.organisations.scoring import ScoreClient, ServedTable, serve_requests
from securevfl.protocols.alignment.online_lookup import TableClient, TableTags
from securevfl.protocols.alternative_choice import receive_choice, send_choice
from securevfl.protocols.handshake import StopDecision, receive_decision
from securevfl.protocols.permits import permit_evaluated_decision
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage
from securevfl.runtime.party_threads import run_threads
from securevfl.training.new_rows import IndexedRows
from tests.builders import SHARES_JOB, make_job, random_parties
from tests.security.test_crafted_messages import ACTS, WAITS, Act, Liar, Place, outcome

MANY = 4096  # ids from which on an alignment uses transfers


class Lie(NamedTuple):
    """What a party sends in an act in place of the true value of a field.

    Attributes:
        act: the name of the act.
        change: computes the false value from the true one.
        who: the sender; the first sender of this kind of message by default.
        last: whether the last message of the kind is changed, and not the first one.
    """

    act: str
    change: Callable[[Any], Any]
    who: str = ""
    last: bool = False


def always(value: Any) -> Callable[[Any], Any]:
    """Return a change to this value."""
    return lambda true: value


def more(true: Any) -> Any:
    """Return the next number, or a longer text."""
    return true + "x" if isinstance(true, str) else true + 1


def with_bit(byte: int, bit: int) -> Callable[[bytes], bytes]:
    """Return a change of one bit of a share, which moves the shared number by that bit."""
    return lambda true: true[:byte] + bytes([true[byte] ^ 1 << bit]) + true[byte + 1 :]


def decided(**keys: Any) -> Act:
    """Return an act that trains on shares with evaluations between rounds."""
    options: dict[str, Any] = {"epochs": 6, "evaluate_every": 2, "batch_size": "all", "accepts": ["small_metrics"]}
    job, parties = make_job(SHARES_JOB, **(options | keys)), random_parties(2, 200, ids=True)
    return lambda: vfl.simulate(job, parties)


def may_stop(folder: Path) -> Act:
    """Return an act whose job may stop at a target, and never rolls back."""
    return decided(optimizer=vfl.BlockDescent(lr=1.0), target=vfl.Target(metric="loss", value=0.0))


def may_roll_back(folder: Path) -> Act:
    """Return an act whose job may roll back, and never stops early."""
    return decided(optimizer=vfl.BlockDescent(lr=8.0))


def decision(folder: Path) -> Act:
    """Return an act that sends a rollback, in a job whose evaluations may have any result."""

    def bank(channel: Channel) -> object:
        message = StopDecision(stop=False, is_best=False, roll_back=True)
        channel.send("shop", message, permit=permit_evaluated_decision(channel, "shop"))
        return message

    def shop(channel: Channel) -> object:
        return receive_decision(channel, "bank", may_stop=True, may_improve=True, may_roll_back=True)

    return lambda: run_threads({"bank": bank, "shop": shop}, WallClock)


def block_newton(folder: Path) -> Act:
    """Return an act of a job that takes all of its rounds."""
    keys: dict[str, Any] = {"optimizer": vfl.BlockNewton(tolerance=0.0), "batch_size": "all", "epochs": 3}
    job, parties = make_job(**keys), random_parties(2, 200, ids=True)
    return lambda: vfl.simulate(job, parties)


def choice(folder: Path) -> Act:
    """Return an act in which the active party chooses one of four alternatives."""

    def bank(channel: Channel) -> object:
        send_choice(channel, ["shop"], 2, 4)
        return None

    return lambda: run_threads({"bank": bank, "shop": lambda channel: receive_choice(channel, "bank", 4)}, WallClock)


def table_tags(folder: Path) -> Act:
    """Return an act in which the shop sends the digests of three ids in two messages."""

    def shop(channel: Channel) -> object:
        for message in (TableTags(bytes(32), 1), TableTags(bytes(16), 0)):
            channel.send("bank", message)
        return None

    return lambda: run_threads({"bank": lambda channel: TableClient(channel, "shop"), "shop": shop}, WallClock)


def align(ids: int) -> Act:
    """Return an act that aligns this number of ids of two parties."""

    def aligning(me: str) -> Callable[[Channel], object]:
        return lambda channel: align_privately(me, range(ids), channel, active="bank", passives=["shop"], ledger=None)

    return lambda: run_threads({me: aligning(me) for me in ("bank", "shop")}, WallClock, timeout=3.0)


def served(folder: Path) -> Act:
    """Return an act in which the bank requests scores and reason codes of a model that the shop serves."""
    parties = random_parties(2, 240, ids=True)
    run = vfl.simulate(make_job(reason_codes=2), parties)
    tables = {
        party.name: IndexedRows(party.name, [f"row {k}" for k in range(len(party))], np.asarray(party.X[:]))
        for party in parties
    }
    ledgers = {party.name: DisclosureLedger(folder / f"{party.name}.ledger", party.name) for party in parties}
    codes = ReasonCodePolicy(2, {name: f"code {name}" for name in run.parts["shop"].columns})

    def bank(channel: Channel) -> object:
        client = ScoreClient(run.parts["bank"], channel, ledgers["bank"])
        result = client.ask(tables["bank"].ids[:2], tables["bank"].X[:2])
        client.end()
        return result

    def shop(channel: Channel) -> object:
        table = ServedTable(tables["shop"], 10, code_policy=codes)
        return [*serve_requests(run.parts["shop"], table, channel, ledgers["shop"])]

    return lambda: run_threads({"bank": bank, "shop": shop}, WallClock, timeout=3.0)


HERE: dict[str, Callable[[Path], Act]] = {
    "may stop": may_stop,
    "may roll back": may_roll_back,
    "pairs": lambda folder: decided(model=vfl.Logistic(pairs=2), optimizer=vfl.BlockDescent(), evaluate_every=0),
    "decision": decision,
    "block newton": block_newton,
    "choice": choice,
    "table tags": table_tags,
    "served": served,
    "align 200": lambda folder: align(200),
    "align many ids": lambda folder: align(MANY),
}
FDML, MISSING = "fdml masks, labels shown", 10**9

REFUSED: dict[str, list[Lie]] = {
    "StopDecision.stop": [Lie("may roll back", always(True)), Lie("decision", always(True))],
    "StopDecision.is_best": [Lie("decision", always(True))],
    "StopDecision.roll_back": [Lie("may stop", always(True)), Lie("may stop", always(True), last=True)],
    "Pace.multiple": [Lie("block newton", always(0.5)), Lie("block newton", more, last=True)],
    "Pace.stop": [Lie("block newton", always(True))],
    "AlternativeChoice.index": [Lie("choice", always(4)), Lie("choice", always(-1))],
    "RunHello.role": [Lie("ckks", always("active"), "shop"), Lie("ckks", always("passive"), "bank")],
    "RunHello.rows": [Lie("ckks", more, "shop")],
    "RunHello.columns": [Lie("ckks", always(1 << 30), "shop")],
    "RunHello.parameters": [Lie("ckks", more, "shop"), Lie("shares", more, "shop")],
    "RunHello.outputs": [Lie("ckks", always(3), "bank")],
    "Residual.exchange": [Lie("tree open", always(-1))],
    "ResidualCiphertext.exchange": [Lie("ckks", always(MISSING))],
    "ResidualCiphertext.last": [Lie("ckks", lambda true: not true)],
    "ResidualClosed.exchange": [Lie("kept exchanges", always(MISSING))],
    "BlindedProduct.exchange": [Lie("ckks", always(MISSING))],
    "OpenedProduct.exchange": [Lie("ckks", more)],
    "MaskedSummand.round": [Lie("kernel pairwise", more)],
    "LookupRequest.chunk": [Lie("shares", more)],
    "MaskedSum.chunk": [Lie("shares", more)],
    "HolderKeys.publics": [Lie("shares", always(()))],
    "ProductQuery.batch": [Lie("shares", more), Lie("predict shares", more)],
    "ProductReply.batch": [Lie("shares", more)],
    "PairGreeting.rows": [Lie("pairs", more)],
    "PairGreeting.active": [Lie("pairs", more)],
    "PairGreeting.partner": [Lie("pairs", more)],
    "PairGreeting.bits": [Lie("pairs", more)],
    "PairGreeting.scale": [Lie("pairs", more)],
    "OutOfRangeCount.total": [Lie("shares", with_bit(1, 2))],
    "LossSum.total": [Lie("shares", with_bit(3, 7))],
    "RoundedScores.finer": [Lie("predict shares", always(1)), Lie("predict shares", always(-1))],
    "PredictionHandshake.run": [Lie("served", more)],
    "PredictionHandshake.rows": [Lie("served", more), Lie("served", always(-2))],
    "PredictionHandshake.role": [Lie("served", always("passive"), "bank"), Lie("served", always("active"), "shop")],
    "PredictionHandshake.codes": [Lie("served", always(3), "shop"), Lie("served", always(3), "bank")],
    "ReasonCodes.names": [Lie("served", always(("=code",)))],
    "ScoreRequest.rows": [Lie("served", always(11)), Lie("served", always(-1))],
    "ServerLimits.max_ids": [Lie("served", always(0))],
    "TableTags.remaining": [Lie("table tags", always(2), last=True), Lie("table tags", always(-1))],
    "AlignmentHello.rows": [Lie("align", always(0))],
    "AlignmentHello.done": [Lie("align", more)],
    "AlignmentStart.rows": [Lie("align", always(0))],
    "AlignmentStart.transfers": [Lie("align 200", always(True)), Lie("align many ids", always(False))],
    "AlignmentStart.resumes": [Lie("align", always(True))],
    "AlignmentStart.first": [Lie("align", always(MISSING))],
    "AlignmentStart.second": [Lie("align", always(MISSING))],
    "IntersectionSize.rows": [Lie("align", always(MISSING))],
    "StoreHeader.slots": [Lie("align", more)],
    "VoleRequest.slots": [Lie("align many ids", more)],
    "TableShape.rows": [Lie("count groups", more)],
    "TableShape.count": [Lie("count groups", always(-1), "shop"), Lie("correlate", always(1 << 30))],
    "GroupCounts.names": [Lie("count groups", always(("one",)))],
    "PullReply.iteration": [Lie(FDML, more)],
    "PullReply.versions": [Lie(FDML, always(()))],
    "PullReply.finished": [Lie(FDML, always(-1)), Lie(FDML, always(MISSING))],
    "Push.iteration": [Lie(FDML, more)],
    "Push.batch": [Lie(FDML, more)],
    "Push.finished": [Lie(FDML, always(MISSING))],
    "StartIteration.iteration": [Lie(FDML, always(MISSING))],
}

ELSEWHERE = {
    "RestoredOutputs.batch": "families/test_pulls.py",
    "RestoredOutputs.version": "families/test_pulls.py",
    "ProbeResult.small": "transport/test_measured_line.py",
    "ProbeResult.large": "transport/test_measured_line.py",
    "ProbeResult.size": "transport/test_measured_line.py",
    "RoundTripTimes.seconds": "transport/test_measured_line.py",
}

FREE = {
    "RunHello.saved": "a round is used only if this party has a checkpoint of it as well",
    "RunHello.run": "another run begins anew, which every party may demand",
    "RunHello.content": "only a trusted peer's name of its table is used, and it counts fewer equations for that peer",
    "RunHello.evaluated": "the sender's evaluations are not repeated, and decisions only if this party has them",
    "ScoreRequest.more": "the requesting party may end its session at any time",
    "Abort.reason": "any party may end a session, for any of a fixed list of reasons",
    "Abort.resumes": "words of the error, no more",
    "ChunkName.on_disk": "any party may store chunks on disk; if it sends different values to others, they time out",
    "Abort.party": "another party than one of the session is ignored",
}


def kinds() -> Iterator[type[Message]]:
    """Yield every class of message between parties, except for the packets of a connection."""
    for module in pkgutil.walk_packages(vfl.__path__, "securevfl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = [Message]
    for kind in found:
        found += kind.__subclasses__()
    for kind in dict.fromkeys(found):
        own = kind.__module__.startswith("securevfl.") and not kind.__module__.startswith("securevfl.transport.")
        if own and kind not in (Message, DisclosingMessage):
            yield kind


def test_the_audit_reads_every_bytes_field() -> None:
    """Of every message, the bytes in lists and tuples included."""
    in_containers = set[str]()
    for kind in kinds():
        values, expected = dict[str, Any](), list[bytes]()
        for field in msgspec.structs.fields(kind):
            marks = [f"{field.name} {number}".encode() for number in range(2)]
            of = str(field.type)
            values[field.name] = None
            if field.type is bytes:
                values[field.name] = marks[0]
                expected += marks[:1]
            elif "bytes" in of:
                assert of in ("tuple[bytes, ...]", "list[bytes]"), (kind, of)
                values[field.name] = marks if of.startswith("list") else tuple(marks)
                expected += marks
                in_containers.add(of)
        assert byte_fields(kind(**values)) == expected, kind
    assert in_containers


def test_every_field_that_a_peer_chooses_is_in_a_table() -> None:
    fields = {f"{kind.__name__}.{field.name}": field.type for kind in kinds() for field in msgspec.structs.fields(kind)}
    chosen = {name for name, of in fields.items() if of is not bytes and "ndarray" not in str(of)}
    tables = [*REFUSED, *ELSEWHERE, *FREE]
    assert chosen <= set(tables)
    assert set(tables) <= set(fields)
    assert len(tables) == len(set(tables))
    assert all((Path(__file__).parents[1] / file).exists() for file in ELSEWHERE.values())


BY_ACT: dict[str, list[tuple[str, Lie]]] = {}
for _field, _lies in REFUSED.items():
    for _lie in _lies:
        BY_ACT.setdefault(_lie.act, []).append((_field, _lie))


@pytest.mark.parametrize("act", BY_ACT)
def test_a_value_that_the_job_does_not_allow_is_refused(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings.simplefilter("ignore")
    liar = Liar(monkeypatch)
    run = HERE[act](tmp_path) if act in HERE else ACTS[act](act.removeprefix("predict "), liar)
    liar.sent.clear()
    assert outcome(run) == ""
    for field, lie in BY_ACT[act]:
        kind, name = field.split(".")
        who = lie.who or min(sender for sender, sent in liar.sent if sent == kind)
        liar.lie(Place(who, kind, lie.last, name), lie.change)
        refusal = outcome(run)
        assert refusal, (field, lie)
        assert not any(wait in refusal for wait in WAITS), (field, refusal)

"""No message that discloses values permits without a record: every message type, by its declaration."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from builders import raises_code

import securevfl as vfl
from docs.declarations_page import sections
from securevfl.data.party import Helper
from securevfl.errors import LeakageError, ProtocolError
from securevfl.families import FAMILIES, leak_kinds
from securevfl.protocols.declarations import MessageDeclaration
from securevfl.protocols.handshake import StopDecision
from securevfl.runtime.channel import Channel
from securevfl.runtime.clock import WallClock
from securevfl.runtime.codec import Message
from securevfl.runtime.disclosure_gate import DisclosingMessage, DisclosureGate, DisclosureRecord
from securevfl.runtime.observer import Event, Observer
from securevfl.runtime.party_threads import run_threads

DECLARED: list[MessageDeclaration] = [item for section in sections() for item in section.declared]
MESSAGE_KINDS: list[type[Message]] = sorted({item.message for item in DECLARED}, key=lambda kind: kind.__name__)
TELLS = {item.message for item in DECLARED if item.reveals.kind in ("plain", "output")}

PUBLIC = {
    "ChunkName",
    "ResidualClosed",
    "HolderKeys",
    "BaseOtOffer",
    "PairKey",
    "ProductGreeting",
    "PullReply",
    "ResidualKey",
    "ServerLimits",
    "ShareStored",
    "PairGreeting",
    "StartIteration",
    "SumKey",
    "SumPublicKey",
    "TransferOffer",
    "WindowSummed",
}
"""Plain messages that reveal nothing about anybody's data: keys, positions in a schedule, names of sessions and
acknowledgements."""

# Every disclosing message is in one of the three lists below. A malicious receiver can choose the factors of a sum, so
# that a number has one bit of information for each bit of its length: such messages belong to the first list.
COUNTED_IN_BITS = {  # a message has at most the bits of its record, for any factors (tests/disclosure/door_watch.py)
    "IntersectionSize", "OutOfRangeCount", "GroupCounts", "LossSum", "RoundedScores", "OpenedWeights", "ReasonCodes",
    "EvaluatedPoints", "NamedRows", "RoundedProducts", "RowStates", "ShuffledWords", "StoreSlots",
    "IntersectionTags", "PrfValues",
}  # fmt: skip
COUNTED_IN_NUMBERS = {  # each number counts once and has at most 64 bits, about 14 labels; see threat-model.md
    "TrainingLabels", "MaskPartial", "OpenedProduct", "MaskedSummand", "Summand", "PartialSum", "PhaseSummand",
    "PullReply",
    "Push", "Residual", "RestoredOutputs", "SecondMoments",
}  # fmt: skip
NOT_ABOUT_ROWS = {  # sizes, keys, digests and decisions, which are not sums over rows
    "Abort", "AlignmentHello", "AlignmentStart", "PredictionHandshake", "RowCommitments", "ProbeResult",
    "RunHello",
    "WrappedMaskKey", "Pace", "StartIteration", "VoleRequest", "RoundTripTimes", "TableShape", "SessionDone",
    "StopDecision", "AlternativeChoice",
    "ScoreRequest",
}  # fmt: skip


def empty(kind: type[Message]) -> Message:
    """Return a message of this class with empty fields."""
    hints = get_type_hints(kind)
    return kind(**{name: _empty(hints[name]) for name in kind.__struct_fields__})


def _empty(hint: Any) -> Any:
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin is np.ndarray:
        number = get_args(args[1])[0]
        return np.zeros((1, 1), (get_args(number) or (number,))[0])
    if type(None) in args:
        return None
    if origin is Literal:
        return args[0]
    return () if origin is tuple else origin()


@pytest.mark.parametrize("kind", MESSAGE_KINDS, ids=lambda kind: kind.__name__)
def test_messages_that_disclose_are_disclosing_messages(kind: type[Message]) -> None:
    assert issubclass(kind, DisclosingMessage) == (kind in TELLS)


def test_every_disclosing_message_has_a_rule_for_its_bits() -> None:
    named = [*COUNTED_IN_BITS, *COUNTED_IN_NUMBERS, *NOT_ABOUT_ROWS]
    disclosing = {kind.__name__ for kind in TELLS}
    assert len(named) == len(set(named)), "a message is in two of the lists"
    assert not disclosing - {*named}, "add these messages to COUNTED_IN_BITS, COUNTED_IN_NUMBERS or NOT_ABOUT_ROWS"
    assert not {*named} - disclosing, "remove these messages from the lists; no declaration discloses them"
    for kind in TELLS:  # words (integers of L bits) are byte strings; messages of reals are counted in numbers
        hints = get_type_hints(kind)
        reals = any("float" in str(hint) or "ndarray" in str(hint) for hint in hints.values())
        assert not (reals and kind.__name__ in COUNTED_IN_BITS), kind.__name__


def test_public_messages_are_a_closed_list() -> None:
    assert {item.message.__name__ for item in DECLARED if item.reveals.kind == "public"} == PUBLIC


@pytest.mark.parametrize("kind", sorted(TELLS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_a_message_cannot_exceed_the_bits_of_its_record(kind: type[Message]) -> None:
    """A record of ten numbers of 9 bits permits 12 bytes. A record with `max_bytes` permits exactly these bytes."""
    field = next((name for name, hint in get_type_hints(kind).items() if hint is bytes), None)
    arrays = [name for name in kind.__struct_fields__ if isinstance(getattr(empty(kind), name), np.ndarray)]
    if not (field or arrays):
        return

    def message_of(size: int) -> Message:
        fields = {name: getattr(empty(kind), name) for name in kind.__struct_fields__}
        dtype = fields[arrays[0]].dtype if arrays else None
        return kind(
            **fields | ({arrays[0]: np.zeros(size // 8 * 8, np.uint8).view(dtype)} if arrays else {field: bytes(size)})
        )

    gate = DisclosureGate("shop")
    permit = gate.permit(DisclosureRecord("bank", "labels", 10, 9, about=("shop",)))
    gate.check(message_of(8), permit)
    with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
        gate.check(message_of(12 + kind.extra_bits // 8 + 100), permit)
    sealed = gate.permit(DisclosureRecord("bank", "labels", 10, 9, about=("shop",), max_bytes=2000))
    gate.check(message_of(2000), sealed)
    with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
        gate.check(message_of(2008 + kind.extra_bits // 8), sealed)


@pytest.mark.parametrize("kind", sorted(TELLS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_no_channel_sends_a_disclosing_message_without_permit(kind: type[Message]) -> None:
    """With a permit the message is sent."""

    def shop(channel: Channel) -> None:
        with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
            channel.send("bank", empty(kind))
        if kind.__name__ != "Abort":
            channel.send("bank", empty(kind), permit=channel.permit(DisclosureRecord("bank", "sizes", 1, 64)))

    def bank(channel: Channel) -> None:
        if kind.__name__ != "Abort":
            channel.recv("shop", kind)

    run_threads({"shop": shop, "bank": bank}, WallClock)


def test_a_permit_of_another_gate_is_rejected() -> None:
    permits = {}

    def shop(channel: Channel) -> None:
        permits["shop"] = channel.permit(DisclosureRecord("bank", "columns", 3, 64, about=("shop",)))

    def bank(channel: Channel) -> None:
        with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
            channel.send("shop", empty(StopDecision), permit=permits["shop"])

    run_threads({"shop": shop}, WallClock)
    run_threads({"bank": bank, "shop": lambda channel: None}, WallClock)


def test_records_name_the_latest_iteration_that_any_thread_began() -> None:
    """A thread that generates material for later iterations may begin them before the training does."""
    gate = DisclosureGate("bank")
    recorded = list[int]()
    gate.record_with(lambda record, total: recorded.append(record.iteration))
    for iteration in (0, 1, 3, 2, 3, 4, 1):
        gate.begin_iteration(iteration)
        gate.permit(DisclosureRecord("shop", "labels", 1, 64, iteration=iteration))
    assert recorded == [0, 1, 3, 3, 3, 4, 4]


def test_a_refused_record_is_not_counted() -> None:
    def shop(channel: Channel) -> None:
        channel.gate.record_with(refuse)
        with pytest.raises(LeakageError):
            channel.permit(DisclosureRecord("bank", "columns", 3, 64, about=("shop",)))
        assert not channel.gate.totals

    def refuse(record: DisclosureRecord, total: int) -> None:
        raise LeakageError("no more")

    run_threads({"shop": shop, "bank": lambda channel: None}, WallClock)


class Listening(Observer):
    """Stores the messages that parties send, by sender, receiver, subchannel and class."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str, str, str], list[Message]] = {}

    def __call__(self, event: Event) -> None:
        if event.direction == "send":
            key = event.me, event.peer, event.subchannel, type(event.message).__name__
            self.sent.setdefault(key, []).append(event.message)

    def note(self, me: str, fact: object) -> None:
        pass


EXAMPLE_NAMES = (
    "ckks",
    "kept exchanges",
    "curvature",
    "shares",
    "shares, trees",
    "kernel pairwise",
    "fdml masks, sealed",
    "transfer ckks",
)
EXAMPLES = {
    name: options
    for family in FAMILIES.values()
    for name, options in family().example_jobs().items()
    if name in EXAMPLE_NAMES
}
RANDOM = {
    "key",
    "public",
    "publics",
    "chunk",
    "nonce",
    "offer",
    "total",
}  # fields with random values: keys, names and masked words


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_public_messages_do_not_depend_on_data(name: str) -> None:
    """Two runs with different columns and labels send the same public messages, except for random keys."""
    runs = []
    for draw in (1, 2):
        rng = np.random.default_rng(draw)
        X = rng.normal(size=(40, 6))
        y = np.where(X[:, 0] + rng.normal(size=40) > 0, 1, -1)
        y[:2] = -1, 1
        names = ("bank", "shop", "telco")
        parties = [
            vfl.Party(name, X[:, 2 * k : 2 * k + 2], y if name == "bank" else None, aligned=True)
            for k, name in enumerate(names)
        ]
        job = vfl.Job(**{"batch_size": 20, "epochs": 1} | EXAMPLES[name] | {"accepts": [*leak_kinds()]})
        parties = [
            *parties[: job.family.max_parties or 3],
            *(Helper(name, role) for name, role in job.family.example_helpers),
        ]
        listening = Listening()
        vfl.simulate(job, parties, observe=listening)
        runs.append({key: messages for key, messages in listening.sent.items() if key[3] in PUBLIC})
    first, second = runs
    assert first.keys() == second.keys()
    for key in first:
        for message, other in zip(first[key], second[key], strict=True):
            for field in message.__struct_fields__:
                a, b = getattr(message, field), getattr(other, field)
                assert a == b or (field in RANDOM and len(a) == len(b)), (key, field)

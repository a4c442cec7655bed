"""No message that discloses values leaves without a record: every message type, by its declaration."""

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
KINDS: list[type[Message]] = sorted({item.message for item in DECLARED}, key=lambda kind: kind.__name__)
TELLS = {item.message for item in DECLARED if item.reveals.kind in ("plain", "output")}

# Messages that some receiver learns nothing of anyone's from, though they are neither random nor encrypted. Whoever
# adds one says here why it follows from no party's data: keys, positions in a schedule, names of sessions, and that
# something has come or is over.
PUBLIC = {
    "ChunkName",
    "ResidualClosed",
    "HolderKeys",
    "BaseOtOffer",
    "PairKey",
    "Position",
    "ProductGreeting",
    "Pulled",
    "ResidualKey",
    "ServerLimits",
    "ShareStored",
    "SumKey",
    "SumPublicKey",
    "Taken",
    "TransferOffer",
}


# How many bits the receiver of a number can make it hold, where it deviates, and what of them the giver counts. Whoever
# adds a message that tells something names it in one of these; what is weighed by the receiver belongs to the first.
IN_BITS = {  # no message has more bits than its entry, whatever was multiplied (tests/disclosure/door_watch.py)
    "IntersectionSize", "OutOfRangeCount", "GroupCounts", "LossSum", "RoundedScores", "OpenedWeights", "ReasonCodes",
    "EvaluatedPoints", "NamedRows", "RoundedProducts", "RowStates", "ShuffledWords", "StoreSlots",
    "IntersectionTags", "PrfValues",
}  # fmt: skip
IN_NUMBERS = {  # counted one by one, of 64 bits at most: some 14 labels each; see threat-model.md
    "Labels", "MaskPartial", "OpenedProduct", "MaskedSummand", "Summand", "PartialSum", "PhaseSummand", "Pulled",
    "Push", "Residual", "Restored", "SecondMoments",
}  # fmt: skip
NOT_OF_ROWS = {  # sizes, keys, digests, verdicts: nothing of a row that a receiver could weigh
    "Abort", "AlignmentHello", "AlignmentStart", "PredictionHandshake", "RowCommitments", "ProbeResult", "RunHello",
    "WrappedMaskKey", "Pace", "Position", "VoleRequest", "RoundTripTimes", "TableShape", "SessionDone", "StopDecision",
    "ScoreRequest",
}  # fmt: skip


def empty(kind: type[Message]) -> Message:
    """A message of this kind that holds nothing."""
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_kind_that_tells_something_says_so_by_its_type(kind: type[Message]) -> None:
    assert issubclass(kind, DisclosingMessage) == (kind in TELLS)


def test_every_disclosing_message_has_a_rule_for_its_bits() -> None:
    named = [*IN_BITS, *IN_NUMBERS, *NOT_OF_ROWS]
    assert sorted(named) == sorted(kind.__name__ for kind in TELLS)
    for kind in TELLS:  # words and counts are bytes; a message of reals is counted in numbers
        hints = get_type_hints(kind)
        reals = any("float" in str(hint) or "ndarray" in str(hint) for hint in hints.values())
        assert not (reals and kind.__name__ in IN_BITS), kind.__name__


def test_what_is_public_is_a_closed_list() -> None:
    assert {item.message.__name__ for item in DECLARED if item.reveals.kind == "public"} == PUBLIC


@pytest.mark.parametrize("kind", sorted(TELLS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_none_goes_with_more_bits_than_were_entered(kind: type[Message]) -> None:
    """Under an entry of ten numbers of 9 bits, 12 octets go and a hundred more do not; of what is blinded, sealed or
    marked as many as its layout has, and not a word more."""
    field = next((name for name, hint in get_type_hints(kind).items() if hint is bytes), None)
    arrays = [name for name in kind.__struct_fields__ if isinstance(getattr(empty(kind), name), np.ndarray)]
    if not (field or arrays):
        return

    def of(octets: int) -> Message:
        fields = {name: getattr(empty(kind), name) for name in kind.__struct_fields__}
        dtype = fields[arrays[0]].dtype if arrays else None
        return kind(
            **fields
            | ({arrays[0]: np.zeros(octets // 8 * 8, np.uint8).view(dtype)} if arrays else {field: bytes(octets)})
        )

    gate = DisclosureGate("shop")
    permit = gate.permit(DisclosureRecord("bank", "labels", 10, 9, about=("shop",)))
    gate.check(of(8), permit)
    with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
        gate.check(of(12 + kind.extra_bits // 8 + 100), permit)
    sealed = gate.permit(DisclosureRecord("bank", "labels", 10, 9, about=("shop",), max_bytes=2000))
    gate.check(of(2000), sealed)
    with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
        gate.check(of(2008 + kind.extra_bits // 8), sealed)


@pytest.mark.parametrize("kind", sorted(TELLS, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_no_channel_sends_one_without_an_entry(kind: type[Message]) -> None:
    """With a ledger and without, the same; under an entry it goes."""

    def shop(channel: Channel) -> None:
        with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
            channel.send("bank", empty(kind))
        if kind.__name__ != "Abort":
            channel.send("bank", empty(kind), permit=channel.permit(DisclosureRecord("bank", "sizes", 1, 64)))

    def bank(channel: Channel) -> None:
        if kind.__name__ != "Abort":
            channel.recv("shop", kind)

    run_threads({"shop": shop, "bank": bank}, WallClock)


def test_the_entry_of_another_door_is_none() -> None:
    leaves = {}

    def shop(channel: Channel) -> None:
        leaves["shop"] = channel.permit(DisclosureRecord("bank", "columns", 3, 64, about=("shop",)))

    def bank(channel: Channel) -> None:
        with raises_code(ProtocolError, "SVFL-DISCLOSURE-UNDECLARED"):
            channel.send("shop", empty(StopDecision), permit=leaves["shop"])

    run_threads({"shop": shop}, WallClock)
    run_threads({"bank": bank, "shop": lambda channel: None}, WallClock)


def test_what_the_account_refuses_is_not_sent_and_not_counted() -> None:
    def shop(channel: Channel) -> None:
        channel.gate.record_with(refuse)
        with pytest.raises(LeakageError):
            channel.permit(DisclosureRecord("bank", "columns", 3, 64, about=("shop",)))
        assert not channel.gate.totals

    def refuse(entry: DisclosureRecord, total: int) -> None:
        raise LeakageError("no more")

    run_threads({"shop": shop, "bank": lambda channel: None}, WallClock)


class Listening(Observer):
    """Keeps what parties send, by party and kind."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str, str, str], list[Message]] = {}

    def __call__(self, event: Event) -> None:
        if event.direction == "send":
            place = event.me, event.peer, event.subchannel, type(event.message).__name__
            self.sent.setdefault(place, []).append(event.message)

    def note(self, me: str, fact: object) -> None:
        pass


CHOSEN = (
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
    name: options for kind in FAMILIES.values() for name, options in kind().example_jobs().items() if name in CHOSEN
}
RANDOM = {"key", "public", "publics", "chunk", "nonce", "offer", "total"}  # keys, names and masked words: drawn


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_what_is_public_does_not_follow_from_data(name: str) -> None:
    """Every party's columns and labels change; what is public stays the same, keys aside, which keep their length."""
    seen = []
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
        seen.append({place: sent for place, sent in listening.sent.items() if place[3] in PUBLIC})
    first, second = seen
    assert first.keys() == second.keys()
    for place in first:
        for one, other in zip(first[place], second[place], strict=True):
            for field in one.__struct_fields__:
                here, there = getattr(one, field), getattr(other, field)
                assert here == there or (field in RANDOM and len(here) == len(there)), (place, field)

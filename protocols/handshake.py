"""The messages that start a training, and the message that stops it early.

The lead is the one party that compares evaluations and decides when the training stops; usually it is the party with
the labels.

1. all -> all     RunHello      digest of the job; role; numbers of rows, columns, parameters and outputs; keyed digest
                                of the row order; rounds of stored checkpoints; pseudonym of the columns' content
2. lead -> all    StopDecision  after a joint evaluation: whether to stop, to continue or to roll back, and whether the
                                model is the best so far

A RunHello contains no secret: only sizes, digests of public agreements, and digests that only the parties can compute,
because they are keyed. A party's disclosure ledger records what its jobs have disclosed, by receiver.
"""

from __future__ import annotations

from collections.abc import Iterable

from securevfl.base.roles import LEAD, Roles
from securevfl.errors import ProtocolError
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.abort import Abort
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage

_HELLO = (
    "digest of the job; digest of the row order, keyed by the session; role; numbers of rows, columns, parameters, "
    "outputs, stored rounds and evaluations; whether its columns are those of its earlier jobs"
)

_DECISION = "whether the training stops or rolls back, and whether its model is the best so far"

_STOPPED = "that the sender has stopped, and one of a few reasons"


class RunHello(DisclosingMessage, frozen=True):
    """A party's statement about its table and its earlier checkpoints at the start of a run.

    Attributes:
        job: digest of the job, the description of the training that all parties agreed on.
        role: the party's role.
        rows: number of its rows.
        columns: number of its columns after preparation.
        parameters: number of parameters of its network module; 0 if the columns determine it.
        outputs: number of values that its part of the model computes for each row.
        order: keyed digest of the ids of its rows in their order, which must be equal at all parties.
        saved: numbers of the rounds after which it stored a checkpoint.
        run: name of the training to which these checkpoints belong.
        content: a pseudonym of its columns. Two jobs get the same pseudonym if the party's disclosure ledger records
            the same columns for both, so that peers can count disclosures over jobs. Empty without a ledger.
        evaluated: numbers of the evaluations of this training that it has on disk.
    """

    job: bytes
    role: str
    rows: int
    columns: int
    parameters: int
    outputs: int
    order: bytes
    saved: tuple[int, ...]
    run: str
    content: str
    evaluated: tuple[int, ...] = ()


class StopDecision(DisclosingMessage, frozen=True):
    """The leading party's decision after a joint evaluation.

    Attributes:
        stop: the training ends, because the target is reached or the model no longer improves.
        is_best: no earlier evaluation was better.
        roll_back: the training has diverged; it continues from the best model with shorter steps.
    """

    stop: bool
    is_best: bool
    roll_back: bool


def exchange_hellos(channel: Channel, parties: Iterable[str], hello: RunHello) -> dict[str, RunHello]:
    """Send this party's hello to all others, and return every party's hello by name, in the order of `parties`."""
    peers = [name for name in parties if name != channel.me]
    for peer in peers:
        channel.send(peer, hello, permit=permit_sizes(channel, peer))  # step 1
    received = {peer: channel.recv(peer, RunHello) for peer in peers}  # step 1
    return {name: received.get(name, hello) for name in parties}


def receive_decision(
    channel: Channel, lead: str, *, may_stop: bool, may_improve: bool, may_roll_back: bool
) -> StopDecision:
    """Receive the leading party's decision after a joint evaluation.

    Args:
        channel: the channel of another party.
        lead: the leading party.
        may_stop: whether the job may end after this evaluation.
        may_improve: whether the evaluated model may be the best so far, to which the training can return.
        may_roll_back: whether the training may roll back after this evaluation.

    Returns:
        The decision.

    Raises:
        ProtocolError: the job does not allow this decision after this evaluation.
    """
    decision = channel.recv(lead, StopDecision)  # step 2
    allowed = {"stop": may_stop, "is_best": may_improve, "roll_back": may_roll_back}
    refused = [name for name, permitted in allowed.items() if getattr(decision, name) and not permitted]
    if decision.roll_back and (decision.stop or decision.is_best):
        refused.append("roll_back")
    if refused:
        raise ProtocolError(
            f"{channel.me}: {lead} sent the decision {refused[0]!r} after an evaluation for which the job does not "
            "allow it",
            "ask the operator of that party for the reason",
            code="SVFL-PROTOCOL-VALUES",
            peer=lead,
        )
    return decision


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare who sends which message of this file to whom; also `Abort`, which any party may send at any time."""
    followers = dict.fromkeys(roles.role(name) for name in roles.others(roles.lead))
    pairs = list(roles.pairs())
    return [
        *(MessageDeclaration(RunHello, sender, receiver, Reveal("plain", _HELLO)) for sender, receiver in pairs),
        *(MessageDeclaration(StopDecision, LEAD, role, Reveal("plain", _DECISION)) for role in followers),
        *(MessageDeclaration(Abort, sender, receiver, Reveal("plain", _STOPPED)) for sender, receiver in pairs),
    ]

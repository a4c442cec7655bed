"""How every run begins and how it stops early: parties say who they are, and the leading one whether to go on.

1. all <-> all      RunHello    digest of the job, role, rows, columns, parameters, outputs, keyed digest of the
                               row order, what is saved of which training, a name of its columns' content that its own
                               ledger gives
2. lead -> all      StopDecision    after a joint evaluation: stop, go on or turn back, and whether the model is the
best
                               so far

What stands in a RunHello is no one's secret: sizes, and digests that are keyed or of what all parties have agreed on.
"""

from __future__ import annotations

from collections.abc import Iterable

from securevfl.base.roles import LEAD, Roles
from securevfl.protocols.declarations import MessageDeclaration, Reveal
from securevfl.protocols.permits import permit_sizes
from securevfl.runtime.abort import Abort
from securevfl.runtime.channel import Channel
from securevfl.runtime.disclosure_gate import DisclosingMessage

_SIZES = (
    "digests of the job and, keyed by the session, of the row order; role; numbers of rows, columns, parameters, "
    "outputs and saved rounds; whether its columns are those of its earlier jobs"
)

_VERDICT = "whether the training is to stop or to turn back, and whether its model is the best so far"

_STOPPED = "that the sender has stopped, and which of a few codes fits the error"


class RunHello(DisclosingMessage, frozen=True):
    """What a party says of itself before anything else. parameters: of a module of its own; 0 where they follow from
    its columns. saved, run: its states are of these rounds of this training.

    content: the same in two jobs if its columns are the same, by its own ledger, and else random; empty without a
    ledger.
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


class StopDecision(DisclosingMessage, frozen=True):
    """Whether the training stops here, as the target is reached or patience is at its end, whether no evaluation
    before was better, and whether the training has lost its way: it then goes on from the best model by half the
    step."""

    stop: bool
    is_best: bool
    roll_back: bool


def exchange_hellos(channel: Channel, parties: Iterable[str], own: RunHello) -> dict[str, RunHello]:
    """Exchange what every party says of itself, and return it by name, in the order of `parties`."""
    peers = [name for name in parties if name != channel.me]
    for peer in peers:
        channel.send(peer, own, permit=permit_sizes(channel, peer))  # 1
    heard = {peer: channel.recv(peer, RunHello) for peer in peers}  # 1
    return {name: heard.get(name, own) for name in parties}


def declares(roles: Roles) -> list[MessageDeclaration]:
    """Declare what these messages reveal, and `Abort`, which any party may send at any time."""
    rest = dict.fromkeys(roles.role(name) for name in roles.others(roles.lead))
    return [
        *(
            MessageDeclaration(RunHello, sender, receiver, Reveal("plain", _SIZES))
            for sender, receiver in roles.pairs()
        ),
        *(MessageDeclaration(StopDecision, LEAD, role, Reveal("plain", _VERDICT)) for role in rest),
        *(MessageDeclaration(Abort, sender, receiver, Reveal("plain", _STOPPED)) for sender, receiver in roles.pairs()),
    ]

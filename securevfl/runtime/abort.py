"""The message with which a party that stops sends its peers the reason."""

from __future__ import annotations

from collections.abc import Collection

from securevfl.errors import PeerStopped, StopReason, TransportError, stop_reason_of
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Abort(DisclosingMessage, frozen=True):
    """The sender's report that it has stopped, with a reason from a fixed list and no text of its error.

    Attributes:
        reason: one of `securevfl.errors.STOP_REASONS`.
        resumes: whether the sender has stored a checkpoint, so that the same command continues from it.
        party: for the reason "away", the party that the sender cannot reach; otherwise the party whose reason the
            sender forwards. So all parties report the same reason, whichever message arrives first.
    """

    reason: StopReason
    resumes: bool = False
    party: str = ""

    @classmethod
    def of(cls, error: BaseException, parties: Collection[str], *, resumes: bool = False) -> Abort:
        """Create the message for an error: its reason, and the party that caused it if `parties` contains it."""
        if isinstance(error, PeerStopped) and error.party in parties:
            return cls(error.stopped, False, error.party)
        away = error.away if isinstance(error, TransportError) else ""
        reason = stop_reason_of(error)
        # a party that has refused would refuse again, and without consent there may be no checkpoint: do not resume
        return cls(reason, resumes and reason not in ("refused", "consent"), away if away in parties else "")

    def error(self, sender: str, peers: Collection[str]) -> PeerStopped:
        """Return the error that the receiver of this message raises; `party` is ignored unless it is one of `peers`."""
        if self.reason != "away" and self.party in peers:
            return PeerStopped(self.party, self.reason)
        party = f" ({self.party})" if self.party in peers else ""
        resume = "; it can resume from its last checkpoint" if self.resumes else ""
        return PeerStopped(sender, self.reason, party + resume)

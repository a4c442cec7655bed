"""The message with which a party that stops tells its peers why."""

from __future__ import annotations

from collections.abc import Collection

from securevfl.errors import PeerStopped, StopReason, TransportError, stop_reason_of
from securevfl.runtime.disclosure_gate import DisclosingMessage


class Abort(DisclosingMessage, frozen=True):
    """The sender has stopped. Its reason is one of a closed set (`STOP_REASONS`) and no text of the error.

    resumes: whether its state is kept, and the same command goes on from there. party: which party is away from it, or
    under another code, whose code it passes on: so that all read the same reason, whichever word of it comes first.
    """

    reason: StopReason
    resumes: bool = False
    party: str = ""

    @classmethod
    def of(cls, error: BaseException, parties: Collection[str], *, resumes: bool = False) -> Abort:
        """Reduce an error to what others read: a code, and the name of one of these parties if that began it."""
        if isinstance(error, PeerStopped) and error.party in parties:
            return cls(error.stopped, False, error.party)
        away = error.away if isinstance(error, TransportError) else ""
        reason = stop_reason_of(error)  # a party that refuses once refuses again
        return cls(reason, resumes and reason != "refused", away if away in parties else "")

    def error(self, sender: str, peers: Collection[str]) -> PeerStopped:
        """Return the error with which a party ends that reads this of a sender; `peers`: whom it could be about."""
        if self.reason != "away" and self.party in peers:
            return PeerStopped(self.party, self.reason)
        who = f" ({self.party})" if self.party in peers else ""
        return PeerStopped(sender, self.reason, who + ("; it can go on from its last state" if self.resumes else ""))

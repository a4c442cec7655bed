"""What an observer in the same process sees of a party: its messages at both ends and the facts it notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from securevfl.runtime.codec import Message


@dataclass(frozen=True)
class Event:
    """One message as a party saw it; for transcripts."""

    direction: Literal["send", "recv"]
    me: str
    peer: str
    subchannel: str
    message: Message
    nbytes: int


class Observer(ABC):
    """Sees in this process what parties do: their messages at both ends, and what they note beside."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """See one message that was sent, or that has come."""

    @abstractmethod
    def note(self, me: str, fact: object) -> None:
        """See one fact that this party has noted (`securevfl.protocols.observations`)."""

"""Interface of an observer, which receives the messages and the notes of all parties in its process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from securevfl.runtime.codec import Message


@dataclass(frozen=True)
class Event:
    """One message that one party has sent or received; a transcript is a list of these."""

    direction: Literal["send", "recv"]
    me: str
    peer: str
    subchannel: str
    message: Message
    nbytes: int


class Observer(ABC):
    """Receives all messages that parties send and receive in this process, and the facts that they report."""

    @abstractmethod
    def __call__(self, event: Event) -> None:
        """Receive one message that a party has sent or received."""

    @abstractmethod
    def note(self, me: str, fact: object) -> None:
        """Receive one fact that a party has noted (`securevfl.protocols.observations`)."""

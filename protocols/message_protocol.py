"""What a job can name as a protocol of messages, whatever it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

from securevfl.base.config import NamedOption


class MessageProtocol(NamedOption, ABC):
    """What a job can name and an audit can hold to its word, whatever it does."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """One of each kind that others see differently, by the name that checks and documents give it."""
        return {cls.name: cls()}

    @property
    def with_smallest_keys(self) -> Self:
        """The same with the smallest keys that are allowed, for tests."""
        return self

    @property
    def encrypts(self) -> bool:
        """Whether it works on ciphertexts, so that a round takes long."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether its calls take so long that a pool of processes gains."""
        return False

    @property
    @abstractmethod
    def strength(self) -> str:
        """Assumption and key strength, one line for people."""


class Release(NamedTuple):
    """A residual that went down before, in an earlier session: its number in this training, from 0, and how many of its
    openings were used then."""

    number: int
    used: int

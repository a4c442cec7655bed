"""Base class of message protocols that a job can name and an audit can check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

from securevfl.base.config import NamedOption


class MessageProtocol(NamedOption, ABC):
    """A message protocol that can be selected in a job and checked by the audit."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return one protocol of each variant that peers can distinguish, by its name in checks and documents."""
        return {cls.name: cls()}

    @property
    def with_smallest_keys(self) -> Self:
        """The same protocol with the smallest keys that are allowed, for tests."""
        return self

    @property
    def encrypts(self) -> bool:
        """Whether the protocol works on ciphertexts, so that a round takes long."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether its operations are slow enough to benefit from a pool of processes."""
        return False

    @property
    @abstractmethod
    def strength(self) -> str:
        """Cryptographic assumption and key length in one line."""


class Release(NamedTuple):
    """A residual that was already sent in an earlier session.

    Attributes:
        number: its number in this training, counted from 0.
        used: number of its openings that were used in that session.
    """

    number: int
    used: int

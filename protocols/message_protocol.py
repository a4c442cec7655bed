"""Base class of the message protocols that a job can name.

An audit can run each of them and compare its messages with the protocol's declarations. A residual is the derivative of
each row's loss by the model's outputs; the party with labels sends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

from securevfl.base.config import NamedOption


class MessageProtocol(NamedOption, ABC):
    """A message protocol that a job can select by its name, with its options as fields."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """Return a protocol for each variant whose messages differ, in a dict by the variant's name in documents."""
        return {cls.name: cls()}

    @property
    def with_smallest_keys(self) -> Self:
        """The same protocol with the smallest keys that are allowed, for tests."""
        return self

    @property
    def encrypts(self) -> bool:
        """Whether the protocol computes on ciphertexts, which makes a round slow."""
        return False

    @property
    def pooled(self) -> bool:
        """Whether its operations are slow enough to benefit from a pool of processes."""
        return False

    @property
    @abstractmethod
    def strength(self) -> str:
        """The cryptographic assumption and the key length, as one line of text."""


class Release(NamedTuple):
    """A residual that was already sent before the training was interrupted.

    Attributes:
        number: how many residuals the training had sent before it.
        used: number of gradients of it that were decrypted before the interruption.
    """

    number: int
    used: int

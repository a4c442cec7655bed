"""What a protocol declares of its messages: who sends each to whom, and what it tells its receiver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from securevfl.base.config import Named
from securevfl.base.roles import Role
from securevfl.runtime.channel import Channel, DisclosurePermit, DisclosureRecord
from securevfl.runtime.codec import Message

# The numbers that a sum is made of: reals up to a bound, or phases of a circle.


Phases = NDArray[np.uint32]


@dataclass(frozen=True)
class Reals:
    """Sums of real vectors, |v| <= bound, of `bits` a number on the line: floating point where they go in the clear,
    fixed point in Z_2^bits where they are masked. What is encrypted has the precision of its engine."""

    bound: float = 2.0**12
    bits: Literal[32, 64] = 64


@dataclass(frozen=True)
class Circle:
    """Sums of phases in Z_2^bits = [0, 2 pi); carried as uint32."""

    bits: Literal[16, 32] = 32


Space = Reals | Circle
DOUBLES = Reals()


KindOfSpace: TypeAlias = "type[Reals] | type[Circle]"


@dataclass(frozen=True)
class Reveal:
    """What a received message tells its receiver.

    `public`      nothing that is anyone's own
    `uniform`     random bits, whatever the data
    `ciphertext`  nothing without the key of `what`
    `output`      what the protocol is there to tell
    `plain`       `what`, in the clear
    """

    kind: Literal["public", "uniform", "ciphertext", "output", "plain"]
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" if self.what else self.kind


@dataclass(frozen=True)
class Declared:
    """One kind of message: who sends it to whom, and what the receiver learns from it.

    space: the kind of numbers it is sent with, where a protocol has another message for another kind. structured: its
    bytes are short pieces with a form of their own (points, sealed boxes, shares), neither an engine's format nor words
    of a ring. relays: it passes on bytes of others. renewed: a key that is sent anew every epoch if the engine asks.
    """

    message: type[Message]
    sender: Role
    receiver: Role
    reveals: Reveal
    space: KindOfSpace | None = None
    structured: bool = False
    relays: bool = False
    renewed: bool = False


def recast(
    declared: Iterable[Declared], cast: Mapping[Role, Sequence[Role]], *, space: KindOfSpace | None = None
) -> list[Declared]:
    """Declare the messages of a protocol in the roles of a run, each once. `cast`: which roles of the run play each
    part.

    With a `space`, declarations are left out that are sent with other numbers alone. A reveal that names a key's
    holder names it by its role in the run.
    """
    found: list[Declared] = []
    for item in declared:
        if space is not None and item.space not in (None, space):
            continue
        reveals = item.reveals
        if reveals.kind == "ciphertext" and reveals.what in cast:
            reveals = Reveal("ciphertext", " or ".join(cast[reveals.what]))
        senders, receivers = cast.get(item.sender, (item.sender,)), cast.get(item.receiver, (item.receiver,))
        found += [
            replace(item, sender=sender, receiver=receiver, reveals=reveals)
            for sender in senders
            for receiver in receivers
        ]
    return list(dict.fromkeys(found))


# Entries for what protocols tell that says nothing about anyone's rows.


def permit_sizes(channel: Channel, to: str) -> DisclosurePermit:
    """Enters numbers of rows, versions and digests of what is agreed, which tell no row."""
    return channel.permit(DisclosureRecord(to, "sizes", 1, 64))


VERDICT = 3  # bits of a verdict at most


def permit_stop_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Enters how a training goes: whether it stops, and in which rounds a loss rose."""
    return channel.permit(DisclosureRecord(to, "verdicts", 1, VERDICT))


def permit_evaluated_decision(channel: Channel, to: str) -> DisclosurePermit:
    """Enters a verdict that follows from labels of evaluated rows, as bits of these."""
    return channel.permit(DisclosureRecord(to, "labels", 1, VERDICT, about=(channel.me,), group="verdicts"))


# What a job can name as a protocol of messages, whatever it does.


class MessageProtocol(Named, ABC):
    """What a job can name and an audit can hold to its word, whatever it does."""

    @classmethod
    def variants(cls) -> dict[str, Self]:
        """One of each kind that others see differently, by the name that checks and documents give it."""
        return {cls.name: cls()}

    @property
    def quick(self) -> Self:
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

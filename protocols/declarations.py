"""Declarations: a protocol's statement about each of its messages. It names sender, receiver, and what is disclosed.

A role, such as "active" or "collector", is the part that a party plays in a protocol. A run combines several protocols,
and a party has one role in the run and another in each protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from securevfl.base.roles import Role
from securevfl.protocols.number_spaces import KindOfSpace
from securevfl.runtime.codec import Message


@dataclass(frozen=True)
class Reveal:
    """A description of the information that the receiver of a message obtains.

    The kinds are:

        public      nothing that depends on a party's data
        uniform     uniformly random bits, which are independent of all data
        ciphertext  nothing, unless the receiver has the key of the role that `what` names
        output      the result that the protocol is meant to give
        plain       the data that `what` describes, unencrypted

    Attributes:
        kind: one of the kinds above.
        what: for a ciphertext, the role that has the key; otherwise a description of the data for people.
    """

    kind: Literal["public", "uniform", "ciphertext", "output", "plain"]
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" if self.what else self.kind


@dataclass(frozen=True)
class MessageDeclaration:
    """One message type of a protocol, with its sender, its receiver, and the information that it discloses.

    Attributes:
        message: the class of the message.
        sender: role of the sender.
        receiver: role of the receiver.
        reveals: the information that the receiver obtains.
        space: the kind of numbers that messages of this type carry, if the protocol has one type for real numbers and
            another for phases; None if the type carries both.
        structured: whether the message consists of short items with a format (curve points, encrypted keys, shares of
            keys) instead of one vector of ciphertexts or ring elements.
        relays: whether the sender forwards bytes that it received from other parties.
        renewed: whether the message is a public key that some encryption schemes replace in every epoch.
    """

    message: type[Message]
    sender: Role
    receiver: Role
    reveals: Reveal
    space: KindOfSpace | None = None
    structured: bool = False
    relays: bool = False
    renewed: bool = False


def declare_in_roles(
    declarations: Iterable[MessageDeclaration], cast: Mapping[Role, Sequence[Role]], *, space: KindOfSpace | None = None
) -> list[MessageDeclaration]:
    """Translate the declarations of a protocol into the roles of a run.

    Args:
        declarations: declarations that name senders and receivers by their roles in the protocol.
        cast: maps each role of the protocol to the roles of the run whose parties play it.
        space: the kind of numbers of this run; messages that carry only another kind are omitted. None omits nothing.

    Returns:
        The declarations in roles of the run, without duplicates. A `Reveal` of a ciphertext names the key holder by its
        role in the run.
    """
    translated: list[MessageDeclaration] = []
    for item in declarations:
        if space is not None and item.space not in (None, space):
            continue
        reveals = item.reveals
        if reveals.kind == "ciphertext" and reveals.what in cast:
            reveals = Reveal("ciphertext", " or ".join(cast[reveals.what]))
        senders, receivers = cast.get(item.sender, (item.sender,)), cast.get(item.receiver, (item.receiver,))
        translated += [
            replace(item, sender=sender, receiver=receiver, reveals=reveals)
            for sender in senders
            for receiver in receivers
        ]
    return list(dict.fromkeys(translated))

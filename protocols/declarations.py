"""What a protocol declares about its messages: sender, receiver, and what the receiver learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from securevfl.base.roles import Role
from securevfl.protocols.number_spaces import KindOfSpace
from securevfl.runtime.codec import Message


@dataclass(frozen=True)
class Reveal:
    """What the receiver of a message learns.

    The kinds are:

        public      nothing that depends on a party's data
        uniform     random bits, independent of all data
        ciphertext  nothing without the key of the role `what`
        output      the intended output of the protocol
        plain       `what`, in the clear

    Attributes:
        kind: see above.
        what: a role, or a description for people.
    """

    kind: Literal["public", "uniform", "ciphertext", "output", "plain"]
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}" if self.what else self.kind


@dataclass(frozen=True)
class MessageDeclaration:
    """One message type of a protocol, with its sender, its receiver, and what the receiver learns.

    Attributes:
        message: the message type.
        sender: role of the sender.
        receiver: role of the receiver.
        reveals: what the receiver learns.
        space: the kind of numbers that the message type is for, if the protocol has another type for other numbers.
        structured: the message consists of short structured items (points, encrypted keys, shares) and not of
            ciphertexts of an engine or elements of a ring.
        relays: the sender forwards bytes of other parties.
        renewed: the message is a key that is sent again in every epoch if the engine asks for that.
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
        declarations: declarations in the roles of the protocol.
        cast: by role of the protocol, the roles of the run that play it.
        space: if given, omit messages that are only for other numbers.

    Returns:
        The declarations without duplicates. A `Reveal` of a ciphertext names the key holder by its role in the run.
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

"""What a protocol declares of its messages: who sends each to whom, and what it tells its receiver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from securevfl.base.roles import Role
from securevfl.protocols.number_spaces import KindOfSpace
from securevfl.runtime.codec import Message


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
class MessageDeclaration:
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


def declare_in_roles(
    declared: Iterable[MessageDeclaration], cast: Mapping[Role, Sequence[Role]], *, space: KindOfSpace | None = None
) -> list[MessageDeclaration]:
    """Declare the messages of a protocol in the roles of a run, each once. `cast`: which roles of the run play each
    part.

    With a `space`, declarations are left out that are sent with other numbers alone. A reveal that names a key's
    holder names it by its role in the run.
    """
    found: list[MessageDeclaration] = []
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

"""A record of entropy: the bytes that each thread draws from the operating system, and the private keys that it
generates.

A slow reference (`reference`) then computes the expected messages from the draws. So a check notices if entropy is lost
between a long draw and a message, even if the message looks random.
"""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from securevfl.crypto.key_agreement import KeyPair


class Drawn:
    """Random bytes and X25519 private keys in order, by the name of the thread that drew them."""

    def __init__(self) -> None:
        self.draws: dict[str, list[bytes]] = defaultdict(list)
        self.keys: dict[str, list[X25519PrivateKey]] = defaultdict(list)

    def of_size(self, who: str, size: int) -> list[bytes]:
        """Return the draws of `size` bytes by one thread."""
        return [draw for draw in self.draws[who] if len(draw) == size]

    def here(self) -> list[bytes]:
        """Return the draws of the calling thread."""
        return self.draws[threading.current_thread().name]


@contextmanager
def recorded() -> Iterator[Drawn]:
    """Record all bytes that this process draws from the operating system while the block runs."""
    drawn = Drawn()

    def noting(original: Any) -> Any:
        def draw(size: int) -> bytes:
            drawn_bytes: bytes = original(size)
            drawn.draws[threading.current_thread().name].append(drawn_bytes)
            return drawn_bytes

        return draw

    make = KeyPair.__init__

    def noting_key(self: KeyPair) -> None:
        make(self)
        drawn.keys[threading.current_thread().name].append(self._private)

    with ExitStack() as stack:
        for owner, name in ((os, "urandom"), (random, "_urandom")):
            stack.enter_context(mock.patch.object(owner, name, noting(getattr(owner, name))))
        stack.enter_context(mock.patch.object(KeyPair, "__init__", noting_key))
        yield drawn

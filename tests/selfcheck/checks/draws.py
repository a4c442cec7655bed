"""Record of the sources of randomness during a run.

generator   numpy or the standard library's generator is used inside crypto/ or protocols/
short       fewer than 16 bytes are drawn from the operating system for one secret
nonce       one (key, nonce) of ChaCha20 is used for two streams at one party, or for more than two in all
weak        a key whose bytes are not those of a random key
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from securevfl.audit.transcript_checks import Outcome
from securevfl.crypto import prg, wrapping

_FEWEST_BYTES = 16
_FEWEST_DISTINCT = 16  # distinct bytes of 32; fewer occur by chance once in 10^16
_AGAIN = (  # streams that are generated again deliberately: they hide nothing, or the check `stored` recomputes them
    "public",
    "trees of a party's own",
    "cosines of a party's own",
    "folds of a party's own",
    "frequencies",
    "offset",
    "mask of a stored payload",
    "marks of a stored payload",
)
_INSIDE = ("securevfl.crypto", "securevfl.protocols")


class Draws:
    """The random numbers of all parties, whose threads record them here."""

    def __init__(self) -> None:
        self.generators: set[str] = set()
        self.short: set[str] = set()
        self.streams: dict[tuple[bytes, bytes], Counter[str]] = defaultdict(Counter)
        self.keys: list[tuple[str, bytes]] = []
        self.public: set[bytes] = set()  # keys of streams that may be derived again
        self.lock = threading.Lock()

    def outcome(self) -> Outcome:
        """Return the findings about the recorded randomness."""
        outcome = Outcome()
        for where in sorted(self.generators):
            outcome.add("generator", where, "takes numbers from a generator that is not for secrets")
        for where in sorted(self.short):
            outcome.add("short", where, f"draws fewer than {_FEWEST_BYTES} bytes for a secret")
        for (key, _), uses in self.streams.items():
            if key in self.public:
                continue
            if max(uses.values()) > 1 or len(uses) > 2:
                outcome.add("nonce", ", ".join(sorted(uses)), "one key and nonce make several streams")
                break
        if any(len(set(key)) < _FEWEST_DISTINCT for _, key in self.keys):
            outcome.add("weak", "keys", "a 32-byte key has the bytes of a short one")
        return outcome


def _caller() -> str | None:
    """Return the innermost module of crypto/ or protocols/ on the stack; None if the call did not come through one."""
    frame = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_INSIDE):
            return module
        if module.startswith("securevfl.") and not module.startswith(("securevfl.audit", "selfcheck")):
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None


@contextmanager
def watched() -> Iterator[Draws]:
    """Record all random numbers of this process while the block runs."""
    draws = Draws()
    with ExitStack() as stack:
        for owner, name in ((os, "urandom"), (random, "_urandom")):
            stack.enter_context(mock.patch.object(owner, name, _os_draw(draws, getattr(owner, name))))
        for owner, name in (
            (np.random, "default_rng"),
            (np.random, "random"),
            (np.random, "randint"),
            (np.random, "bytes"),
            (np.random, "normal"),
            (random, "random"),
            (random, "randrange"),
            (random, "getrandbits"),
            (random, "randbytes"),
        ):
            stack.enter_context(mock.patch.object(owner, name, _generator(draws, getattr(owner, name))))
        stack.enter_context(mock.patch.object(prg, "Cipher", _stream(draws, Cipher)))
        stack.enter_context(mock.patch.object(prg.Prg, "__init__", _keyed(draws, prg.Prg.__init__)))
        for module in (wrapping,):
            stack.enter_context(mock.patch.object(module, "ChaCha20Poly1305", _sealer(draws, ChaCha20Poly1305)))
        yield draws


def _os_draw(draws: Draws, original: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def draw(size: int) -> bytes:
        where = _caller()
        if where is not None and size < _FEWEST_BYTES:
            with draws.lock:
                draws.short.add(where)
        return original(size)

    return draw


def _generator(draws: Draws, original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **keys: Any) -> Any:
        where = _caller()
        if where is not None:
            with draws.lock:
                draws.generators.add(where)
        return original(*args, **keys)

    return make


def _stream(draws: Draws, original: Callable[..., Any]) -> Callable[..., Any]:
    def cipher(algorithm: Any, mode: None) -> Any:
        with draws.lock:
            draws.streams[bytes(algorithm.key), bytes(algorithm.nonce)][threading.current_thread().name] += 1
        return original(algorithm, mode=mode)

    return cipher


def _keyed(draws: Draws, original: Callable[..., None]) -> Callable[..., None]:
    def make(self: Any, key: bytes, label: str) -> None:
        with draws.lock:
            draws.keys.append((label, key))
        original(self, key, label)
        if label.startswith(_AGAIN):
            with draws.lock:
                draws.public.add(self._key)

    return make


def _sealer(draws: Draws, original: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    class Sealer:
        def __init__(self, key: bytes) -> None:
            self._key, self._inner = key, original(key)

        def encrypt(self, nonce: bytes, data: bytes, associated: bytes | None) -> Any:
            with draws.lock:
                draws.streams[self._key, b"aead" + nonce][threading.current_thread().name] += 1
            return self._inner.encrypt(nonce, data, associated)

        def decrypt(self, nonce: bytes, data: bytes, associated: bytes | None) -> Any:
            return self._inner.decrypt(nonce, data, associated)

    return Sealer

"""Opened values as words of few bits: a count among n rows needs few, and a word of k bits tells k bits at most.

All levels that a value may open to, q / 2^drop of them, are parted into 2^k stretches of one length, and only the
number of the stretch that a value lies in is sent. It is a function of the value that would be opened otherwise, so
whatever is said of that value's distance from one without noise holds of its word. What the evaluator asked for has
no part in it: one that multiplies by other numbers than it should gets k bits of these. Masks are uniform, so the
place of a value in its stretch is uniform too, and the error of a word is that of a rounding to whole words
(`word_error`).

Beside the columns the first LEAST checks are opened, as words too, and no others.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.opening_checks import TEST_DEVIATIONS
from securevfl.errors import ConfigError

MAX_WORD_BITS = 32  # of a word


def word_size(word: int) -> int:
    """Return the bytes that a word of so many bits takes."""
    return -(-word // 8)


def cut_words(values: Floats, levels: float, word: int) -> bytes:
    """Return the words of these values (m,), each within half of the levels either way."""
    check_word_bits(word)
    words = np.floor(values * (2.0**word / levels)).astype(np.int64) % (1 << word)
    return words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : word_size(word)].tobytes()


def read_words(body: bytes, levels: float, word: int) -> Floats:
    """Return the middle of the stretch that each word names, in levels."""
    whole = np.zeros((len(body) // word_size(word), 4), np.uint8)
    whole[:, : word_size(word)] = np.frombuffer(body, np.uint8).reshape(-1, word_size(word))
    words = whole.view("<u4")[:, 0].astype(np.float64)
    return np.asarray((words + 0.5) * (levels / 2.0**word))


def word_error(rho: Floats, levels: float, word: int) -> Floats:
    """Return (checks,): how far words may move each test of a check (d x checks), in levels."""
    step = levels / 2.0**word
    return np.asarray(TEST_DEVIATIONS * step * np.sqrt((1 + (rho**2).sum(axis=0)) / 12))


def check_word_bits(word: int) -> None:
    """ConfigError for a word of an impossible number of bits."""
    if not 1 <= word <= MAX_WORD_BITS:
        raise ConfigError(f"a word of 1 to {MAX_WORD_BITS} bits was expected, got {word} bits; take fewer rows")

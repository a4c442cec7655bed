"""Decrypted values as words of few bits: a count among n rows needs few bits, and a word of k bits reveals at most k.

The q / 2^drop levels of a value are divided into 2^k intervals of equal length, and only the number of the interval is
sent. It is a function of the value that would be sent otherwise, so every statement about the distance of that value
from a noise-free one holds for its word too. The evaluator cannot influence this: if it multiplies by other numbers, it
receives k bits of these. Masks are uniform, so the position of a value in its interval is uniform too, and the error of
a word is that of rounding to words (`word_error`).

Besides the columns, only the first MIN_CHECKS checks are sent, as words too.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.opening_checks import TEST_DEVIATIONS
from securevfl.errors import ConfigError

MAX_WORD_BITS = 32


def word_size(word: int) -> int:
    """Return the bytes of a word of `word` bits."""
    return -(-word // 8)


def cut_words(values: Floats, levels: float, word: int) -> bytes:
    """Return the words of values.

    Args:
        values: centred values (m,) in levels.
        levels: number of levels.
        word: bits of a word.

    Returns:
        The words as bytes.
    """
    check_word_bits(word)
    words = np.floor(values * (2.0**word / levels)).astype(np.int64) % (1 << word)
    return words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : word_size(word)].tobytes()


def read_words(body: bytes, levels: float, word: int) -> Floats:
    """Return the middle of the interval of each word.

    Args:
        body: the words as bytes.
        levels: number of levels.
        word: bits of a word.

    Returns:
        The values (m,) in levels.
    """
    padded = np.zeros((len(body) // word_size(word), 4), np.uint8)
    padded[:, : word_size(word)] = np.frombuffer(body, np.uint8).reshape(-1, word_size(word))
    words = padded.view("<u4")[:, 0].astype(np.float64)
    return np.asarray((words + 0.5) * (levels / 2.0**word))


def word_error(rho: Floats, levels: float, word: int) -> Floats:
    """Return how far words may move each test.

    Args:
        rho: weights (d, checks) of the checks.
        levels: number of levels.
        word: bits of a word.

    Returns:
        The additional tolerances (checks,) in levels.
    """
    step = levels / 2.0**word
    return np.asarray(TEST_DEVIATIONS * step * np.sqrt((1 + (rho**2).sum(axis=0)) / 12))


def check_word_bits(word: int) -> None:
    """Check the size of a word.

    Args:
        word: its bits.

    Raises:
        ConfigError: if the size is impossible.
    """
    if not 1 <= word <= MAX_WORD_BITS:
        raise ConfigError(
            f"decrypted values cannot have words of {word} bits",
            f"use at most {MAX_WORD_BITS} bits, which needs fewer rows",
            code="SVFL-CRYPTO-PARAMETERS",
        )

"""Decrypted values cut to a few bits ("words"), as many as a count needs, so that a value reveals no more bits.

A key holder decrypts masked products for an evaluator. A product can be a count, for example the number of rows of a
class in a bin. A decrypted value is one of many integers ("levels"). The levels are divided into 2^k intervals of equal
length, and the holder sends only the index of a value's interval, a word of k bits. It computes the word from the value
that it would send otherwise, so the word reveals no more about the key. An evaluator that multiplies by other numbers
than 0 and 1, to learn more than a count, still receives only k bits for each product. Masks are uniform, so the
position of a value in its interval is uniform too, and the error of a word is a rounding error (`word_error`).

Check values (opening_checks.py) are sent as words too, but only the first MIN_CHECKS.
"""

from __future__ import annotations

import numpy as np

from securevfl.base.arrays import Floats
from securevfl.crypto.kernel.opening_checks import TEST_DEVIATIONS
from securevfl.errors import ConfigError

MAX_WORD_BITS = 32


def word_size(word: int) -> int:
    """Return the number of bytes of a word of `word` bits."""
    return -(-word // 8)


def cut_words(values: Floats, levels: float, word: int) -> bytes:
    """Cut values to words.

    Args:
        values: m values as integers in [-levels / 2, levels / 2), an array (m,).
        levels: number of possible values.
        word: number of bits of a word.

    Returns:
        The words as bytes.
    """
    check_word_bits(word)
    words = np.floor(values * (2.0**word / levels)).astype(np.int64) % (1 << word)
    return words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, : word_size(word)].tobytes()


def read_words(body: bytes, levels: float, word: int) -> Floats:
    """Read words, and return for each word the value in the middle of its interval.

    Args:
        body: m words as bytes.
        levels: number of possible values.
        word: number of bits of a word.

    Returns:
        The values (m,).
    """
    padded = np.zeros((len(body) // word_size(word), 4), np.uint8)
    padded[:, : word_size(word)] = np.frombuffer(body, np.uint8).reshape(-1, word_size(word))
    words = padded.view("<u4")[:, 0].astype(np.float64)
    return np.asarray((words + 0.5) * (levels / 2.0**word))


def word_error(rho: Floats, levels: float, word: int) -> Floats:
    """Return the additional tolerance that each check needs because values were cut to words.

    Args:
        rho: weights of the columns in the checks (d, checks).
        levels: number of possible values.
        word: number of bits of a word.

    Returns:
        The additional tolerances (checks,), in levels.
    """
    step = levels / 2.0**word
    return np.asarray(TEST_DEVIATIONS * step * np.sqrt((1 + (rho**2).sum(axis=0)) / 12))


def check_word_bits(word: int) -> None:
    """Check the number of bits of a word.

    Args:
        word: the number of bits.

    Raises:
        ConfigError: if the number is not between 1 and `MAX_WORD_BITS`.
    """
    if not 1 <= word <= MAX_WORD_BITS:
        raise ConfigError(
            f"decrypted values cannot be cut to {word} bits",
            f"use fewer rows, so that 1 to {MAX_WORD_BITS} bits suffice",
            code="SVFL-CRYPTO-PARAMETERS",
        )

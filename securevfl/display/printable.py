"""Text without characters that control a terminal or reverse the direction of text on a page."""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and line break
    "\u2028\u2029\ud800-\udfff"  # further line breaks, and halves of characters, which no file can contain
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # characters that change the direction of text
)


def printable(text: str) -> str:
    """Return a text with control characters and direction marks as escape sequences, such as \\x1b."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)

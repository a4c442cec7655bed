"""The probabilities of values that are off by one in docs/proof.md are those that the engine computes."""

import math
import re
from pathlib import Path

import pytest

from securevfl.protocols.shares.share_schemes import SHARE_SCHEMES

PAGE = Path(__file__).parents[2] / "docs" / "proof.md"
ROWS, COLUMNS = 100, 2_048
ROWS_OF_BITS = {40: 600, 48: 600, 56: 9_000}
"""The size of the entries by the number of bits L, as the page states them below its table."""


def rounded_up(value: float) -> float:
    """Return a value rounded up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit


@pytest.mark.parametrize("bits", ROWS_OF_BITS)
def test_bounds_of_the_page_are_the_engine_s(bits: int) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "products of 100 rows and 2,048 columns" in " ".join(text.split())
    row = re.search(rf"^\| (?:\d+ )?to {bits} \|.*\| ([\d.e-]+), ([\d.e-]+) \|$", text, re.MULTILINE)
    assert row is not None
    stated, measured = map(float, row.groups())
    bound = SHARE_SCHEMES["own"](bits).error_rate(ROWS, 1, COLUMNS, ROWS_OF_BITS[bits])
    assert bound <= rounded_up(bound) * (1 + 1e-9)
    assert stated == pytest.approx(rounded_up(bound), rel=0.03)
    assert measured <= bound

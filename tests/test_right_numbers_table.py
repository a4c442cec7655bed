"""The smallest table of `right_numbers.py`: every point has a figure, and none exceeds its bound.

It takes several seconds, because each figure needs a training.
"""

from __future__ import annotations

import pytest

from tests import right_numbers


@pytest.mark.slow
def test_every_point_is_within_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert right_numbers.main(smallest=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    assert {line[0] for line in lines} == set("123456")

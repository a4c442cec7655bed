"""A short search of `tests.security.fuzz`: every input ends as it should."""

import pytest

from tests.security import fuzz


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_every_input_ends_with_an_error_that_has_a_code(target: str) -> None:
    fuzz.search(target, 60, 1)

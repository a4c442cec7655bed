"""The option and the marks of the packaged suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--securevfl-job", metavar="JOB.TOML", default=None, help="audit the protocol of this job")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: minutes; left out of quick runs")

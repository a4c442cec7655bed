"""How many files of the package one round goes through: what a reader opens who follows it from end to end."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import securevfl as vfl
from securevfl.runtime import eventlog

ROOT = Path(vfl.__file__).resolve().parent.parent
LEAKS = "rank", "fresh_equations", "single_passive", "columns"
ROUNDS = range(5, 8)  # of which calls are counted: what is done once is over

# with two parties, and three where there is a tree; a bound is what was reached, to be lowered and not raised
MOST = {"open": 16, "ckks": 24, "tree": 27, "shares": 17}
ENTERED = 63  # by one training on shares, from its first call to its last; held as those of a round are


@pytest.fixture(autouse=True)
def _no_log_is_written() -> Iterator[None]:
    level = eventlog.LOGGER.level
    eventlog.LOGGER.setLevel(logging.WARNING)
    yield
    eventlog.LOGGER.setLevel(level)


@pytest.mark.parametrize("setting", MOST)
def test_a_round_goes_through_few_files(setting: str) -> None:
    counted = threading.Event()

    def after(done: int, of: int) -> None:
        (counted.set if done in ROUNDS else counted.clear)()

    entered = _entered(setting, counted, after)
    assert 10 < len(entered) <= MOST[setting], sorted(entered)


def test_a_training_on_shares_enters_few_files() -> None:
    always = threading.Event()
    always.set()
    entered = _entered("shares", always, None)
    assert 30 < len(entered) <= ENTERED, sorted(entered)


def _entered(setting: str, counted: threading.Event, on_round: Callable[[int, int], None] | None) -> set[str]:
    """The files of the package in which a function is called during a training, while `counted` is set."""
    files: set[str] = set()

    def called(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        runs = code.co_flags & inspect.CO_OPTIMIZED  # a function; bodies of classes and modules run at imports
        if event == "call" and counted.is_set() and runs and "<" not in code.co_filename:
            files.add(code.co_filename)

    threading.setprofile(called)
    sys.setprofile(called)
    try:
        vfl.simulate(_job(setting), _parties(3 if setting == "tree" else 2), on_round=on_round)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {str(path.relative_to(ROOT)) for path in (Path(name).resolve() for name in files) if _ours(path)}


def _ours(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ("",)
    return parts[0] in ("securevfl", "crypto", "protocols")


def _job(setting: str) -> vfl.Job:
    own: dict[str, Any] = {"model": vfl.Logistic(), "batch_size": 128, "epochs": 4}
    if setting == "shares":
        return vfl.Job(**own, protocol=vfl.Protocol(shares=vfl.Shares(chunk=64)))
    sums = vfl.TreeSum() if setting == "tree" else vfl.DirectSum()
    residual = vfl.OpenResidual() if setting == "open" else vfl.SealedResidual(engine=vfl.Ckks())
    protocol = vfl.Protocol(sum=sums, residual=residual)
    return vfl.Job(**own, optimizer=vfl.FedSGD(lr=0.1), protocol=protocol, accepts=LEAKS)


def _parties(number: int) -> list[vfl.Party]:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((1024, 9))
    y = (X.sum(axis=1) + generator.standard_normal(1024) > 0).astype(int)
    cut = np.array_split(np.arange(9), number)
    return [vfl.Party(f"p{k}", X[:, own], None if k else y, aligned=True) for k, own in enumerate(cut)]

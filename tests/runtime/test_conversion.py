"""Threads convert values to a class one after the other, because msgspec can crash when two use a new class at once."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from securevfl.base.conversion import convert


class Number:
    """A type that msgspec does not know."""


@dataclass(frozen=True)
class Fields:
    number: Number


def test_threads_convert_one_after_the_other() -> None:
    running, most = [0], [0]

    def hook(kind: Any, value: Any) -> Number:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.01)
        running[0] -= 1
        return Number()

    threads = [threading.Thread(target=convert, args=({"number": 3}, Fields), kwargs={"hook": hook}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]

"""The entry point of the command `securevfl`: it ends on SIGTERM with a message, also while modules are imported.

The imports take about a second. Without a handler, SIGTERM would end the process in this time without a word. Commands
that connect to other parties replace the handler (`securevfl.cli.signals`).
"""

from __future__ import annotations

import os
import signal
from types import FrameType

MESSAGE = b"stopped by SIGTERM. Run the same command again.\n"


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _stop)
    from securevfl.cli.main import main as run

    run()


def _stop(number: int, frame: FrameType | None) -> None:
    """End the process at once: an exception could be lost in an import that is in progress."""
    os.write(2, MESSAGE)
    os._exit(128 + number)

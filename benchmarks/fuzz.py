"""Altered frames (mutants) sent to the decoder and to a live endpoint: which are refused, and whether memory grows.

    python benchmarks/fuzz.py --frames 1000000 --live 2500 --json out/fuzz.json

A frame is one encoded message. The decoder and the inbox accept every frame that is well formed; TLS, and the
encryption of packets through a hub, guarantee that its bytes are those that were sent. The fields of the row are:
frames, refused, passed and crashed frames, grown_bytes (growth of memory after the first tenth), and seconds. For the
rows of the live endpoint see fuzz_live.py.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from pathlib import Path

import numpy as np
from fuzz_live import live, resident

from securevfl.errors import ProtocolError
from securevfl.protocols.sums.direct_sum import Summand
from securevfl.runtime.codec import decode_message, encode_frame
from securevfl.runtime.inbox import Inbox
from securevfl.training.text_table import format_table

SESSION = b"s" * 16


def mutate(good: bytes, draw: random.Random) -> bytes:
    """Change, insert, remove or cut off one to four bytes."""
    data = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at:at] = draw.randbytes(draw.randint(1, 5))
            case 2 if len(data) > 8:
                del data[at : at + draw.randint(1, 4)]
            case _:
                data = data[: max(8, at)]
    return bytes(data)


def main() -> None:
    """Run the benchmark from the command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--frames", type=int, default=1_000_000)
    options.add_argument("--live", type=int, default=2500, help="mutants of each kind")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", type=Path, default=Path("out/fuzz.json"))
    arguments = options.parse_args()
    draw = random.Random(arguments.seed)
    good = encode_frame(Summand(np.arange(6.0).reshape(3, 2)), session=SESSION, sender="shop", receiver="bank")
    refused = passed = crashed = 0
    early = 0
    started = time.perf_counter()
    for k in range(arguments.frames):
        data = mutate(good, draw)
        inbox = Inbox("bank", ["shop"], SESSION, max_frame=4096)
        try:
            inbox.deliver(data)
            frame = inbox.take("shop", "", 0.0).frame
            decode_message(Summand, frame.payload)
        except ProtocolError:
            refused += 1
        except Exception:  # a crash, which must not happen, is counted
            crashed += 1
        else:
            passed += data != good
        if k == arguments.frames // 10:
            early = resident()
    row: dict[str, str | int | float] = {
        "frames": arguments.frames,
        "refused": refused,
        "passed": passed,
        "crashed": crashed,
        "grown_bytes": resident() - early,
        "seconds": time.perf_counter() - started,
    }
    print(format_table([row]))
    rows = live(arguments.live, mutate, arguments.seed)
    print(format_table(rows))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {"platform": platform.platform(), "python": platform.python_version()}
    arguments.json.write_text(
        json.dumps({"schema": "securevfl.bench.fuzz/2", "machine": machine, "decoder": row, "live": rows}, indent=1)
    )


if __name__ == "__main__":
    main()

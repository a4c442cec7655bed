"""Load on the gateway with a real HTTP client: answers a second, quantiles of their time, what was refused.

    securevfl serve ... ; securevfl score ... --http 127.0.0.1:8080 --http-token token &
    python -m benchmarks.gateway_load http://127.0.0.1:8080 --token token --ids ids.txt --requests 2000 --at-once 100

The ids of the file, one a line, are asked about in order, one a request. Needs httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np


async def load(url: str, token: str, ids: list[str], at_once: int) -> dict[str, object]:
    """Ask about each id in a request of its own, so many at once; return the figures."""
    seconds, states, left = list[float](), Counter[str](), iter(ids)
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120, limits=limits) as client:

        async def ask() -> None:
            for each in left:
                began = time.monotonic()
                answer = await client.post("/v1/scores", json={"rows": [{"id": each}]})
                seconds.append(time.monotonic() - began)
                ok = answer.status_code == 200
                states[answer.json()["scores"][0]["state"] if ok else f"HTTP {answer.status_code}"] += 1

        began = time.monotonic()
        await asyncio.gather(*(ask() for _ in range(at_once)))
        whole = time.monotonic() - began
    p50, p99 = np.quantile(seconds, [0.5, 0.99]) * 1e3
    figures = {"answers a second": round(len(seconds) / whole, 1), "p50 ms": round(p50, 1), "p99 ms": round(p99, 1)}
    return {"requests": len(seconds), "at once": at_once} | figures | {"states": dict(states)}


def main() -> None:
    """Print the figures of one load as JSON."""
    given = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    given.add_argument("url")
    given.add_argument("--token", type=Path, required=True, help="file of the gateway's token")
    given.add_argument("--ids", type=Path, required=True, help="file of ids, one a line")
    given.add_argument("--requests", type=int, default=2000)
    given.add_argument("--at-once", type=int, default=100)
    asked = given.parse_args()
    ids = asked.ids.read_text(encoding="utf-8").split("\n")
    chosen = [each for each in ids if each][: asked.requests]
    print(json.dumps(asyncio.run(load(asked.url, asked.token.read_text().strip(), chosen, asked.at_once)), indent=1))


if __name__ == "__main__":
    main()

"""Strangers at a port: silent connections, half-open TLS handshakes and slow requests, which come back when closed.

`python -m tests.transport.strangers PORT SILENT HALF_OPEN SLOW TLS` prints "up" once every stranger has connected, and
goes on until it is killed. It is a process of its own because it needs more descriptors than the server may open.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import sys
from contextlib import suppress

HEAD = b"POST /v1/scores HTTP/1.1\r\nHost: bank\r\nContent-Length: 400\r\nX: "
PAUSE_SECONDS = 0.5


def client_hello() -> bytes:
    """Return the first flight of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    handshake = context.wrap_bio(incoming, outgoing, server_hostname="bank")
    with suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


async def stranger(port: int, first: bytes, drip: bytes, context: ssl.SSLContext | None, up: asyncio.Semaphore) -> None:
    """Connect, send something, then a byte now and then, and come back when the connection is closed."""
    arrived, name = False, None if context is None else "bank"
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name),
                    20,
                )
            finally:
                if not arrived:
                    up.release()
                    arrived = True
            with suppress(OSError):
                writer.write(first)
                while not reader.at_eof() and not writer.is_closing():
                    await asyncio.sleep(PAUSE_SECONDS)
                    if drip:
                        writer.write(drip)
                        await writer.drain()
            writer.close()
        await asyncio.sleep(PAUSE_SECONDS)


async def main() -> None:
    """Let all strangers connect."""
    port, silent, half_open, slow = map(int, sys.argv[1:5])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    context = None
    if sys.argv[5] == "gateway":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    hello, up = client_hello(), asyncio.Semaphore(0)
    slow_first = HEAD if context else hello[:20]
    tasks = [asyncio.create_task(stranger(port, b"", b"", None, up)) for _ in range(silent)]
    tasks += [asyncio.create_task(stranger(port, hello, b"", None, up)) for _ in range(half_open)]
    tasks += [asyncio.create_task(stranger(port, slow_first, b"a", context, up)) for _ in range(slow)]
    for _ in tasks:
        await up.acquire()
    print("up", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main())

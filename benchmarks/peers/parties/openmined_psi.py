"""OpenMined's PSI: the client learns the common ids, the server the number of queried ids. A socket carries messages.

Rank 0 is the client. The library has no transport, so each message is sent with its length in eight bytes.
"""

from __future__ import annotations

import contextlib
import csv
import socket
import time
from pathlib import Path

import private_set_intersection.python as psi
from told import Work, task

FALSE_POSITIVES = 1e-9
READY = b"!"


def send(line: socket.socket, message: bytes) -> None:
    """Send a message with its length."""
    line.sendall(len(message).to_bytes(8, "little") + message)


def receive(line: socket.socket) -> bytes:
    """Receive a message."""
    return _exactly(line, int.from_bytes(_exactly(line, 8), "little"))


def _exactly(line: socket.socket, size: int) -> bytes:
    result = bytearray()
    while len(result) < size:
        piece = line.recv(min(1 << 20, size - len(result)))
        if not piece:
            raise ConnectionError("the other party has gone")
        result += piece
    return bytes(result)


def ids_of(path: Path) -> list[str]:
    """Read ids from a file."""
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        return [row["id"] for row in rows]


def connect(port: int) -> socket.socket:
    """Connect to a port, and retry until the server listens."""
    for _ in range(600):
        with contextlib.suppress(OSError):
            line = socket.create_connection(("127.0.0.1", port))
            if line.recv(1) == READY:  # a relay accepts connections before the server listens, and drops them
                return line
        time.sleep(0.1)
    raise ConnectionError("the server did not come up within a minute")


def client(arguments: dict) -> None:
    """Run the client."""
    with Work() as work:
        ids = ids_of(Path(arguments["tables"]) / "bank.csv")
        create_with_new_key = psi.client.CreateWithNewKey(True)
        line = connect(arguments["other"][0])
        send(line, len(ids).to_bytes(8, "little"))
        send(line, create_with_new_key.CreateRequest(ids).SerializeToString())
        setup, response = psi.ServerSetup(), psi.Response()
        setup.ParseFromString(receive(line))
        response.ParseFromString(receive(line))
        common = create_with_new_key.GetIntersection(setup, response)
        Path(f"{arguments['out']}.csv").write_text("".join(f"{ids[k]}\n" for k in sorted(common)))
    work.tell(arguments, common=len(common))


def server(arguments: dict) -> None:
    """Run the server."""
    listener = socket.create_server(("127.0.0.1", arguments["own"][0]))
    with Work() as work:
        ids = ids_of(Path(arguments["tables"]) / "shop.csv")
        create_with_new_key = psi.server.CreateWithNewKey(True)
        line, _ = listener.accept()
        line.sendall(READY)
        requested = int.from_bytes(receive(line), "little")
        request = psi.Request()
        request.ParseFromString(receive(line))
        setup = create_with_new_key.CreateSetupMessage(FALSE_POSITIVES, requested, ids, psi.DataStructure.GCS)
        send(line, setup.SerializeToString())
        send(line, create_with_new_key.ProcessRequest(request).SerializeToString())
    work.tell(arguments)


def main() -> None:
    """Run this party."""
    arguments = task()
    (server if arguments["rank"] else client)(arguments)


if __name__ == "__main__":
    main()

"""A TCP proxy that causes faults on request. benchmarks/faults.py and tests run one in front of a party's port."""

from __future__ import annotations

import contextlib
import socket
import threading


class Proxy:
    """Relays connections to a party's port, and cuts them or changes the relayed bytes on request."""

    def __init__(self, behind: int, port: int = 0) -> None:
        self.garble = False
        self._behind = behind
        self._lines: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                try:
                    back = socket.create_connection(("127.0.0.1", self._behind))
                except OSError:
                    front.close()
                    continue
                self._lines += [front, back]
                for pair in ((front, back), (back, front)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.garble:
                    self.garble = False
                    data = data[:-1] + bytes([data[-1] ^ 1])
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all connections."""
        lines, self._lines = self._lines, []
        for line in lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def close(self) -> None:
        """Stop relaying."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

"""A network cable that can be cut: forwards TCP to the platform, or breaks every connection and takes no new one."""

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class Cable:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)
        self._whole = True
        self._changing = threading.Lock()
        """A connection that is being made is cut with the others, or is not made."""
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._acceptor = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._whole = False
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        with self._changing:
            self._whole = False
            ends = list(self._ends)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole = True

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._changing:
                if not self._whole:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._ends |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        self._ends.discard(source)
        source.close()

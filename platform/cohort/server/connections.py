"""The web server's connections: waitress's, with limits on what a stranger can hold.

One loop of a process reads and writes all its connections; a request gets a thread only once it has arrived whole, and
its response leaves without one. What waitress does not do is here: deadlines and least rates, a limit on the body for
each address that is decided at the headers, and threads for worker calls that pages cannot take. Imports no Django.
"""

import logging
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal
from wsgiref.util import FileWrapper

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.buffers import ReadOnlyFileBasedBuffer
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher, WSGITask
from waitress.utilities import Error

HEAD_SECONDS = 10.0
"""From a request's first byte, or from the start of a connection, to the end of its headers."""
BODY_SECONDS = 20.0
"""A body may take so much longer than at LEAST_RATE, and so may what a client takes of a response."""
LEAST_RATE = 16 * 1024
"""Bytes a second, on the average since the body or the response began."""
IDLE_SECONDS = 120.0
"""Between two requests of a connection."""
CONNECTIONS = 500
"""Of one process. When there are more, those close first that have no whole request."""
HEADER_BYTES = 64 * 1024
BUFFER_BYTES = 1024 * 1024
"""Of a body or a response in memory; what is more lies in a temporary file."""
TURN_BYTES = 1024 * 1024
"""A client that takes a file as fast as it comes gets so much before the others have their turn."""
AHEAD_BYTES = 64 * 1024 * 1024
"""So much of a response is made before its client has taken it; files are sent without a thread, whatever their size.
"""

_MISREAD = re.compile(r"::ffff:(?P<four>[0-9.]+)$|\[(?P<six>[^\]]+)\]:[0-9]+$", re.IGNORECASE)
"""A last address of X-Forwarded-For that waitress misreads: IPv4 written as IPv6, or IPv6 with a port."""
Pool = Literal["pages", "workers", "files"]
Application = Callable[[dict[str, Any], Any], Any]
log = logging.getLogger(__name__)


class Busy(Error):  # type: ignore[misc]
    code = 503
    reason = "Service Unavailable"


class DiskFull(Error):  # type: ignore[misc]
    code = 507
    reason = "Insufficient Storage"


class Request(HTTPRequestParser):  # type: ignore[misc]
    """A request being read. A body that its address does not take is not read: the application answers by the
    headers alone, and the connection closes."""

    chunked: bool
    content_length: int

    def __init__(self, connection: "Connection", adj: Adjustments) -> None:
        super().__init__(adj)
        self._connection: Connection = connection
        self._server: Server = connection.server

    def received(self, data: bytes) -> int:
        try:
            taken = int(super().received(data))
        except OSError as error:  # of the temporary file
            log.error("no room for the body of a request: %s", error)
            self._read_no_body()
            self.error, self.completed = DiskFull("No room for the body."), True
        return len(data) if self._connection.unread else taken

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError as error:  # a number of more digits than Python reads
            raise ParsingError(f"a header is invalid: {error}") from None
        self.path: str = "/" + str(self.path).lstrip("/")  # as the application gets it
        if self.chunked:
            self.headers["TRANSFER_ENCODING"] = "chunked"
            self._read_no_body()
        elif self.content_length > self._server.small and self.content_length > self._server.body_limit(self._decoded):
            self._read_no_body()
        elif self.content_length > self._server.small and not self._server.has_room(self):
            self._read_no_body()
            self.error = Busy("Too many large bodies are being sent at once. Try again in a minute.")

    def _read_no_body(self) -> None:
        self._connection.unread = True
        self.body_rcv, self.chunked, self.content_length, self.expect_continue = None, False, 0, False
        self.headers["CONNECTION"], self.connection_close = "close", True

    @property
    def _decoded(self) -> str:
        return self.path.encode("latin-1").decode("utf-8", "replace")

    @property
    def pool(self) -> Pool:
        """Whose threads answer it."""
        if self.error or not self.path.startswith(self._server.workers):
            return "pages"
        return "files" if "/uploads/" in self.path or "/files/" in self.path else "workers"


def file_wrapper(file: Any, block_size: int = 8192) -> Any:
    """A file of this machine is sent by the loop, without a thread. One from elsewhere is read by the thread."""
    try:
        file.fileno()
    except (AttributeError, OSError):
        return FileWrapper(file, block_size)
    return ReadOnlyFileBasedBuffer(file, block_size)


class Task(WSGITask):  # type: ignore[misc]
    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ["wsgi.file_wrapper"] = file_wrapper
        if (forwarded := "HTTP_X_FORWARDED_FOR") in environ:
            environ[forwarded] = _MISREAD.sub(r"\g<four>\g<six>", environ[forwarded])
        return environ

    def set_close_on_finish(self) -> None:
        """But keep the connection after a response that has no body, and so no length: polls are answered 304."""
        if self.has_body or self.version == "1.0" or self.request.connection_close:
            super().set_close_on_finish()


class Connection(HTTPChannel):  # type: ignore[misc]
    task_class = Task
    close_when_flushed: bool

    def __init__(self, server: "Server", sock: socket.socket, addr: Any, adj: Adjustments, map: Any = None) -> None:
        self.began = server.clock()
        """When the request that is being read began, or the wait for one."""
        self._used = False
        self._sent, self._turn_ends = 0, TURN_BYTES
        self._sending: tuple[float, int] | None = None
        """Since when a response has waited for its client, and what had been sent by then."""
        self.unread = False
        """Whether the rest of what comes is the body of a request that was refused: nobody reads it."""
        self._drained: float | None = None
        """Since when nothing but such a rest is taken. To close at once would reset the connection, often before the
        client has read its answer."""
        self.parser_class = partial(Request, self)
        super().__init__(server, sock, addr, adj, map)

    def received(self, data: bytes) -> bool:
        if self.unread:
            return False
        before = self.request
        if before is None:
            self.began = self.server.clock()
        self._used = True
        done = bool(super().received(data))
        if before is not None and self.request is not None and self.request is not before:
            self.began = self.server.clock()
        return done

    def handle_write(self) -> None:
        self._turn_ends = self._sent + TURN_BYTES
        if not (self.unread and self.close_when_flushed):
            super().handle_write()
            return
        self._flush_exception(self._flush_some)
        if not self.total_outbufs_len and not self.will_close:
            self.close_when_flushed, self._drained = False, self.server.clock()
            self.socket.shutdown(socket.SHUT_WR)

    def readable(self) -> bool:
        return self._drained is not None or bool(super().readable())

    def send(self, data: bytes, do_close: bool = True) -> int:
        if self._sent > self._turn_ends:
            return 0
        sent = int(super().send(data, do_close=do_close))
        self._sent += sent
        return sent

    @property
    def is_served(self) -> bool:
        """Whether a whole request is here, or a response is on its way."""
        return bool(self.requests or self.total_outbufs_len)

    @property
    def has_headers(self) -> bool:
        """Whether a request is being read whose headers are here."""
        return self.request is not None and bool(self.request.headers_finished)

    def is_late(self, now: float) -> bool:
        """Whether its client has used up its time. Called about once a second."""
        if self.total_outbufs_len:
            since, sent = self._sending = self._sending or (now, self._sent)
            return now - since > BODY_SECONDS + (self._sent - sent) / LEAST_RATE
        self._sending = None
        if self._drained is not None:
            return now - self._drained > BODY_SECONDS
        if self.requests:
            self.began = now
            return False
        waited = now - self.began
        if self.request is None:
            return waited > (IDLE_SECONDS if self._used else HEAD_SECONDS)
        if not self.has_headers:
            return waited > HEAD_SECONDS
        return waited > HEAD_SECONDS + BODY_SECONDS + int(self.request.body_bytes_received) / LEAST_RATE

    def close_late(self) -> None:
        """With 408 where a request has begun. What a client did not take of its response is dropped."""
        if self.is_served:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if self.is_served or self.request is None:
            self.handle_close()
            return
        text = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        with self.requests_lock, self.outbuf_lock:
            self.outbufs[-1].append(text)
            self.total_outbufs_len += len(text)
            self.close_when_flushed = True


def without_body(application: Application) -> Application:
    """The application with HEAD as HTTP has it, which neither Django nor waitress sees to."""

    def answer(environ: dict[str, Any], start: Any) -> Any:
        response = application(environ, start)
        if environ["REQUEST_METHOD"] != "HEAD":
            return response
        if close := getattr(response, "close", None):
            close()
        return []

    return answer


class Server(TcpWSGIServer):  # type: ignore[misc]
    """Serves one listening socket; `map` holds all connections of the process.

    `body_limit`: most bytes of a body for a path; bodies of at most `small` bytes are taken anywhere. `room`: most
    bytes of the larger ones that are held at once, for each pool. `workers`: how the paths of the worker API begin.
    """

    channel_class = Connection

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        *,
        map: dict[int, Any],
        pools: Mapping[Pool, ThreadedTaskDispatcher],
        body_limit: Callable[[str], int],
        small: int,
        room: int,
        workers: str,
        trusted_proxy: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.body_limit, self.small, self.workers, self.clock = body_limit, small, workers, clock
        self._pools, self._room = pools, room
        self._checked = clock()
        proxy = {"trusted_proxy": "*", "trusted_proxy_headers": {"x-forwarded-for", "x-forwarded-proto"}}
        adj = Adjustments(
            ident="cohort",
            server_name="localhost",
            connection_limit=2 * CONNECTIONS,
            channel_request_lookahead=1,  # so that a client that leaves is noticed while its request waits
            log_socket_errors=False,
            max_request_header_size=HEADER_BYTES,
            max_request_body_size=1 << 62,  # each address has its own
            recv_bytes=64 * 1024,
            inbuf_overflow=BUFFER_BYTES,
            outbuf_overflow=BUFFER_BYTES,
            outbuf_high_watermark=AHEAD_BYTES,
            clear_untrusted_proxy_headers=True,
            **(proxy if trusted_proxy else {}),
        )
        super().__init__(
            without_body(application),
            map,
            _sock=listener,
            dispatcher=pools["pages"],
            adj=adj,
            sockinfo=(listener.family, listener.type, listener.proto, listener.getsockname()),
            bind_socket=False,
        )

    def add_task(self, task: Connection) -> None:
        self._pools[task.requests[0].pool].add_task(task)

    def has_room(self, request: Request) -> bool:
        """Whether its body may be read next to the large ones of the same pool that are being read or wait."""
        held = 0
        for channel in self.active_channels.values():
            for other in (channel.request, *channel.requests):
                if (
                    other
                    and other.headers_finished
                    and other.content_length > self.small
                    and other.pool == request.pool
                ):
                    held += other.content_length
        return held + int(request.content_length) <= self._room

    def handle_accept(self) -> None:
        super().handle_accept()
        if len(self.active_channels) > CONNECTIONS:
            waiting = [channel for channel in self.active_channels.values() if not channel.is_served]
            first = min(waiting, key=lambda channel: (channel.has_headers, channel.began), default=None)
            if first is not None:
                first.handle_close()

    def maintenance(self, now: float) -> None:
        """Nothing: waitress's own goes by the clock of the day, `close_late` does not."""

    def close_late(self) -> None:
        """Close the connections whose clients have used up their time; looks once a second at most."""
        now = self.clock()
        if now - self._checked < 1:
            return
        self._checked = now
        for channel in list(self.active_channels.values()):
            if channel.is_late(now):
                channel.close_late()

    def stop_accepting(self) -> None:
        wasyncore.dispatcher.close(self)

    def close_unused(self) -> int:
        """Close the connections without a whole request. Returns how many are left to be served."""
        channels = list(self.active_channels.values())
        for channel in channels:
            if not channel.is_served:
                channel.handle_close()
        return sum(channel.is_served for channel in channels)

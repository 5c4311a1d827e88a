"""A real SMTP server on this machine, as much of it as a mail relay needs: it takes messages, or refuses receivers."""

import email
import email.policy
import socketserver
import threading
from email.message import EmailMessage
from typing import Any


class SmtpServer(socketserver.ThreadingTCPServer):
    """As a context. `messages` has what it took; receivers in `refused` are answered with 550."""

    daemon_threads = True

    def __init__(self, *, refused: tuple[str, ...] = ()) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.refused = refused
        self.messages: list[EmailMessage] = []
        self.receivers: list[str] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> "SmtpServer":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()


class _Session(socketserver.StreamRequestHandler):
    server: SmtpServer

    def handle(self) -> None:
        self._answer("220 test")
        while line := self.rfile.readline():
            command = line.decode().strip()
            match command.upper().partition(" ")[0].partition(":")[0]:
                case "QUIT":
                    self._answer("221 bye")
                    return
                case "DATA":
                    self._answer("354 go")
                    self._take()
                case "RCPT" if any(name in command for name in self.server.refused):
                    self._answer("550 no such mailbox")
                case "RCPT":
                    self.server.receivers.append(command.partition("<")[2].partition(">")[0])
                    self._answer("250 ok")
                case _:
                    self._answer("250 ok")

    def _take(self) -> None:
        lines: list[bytes] = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        message = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.server.messages.append(message)
        self._answer("250 taken")

    def _answer(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

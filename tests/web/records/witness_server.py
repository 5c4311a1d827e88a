"""A witness of logs (c2sp.org/tlog-witness) over HTTP, one that checks consistency before it cosigns, and one whose
answers come a byte at a time."""

import base64
import hashlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cohort.evidence.checkpoint import Checkpoint, parse
from cohort.evidence.keys import parse_vkey
from cohort.evidence.merkle import verify_consistency
from cohort.evidence.note import NoteError, open_note

NAME = "witness.example/w1"
PUBLIC = bytes(range(32))
KEY_ID = hashlib.sha256(NAME.encode() + b"\n\x04" + PUBLIC).digest()[:4].hex()
VKEY = f"{NAME}+{KEY_ID}+{base64.b64encode(bytes([4]) + PUBLIC).decode()}"
NOTE = "test.example/log\n9\nAAAA\n\n— test.example/log AAAA\n"
PACE = 0.1
DRIPS = 200
"""After so many bytes an answer ends: without a deadline it is told another way, some 20 s later."""
OK = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"
OTHER_SIZE = b"HTTP/1.0 409 Conflict\r\nContent-Type: text/x.tlog.size\r\n\r\n"


@contextmanager
def serving(answer: Callable[[bytes], tuple[bytes, bytes]]) -> Iterator[str]:
    """The address of a witness that answers a request's body with (sent at once, and then a byte at a time)."""
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = self.rfile.read(length)
            if not body:  # who asked was ended between connecting and asking
                return
            at_once, dripped = answer(body)
            with suppress(OSError):  # who asked is gone
                self.wfile.write(at_once)
                for byte in dripped:
                    if ended.wait(PACE):
                        return
                    self.wfile.write(bytes([byte]))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()
            thread.join()


@contextmanager
def dripping(*answers: tuple[bytes, bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """(its address, the requests that it got) of a witness with these answers, one after the other."""
    bodies: list[bytes] = []

    def next_answer(body: bytes) -> tuple[bytes, bytes]:
        bodies.append(body)
        return answers[len(bodies) - 1]

    with serving(next_answer) as url:
        yield url, bodies


MOMENT = 1_795_000_000
"""At which the witness signs."""


class Witness:
    """A witness as c2sp.org/tlog-witness has it, for one log."""

    def __init__(self, log_vkeys: Callable[[], list[str]]) -> None:
        self.private = Ed25519PrivateKey.generate()
        self.name = "witness.example/w1"
        public = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = hashlib.sha256(self.name.encode() + b"\n\x04" + public).digest()[:4]
        self.vkey = f"{self.name}+{self.key_id.hex()}+{base64.b64encode(bytes([4]) + public).decode()}"
        self.log_vkeys = log_vkeys
        self.seen: Checkpoint | None = None
        self.sizes: list[int] = []
        self.spoil = False

    def answer(self, body: str) -> tuple[int, str, str]:
        """Status, content type, body."""
        head, _, note = body.partition("\n\n")
        old, *proof = head.split("\n")
        size = int(old.removeprefix("old "))
        self.sizes.append(size)
        keys = [parse_vkey(vkey) for vkey in self.log_vkeys()]
        if note.split("\n")[0] not in {key.name for key in keys}:
            return 404, "text/plain", "no such log\n"
        try:
            text = open_note(note, keys).text
        except NoteError as error:
            return 403, "text/plain", f"{error}\n"
        now = parse(text)
        if size > now.size:
            return 400, "text/plain", "old is larger\n"
        last = self.seen.size if self.seen else 0
        if size != last:
            return 409, "text/x.tlog.size", f"{last}\n"
        path = [base64.b64decode(line) for line in proof]
        if self.seen and not verify_consistency(size, now.size, path, self.seen.root, now.root):
            return 422, "text/plain", "the proof does not hold\n"
        if not self.seen and path:
            return 422, "text/plain", "a proof from nothing is empty\n"
        self.seen = now
        signature = self.private.sign(f"cosignature/v1\ntime {MOMENT}\n{text}".encode())
        if self.spoil:
            signature = bytes(64)
        packed = base64.b64encode(self.key_id + MOMENT.to_bytes(8) + signature).decode()
        return 200, "text/plain", f"— other.example {base64.b64encode(b'x' * 76).decode()}\n— {self.name} {packed}\n"

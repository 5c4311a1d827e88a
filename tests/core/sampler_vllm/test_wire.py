"""What the trainer and its vLLM server say to each other, and to whom they say nothing."""

import contextlib
import socket
import threading

import pytest

from grpo_core.rollout.vllm import wire
from grpo_core.rollout.vllm.server import admitted
from tests.processes import wait_for

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


class Door:
    """A server's door in a thread, until the right key came."""

    def __init__(self) -> None:
        self.listening = socket.create_server((wire.HOST, 0))
        self.said: list[str] = []
        self.lines: list[socket.socket] = []
        self.thread = threading.Thread(target=self._open)
        self.thread.start()

    def _open(self) -> None:
        self.lines.append(admitted(self.listening, KEY, log=self.said.append))

    def line(self) -> socket.socket:
        return socket.create_connection(self.listening.getsockname())

    def end(self) -> None:
        """Let the right one in, so that the thread ends."""
        with self.line() as line:
            wire.greet(line, KEY)
            self.thread.join()
        for one in (*self.lines, self.listening):
            one.close()


@pytest.fixture
def door():
    door = Door()
    yield door
    door.end()


def test_messages_go_through_whole():
    one, other = socket.socketpair()
    message = {"tokens": list(range(100_000)), "logprobs": [-0.1234567890123, -1e-30], "text": "é\n"}
    with one, other:
        thread = threading.Thread(target=wire.send, args=(one, message))
        thread.start()
        assert wire.receive(other) == message
        thread.join()
        one.close()
        with pytest.raises(EOFError):
            wire.receive(other)


def test_the_wrong_key_is_refused_and_the_right_one_still_comes_in(door):
    with door.line() as line, pytest.raises(wire.WrongKey):
        wire.greet(line, OTHER)


@pytest.mark.parametrize("proof", ["0" * 64, None])
def test_a_wrong_proof_is_refused(door, proof):
    """Of somebody who leaves the check of the server's own proof out, or (None) sends it back to it."""
    with door.line() as line:
        wire.send(line, {"nonce": "0" * 64})
        received = wire.receive(line)
        wire.send(line, {"proof": proof or received["proof"]})
        assert wire.receive(line) == {"known": False}
        assert line.recv(1) == b"", "the line stays open"
    assert "without the key" in door.said[0]


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 7 + b"\2[]", b"\0" * 7 + b"\4null", b"\xff" * 8],
    ids=["nothing", "http", "list", "null", "long"],
)
def test_whoever_speaks_something_else_is_refused(door, said):
    with door.line() as line:
        line.sendall(said)
        with contextlib.suppress(OSError):  # refused already, the line is gone
            line.shutdown(socket.SHUT_WR)
        wait_for(lambda: door.said, "it said nothing")
    assert door.said[0].startswith(f"refused {wire.HOST}:")
    assert not door.lines


def test_nothing_large_is_read_before_the_key():
    one, other = socket.socketpair()
    with one, other:
        wire.send(one, {"nonce": "0" * 10_000})
        with pytest.raises(ValueError, match="a frame of"):
            wire.admit(other, KEY)


def test_a_false_server_is_not_talked_to():
    one, other = socket.socketpair()
    with one, other:
        wire.send(other, {"nonce": "1" * 64, "proof": "2" * 64})
        with pytest.raises(wire.WrongKey, match="the key"):
            wire.greet(one, KEY)
        wire.receive(other)
        one.close()
        with pytest.raises(EOFError):
            wire.receive(other)  # and it was shown nothing

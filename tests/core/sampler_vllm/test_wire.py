"""What passes between the trainer and its vLLM engine: messages, and to whom there are none; weights through memory;
and settings: sizes, devices, seeds."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from grpo_core.config import RunConfig
from grpo_core.errors import RolloutError
from grpo_core.rollout.vllm import wire
from grpo_core.rollout.vllm.make import server_gpus, settings_of
from grpo_core.rollout.vllm.rollout import seed_of
from grpo_core.rollout.vllm.server import admitted
from grpo_core.rollout.vllm.settings import Settings
from grpo_core.rollout.vllm.shared import Outgoing, incoming, planned
from tests.core.tiny import config, load, tiny_folder
from tests.processes import wait_for

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


class Door:
    """A server's door in a thread, until the right key came."""

    def __init__(self) -> None:
        self.listening = socket.create_server((wire.HOST, 0))
        self.log: list[str] = []
        self.lines: list[socket.socket] = []
        self.thread = threading.Thread(target=self._open)
        self.thread.start()

    def _open(self) -> None:
        self.lines.append(admitted(self.listening, KEY, log=self.log.append))

    def line(self) -> socket.socket:
        return socket.create_connection(self.listening.getsockname())

    def end(self) -> None:
        """Let the right one in, so that the thread ends."""
        with self.line() as line:
            wire.greet(line, KEY)
            self.thread.join()
        for line in (*self.lines, self.listening):
            line.close()


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
    assert "without the key" in door.log[0]


@pytest.mark.parametrize(
    "spoken",
    [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 7 + b"\2[]", b"\0" * 7 + b"\4null", b"\xff" * 8],
    ids=["nothing", "http", "list", "null", "long"],
)
def test_whoever_speaks_something_else_is_refused(door, spoken):
    with door.line() as line:
        line.sendall(spoken)
        with contextlib.suppress(OSError):  # refused already, the line is gone
            line.shutdown(socket.SHUT_WR)
        wait_for(lambda: door.log, "it logs nothing")
    assert door.log[0].startswith(f"refused {wire.HOST}:")
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


READER = """
import json, sys
from grpo_core.rollout.vllm.shared import incoming
for line in sys.stdin:
    place, entries = json.loads(line)
    got = incoming(place, entries)
    told = {name: [str(one.dtype), list(one.shape), one.double().sum().item()] for name, one in got.items()}
    print(json.dumps(told), flush=True)
"""


def weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return {
        "wide": torch.randn(30, 70, generator=random),
        "half": torch.randn(3, 5, 7, generator=random).to(torch.bfloat16),
        "turned": torch.randn(8, 16, generator=random).t(),
        "one": torch.tensor(2.5),
        "ids": torch.arange(9),
    }


@pytest.mark.parametrize("chunk", [64, 2**20])
def test_another_process_reads_what_was_written(chunk):
    outgoing, sent = Outgoing(chunk=chunk), weights()
    seen, parts = {}, 0
    with subprocess.Popen(
        [sys.executable, "-P", "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        for entries in outgoing.chunks(sent):
            print(json.dumps([outgoing.place, entries]), file=reader.stdin, flush=True)
            seen |= json.loads(reader.stdout.readline())
            parts += 1
        reader.stdin.close()
    outgoing.close()
    expected = {name: [str(one.dtype), list(one.shape), one.double().sum().item()] for name, one in sent.items()}
    assert seen == expected
    assert parts == {64: 5, 2**20: 1}[chunk]


def test_what_is_read_is_a_copy_and_lies_in_no_file():
    outgoing, sent = Outgoing(), weights()
    (entries,) = outgoing.chunks(sent)
    got = incoming(outgoing.place, entries)
    for _ in outgoing.chunks({name: torch.zeros_like(one) for name, one in sent.items()}):
        assert "memfd" in os.readlink(f"/proc/self/fd/{outgoing.place[1]}")
    assert all(torch.equal(got[name], one) for name, one in sent.items())
    place = outgoing.place
    outgoing.close()
    with pytest.raises(OSError):
        incoming(place, entries)


def test_the_memory_grows_when_a_later_model_part_is_larger():
    outgoing = Outgoing(chunk=64)
    for size in (4, 4000, 8):
        sent = {"w": torch.rand(size)}
        (entries,) = outgoing.chunks(sent)
        assert torch.equal(incoming(outgoing.place, entries)["w"], sent["w"])
    outgoing.close()


def test_a_chunk_holds_no_more_than_it_may_but_for_one_large_tensor():
    """Numbers of 4 bytes, each tensor from a multiple of 64 on: 64 + 40 fit into 128, 64 + 64 + 64 do not."""
    sizes = {name: torch.zeros(n) for name, n in zip("abcdef", (10, 10, 100, 3, 3, 16), strict=True)}
    chunks = [[(name, first) for name, _, _, first in chunk] for chunk in planned(sizes, 128)]
    assert chunks == [[("a", 0), ("b", 64)], [("c", 0)], [("d", 0), ("e", 64)], [("f", 0)]]


def vllm(**engine: object) -> RunConfig:
    return config(engine={"threads": 1, "rollout": "vllm", **engine})


def test_the_server_takes_the_gpus_after_the_trainer_s(monkeypatch):
    asked = vllm(devices=2, vllm={"place": "server", "devices": 2})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert server_gpus(asked, 8) == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-a,5,MIG-b")
    assert server_gpus(asked, 4) == ["5", "MIG-b"]
    with pytest.raises(RolloutError, match=r"takes 2 GPU\(s\) beside the trainer's 2, and this machine shows 3"):
        server_gpus(asked, 3)


def test_a_cpu_s_cache_has_room_for_the_sequences_that_run_side_by_side(tmp_path):
    policy = load(tiny_folder(tmp_path / "base"))  # 2 layers of 2 heads of 16 numbers of 4 bytes, keys and values: 512
    asked = vllm(rollout_batch=10, vllm={"place": "server"}, device="cpu")
    told = settings_of(asked, policy, positions=72, beside=False)
    assert told.cache_bytes == 10 * (72 + 128) * 512
    assert (told.dtype, told.device, told.rows, told.sleeps) == ("float32", "cpu", 10, False)
    small = vllm(rollout_batch=10**7, vllm={"place": "server", "memory_share": 0.25}, device="cpu")
    memory = 1024 * int(Path("/proc/meminfo").read_text().split()[1])
    assert settings_of(small, policy, positions=72, beside=False).cache_bytes == int(0.25 * memory)
    assert Settings(**json.loads(json.dumps(asdict(told)))) == told


def test_seeds_differ_wherever_their_names_do():
    names = [((0, 1, step), place, sample) for step in range(5) for place in range(8) for sample in range(8)]
    seeds = {seed_of(*name) for name in names}
    assert len(seeds) == len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of((0, 1, 2), 3, 4) == seed_of([0, 1, 2], 3, 4)

"""What passes between the trainer and its vLLM engine: messages, and to whom there are none; weights through memory;
settings; and the proof that weights arrived, by numbers made by hand."""

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from grpo_core.config.run import RunConfig
from grpo_core.errors import NotFinite, RolloutError
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.rollout.vllm import settings
from grpo_core.rollout.vllm.make import server_gpus, settings_of
from grpo_core.rollout.vllm.probe import Probe
from grpo_core.rollout.vllm.rollout import seed_of
from grpo_core.rollout.vllm.server import admitted
from grpo_core.rollout.vllm.settings import Settings
from grpo_core.rollout.vllm.shared import Outgoing, incoming, planned
from tests.core.sampler_vllm.small import move
from tests.core.tiny import config, load, tiny_folder
from tests.processes import wait_for

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


class Door:
    """A server's door in a thread, until the right key came."""

    def __init__(self) -> None:
        self.listening = socket.create_server((settings.HOST, 0))
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
            settings.greet(line, KEY)
            self.thread.join()
        for line in (*self.lines, self.listening):
            line.close()


@pytest.fixture
def door():
    door = Door()
    yield door
    door.end()


def test_messages_go_through_whole():
    near, other = socket.socketpair()
    message = {"tokens": list(range(100_000)), "logprobs": [-0.1234567890123, -1e-30], "text": "é\n"}
    with near, other:
        thread = threading.Thread(target=settings.send, args=(near, message))
        thread.start()
        assert settings.receive(other) == message
        thread.join()
        near.close()
        with pytest.raises(EOFError):
            settings.receive(other)


def test_the_wrong_key_is_refused_and_the_right_one_still_comes_in(door):
    with door.line() as line, pytest.raises(settings.WrongKey):
        settings.greet(line, OTHER)


@pytest.mark.parametrize("proof", ["0" * 64, None])
def test_a_wrong_proof_is_refused(door, proof):
    """Of somebody who leaves the check of the server's own proof out, or (None) sends it back to it."""
    with door.line() as line:
        settings.send(line, {"nonce": "0" * 64})
        received = settings.receive(line)
        settings.send(line, {"proof": proof or received["proof"]})
        assert settings.receive(line) == {"known": False}
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
    assert door.log[0].startswith(f"refused {settings.HOST}:")
    assert not door.lines


def test_nothing_large_is_read_before_the_key():
    near, other = socket.socketpair()
    with near, other:
        settings.send(near, {"nonce": "0" * 10_000})
        with pytest.raises(ValueError, match="a frame of"):
            settings.admit(other, KEY)


def test_a_false_server_is_not_talked_to():
    near, other = socket.socketpair()
    with near, other:
        settings.send(other, {"nonce": "1" * 64, "proof": "2" * 64})
        with pytest.raises(settings.WrongKey, match="the key"):
            settings.greet(near, KEY)
        settings.receive(other)
        near.close()
        with pytest.raises(EOFError):
            settings.receive(other)  # and it was shown nothing


READER = """
import json, sys
from grpo_core.rollout.vllm.shared import incoming
for line in sys.stdin:
    place, entries = json.loads(line)
    got = incoming(place, entries)
    arrived = {name: [str(one.dtype), list(one.shape), one.double().sum().item()] for name, one in got.items()}
    print(json.dumps(arrived), flush=True)
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
            print(json.dumps([outgoing.location, entries]), file=reader.stdin, flush=True)
            seen |= json.loads(reader.stdout.readline())
            parts += 1
        reader.stdin.close()
    outgoing.close()
    expected = {
        name: [str(tensor.dtype), list(tensor.shape), tensor.double().sum().item()] for name, tensor in sent.items()
    }
    assert seen == expected
    assert parts == {64: 5, 2**20: 1}[chunk]


def test_what_is_read_is_a_copy_and_lies_in_no_file():
    outgoing, sent = Outgoing(), weights()
    (entries,) = outgoing.chunks(sent)
    got = incoming(outgoing.location, entries)
    for _ in outgoing.chunks({name: torch.zeros_like(tensor) for name, tensor in sent.items()}):
        assert "memfd" in os.readlink(f"/proc/self/fd/{outgoing.location[1]}")
    assert all(torch.equal(got[name], tensor) for name, tensor in sent.items())
    place = outgoing.location
    outgoing.close()
    with pytest.raises(OSError):
        incoming(place, entries)


def test_the_memory_grows_when_a_later_model_part_is_larger():
    outgoing = Outgoing(chunk=64)
    for size in (4, 4000, 8):
        sent = {"w": torch.rand(size)}
        (entries,) = outgoing.chunks(sent)
        assert torch.equal(incoming(outgoing.location, entries)["w"], sent["w"])
    outgoing.close()


def test_a_chunk_holds_no_more_than_it_may_but_for_one_large_tensor():
    """Numbers of 4 bytes, each tensor from a multiple of 64 on: 64 + 40 fit into 128, 64 + 64 + 64 do not."""
    sizes = {name: torch.zeros(n) for name, n in zip("abcdef", (10, 10, 100, 3, 3, 16), strict=True)}
    chunks = [[(name, first) for name, _, _, first in chunk] for chunk in planned(sizes, 128)]
    assert chunks == [[("a", 0), ("b", 64)], [("c", 0)], [("d", 0), ("e", 64)], [("f", 0)]]


def vllm(**engine: object) -> RunConfig:
    return config(engine={"threads": 1, "rollout": "vllm", **engine})


def test_the_server_takes_the_gpus_after_the_trainer_s(monkeypatch):
    given = vllm(devices=2, vllm={"place": "server", "devices": 2})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert server_gpus(given, 8) == ["2", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,GPU-a,5,MIG-b")
    assert server_gpus(given, 4) == ["5", "MIG-b"]
    with pytest.raises(RolloutError, match=r"takes 2 GPU\(s\) beside the trainer's 2, and this machine shows 3"):
        server_gpus(given, 3)


def test_a_cpu_s_cache_has_room_for_the_sequences_that_run_side_by_side(tmp_path):
    policy = load(tiny_folder(tmp_path / "base"))  # 2 layers of 2 heads of 16 numbers of 4 bytes, keys and values: 512
    given = vllm(rollout_batch=10, vllm={"place": "server"}, device="cpu")
    sized = settings_of(given, policy, positions=72, per_rank=False)
    assert sized.cache_bytes == 10 * (72 + 128) * 512
    assert (sized.dtype, sized.device, sized.rows, sized.sleeps) == ("float32", "cpu", 10, False)
    small = vllm(rollout_batch=10**7, vllm={"place": "server", "memory_share": 0.25}, device="cpu")
    memory = 1024 * int(Path("/proc/meminfo").read_text().split()[1])
    assert settings_of(small, policy, positions=72, per_rank=False).cache_bytes == int(0.25 * memory)
    assert Settings(**json.loads(json.dumps(asdict(sized)))) == sized


def test_seeds_differ_wherever_their_names_do():
    names = [((0, 1, step), index, sample) for step in range(5) for index in range(8) for sample in range(8)]
    seeds = {seed_of(*name) for name in names}
    assert len(seeds) == len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of((0, 1, 2), 3, 4) == seed_of([0, 1, 2], 3, 4)


@pytest.fixture
def policy(tmp_path):
    return load(tiny_folder(tmp_path / "base"))


def probe(tolerance=0.05):
    return Probe(vocabulary=258, positions=100, tolerance=tolerance, seed=3)


@torch.no_grad()
def scored(texts, policy, off=0.0):
    """As vLLM would say it, `off` nats beside the policy's."""
    rows = [completion_logprobs(policy.model, [text[:1]], [text[1:]]) for text in texts]
    return [(row + off).tolist() for row in rows]


def test_texts_are_of_the_whole_vocabulary_and_fit():
    texts = probe().texts
    assert [len(text) for text in texts] == [32] * 4
    assert min(map(min, texts)) < 26
    assert 232 < max(map(max, texts)) < 258
    assert texts == probe().texts, "the seed alone decides"
    assert {len(text) for text in Probe(vocabulary=9, positions=6, tolerance=1.0, seed=0).texts} == {5}


def test_equal_numbers_pass_and_the_difference_is_returned(policy):
    prober = probe()
    assert prober.check(scored(prober.texts, policy), policy, step=0) < 1e-5
    assert prober.check(scored(prober.texts, policy, off=0.01), policy, step=1) == pytest.approx(0.01, abs=1e-5)
    move(policy, 1e-4)
    prober.forget()  # another engine is judged anew
    assert prober.check(scored(prober.texts, policy, off=0.01), policy, step=0) == pytest.approx(0.01, abs=1e-5)


@pytest.mark.parametrize("off", [0.06, -0.06, math.nan])
def test_beyond_the_tolerance_the_run_stops(policy, off):
    prober = probe()
    with pytest.raises(RolloutError, match=r"after step 7 have not arrived.*(0\.06|nan)"):
        prober.check(scored(prober.texts, policy, off=off), policy, step=7)


def test_old_weights_within_the_tolerance_are_seen(policy, tmp_path):
    """The tolerance alone would let pass what a step of a low rate moves, or embeddings that arrive without what lies
    between them."""
    other, prober = load(tiny_folder(tmp_path / "other")), probe(tolerance=10.0)
    old = scored(prober.texts, policy)
    prober.check(old, policy, step=0)
    move(policy, 1e-4)
    with pytest.raises(RolloutError, match="since step 0"):
        prober.check(old, policy, step=1)
    prober = probe(tolerance=10.0)
    prober.check(scored(prober.texts, policy), policy, step=0)
    move(policy, 1e-3)
    with torch.no_grad():
        for (name, new), weight in zip(policy.model.named_parameters(), other.model.parameters(), strict=True):
            if "layers" not in name:
                weight.copy_(new)
    with pytest.raises(RolloutError, match="not all"):
        prober.check(scored(prober.texts, other), policy, step=1)


def test_new_weights_pass_again_and_again(policy):
    prober = probe(tolerance=10.0)
    for step in range(5):
        prober.check(scored(prober.texts, policy, off=1e-4 * (-1) ** step), policy, step=step)
        move(policy, 1e-3, seed=step)


def test_moves_too_small_to_see_add_up(policy):
    """In bf16 the engines differ by more than a step moves the weights: one that moved no more cannot be judged yet."""
    prober = probe(tolerance=1.0)
    old, passed = scored(prober.texts, policy, off=0.002), []
    with pytest.raises(RolloutError):  # noqa: PT012  that an engine which never takes new weights is seen, and not at once
        for step in range(40):
            prober.check(old, policy, step=step)
            passed.append(step)
            move(policy, 1e-4, seed=step)
    assert len(passed) > 3


def test_a_diverged_policy_is_an_error_of_its_own(policy):
    prober = probe()
    numbers = scored(prober.texts, policy)
    with torch.no_grad():
        policy.model.get_output_embeddings().weight.fill_(math.nan)
    with pytest.raises(NotFinite):
        prober.check(numbers, policy, step=3)

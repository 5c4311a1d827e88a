"""A real vLLM server, asked by its client: numbers as the trainer's, weights that arrive, nobody else let in."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, replace

import psutil
import pytest
import torch

from grpo_core.config.run import ModelConfig
from grpo_core.errors import RolloutError
from grpo_core.model.load import find_model
from grpo_core.model.logprobs import completion_logprobs
from grpo_core.model.lora import load_policy
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.vllm import client
from grpo_core.rollout.vllm.client import Server
from grpo_core.rollout.vllm.probe import Probe
from grpo_core.rollout.vllm.rollout import VllmRollout
from grpo_core.rollout.vllm.settings import HOST, GenerateRequest, Settings, WrongKey, greet, receive, send
from grpo_core.runtime.watchdog import Watchdog, at
from tests.core.sampler_vllm.small import ROWS, move, qwen_folder
from tests.needs import VLLM_PYTHON, needs
from tests.processes import below, lives, wait_for

pytestmark = pytest.mark.vllm
SEEN = 1e-5
"""Nats that the two engines may differ by, in fp32."""
PROMPTS = [list(range(5, 25)), list(range(60, 93)), [7]]


def policy_of(folder, rank=0):
    config = ModelConfig.model_validate({"path": str(folder), "lora": {"rank": rank}})
    return load_policy(find_model(config, base=folder), config, device=torch.device("cpu"), seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return qwen_folder(tmp_path_factory.mktemp("model") / "tied", tied=True)


@pytest.fixture(scope="module", autouse=True)
def python():
    needs("vllm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(client.PYTHON, str(VLLM_PYTHON))
        yield


def settings(folder):
    return Settings(str(folder), "float32", "cpu", 96, 16, 0.3, 2**24, True, 0, uncompiled=True)


def started(folder, log, **more):
    log.mkdir(exist_ok=True)
    return Server(settings(folder), gpus=[], threads=1, folder=log, check=lambda: None, chunk=50_000, **more)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    server = started(folder, tmp_path_factory.mktemp("log"))
    yield server
    server.close()


@pytest.fixture
def policy(folder):
    return policy_of(folder)


@pytest.fixture
def rollout(server, policy):
    made = VllmRollout(lambda: server, policy, probe(), restarts=False)
    made.follow(0)
    return made


def probe(tolerance=1e-4):
    return Probe(vocabulary=ROWS, positions=96, tolerance=tolerance, seed=0)


@torch.no_grad()
def furthest(policy, prompts, groups, temperature):
    """Largest difference of any completion token's log-probability; not a number where one is none."""
    differences = [
        completion_logprobs(policy.model, [prompt], [completion.tokens], temperature=temperature or 1.0)
        - torch.tensor(completion.logprobs)
        for prompt, group in zip(prompts, groups, strict=True)
        for completion in group
    ]
    return float(torch.cat(differences).abs().max())


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_log_probabilities_are_the_trainer_s(rollout, policy, temperature):
    decoding = Decoding(max_tokens=24, temperature=temperature)
    groups = rollout.generate(PROMPTS, samples=4, decoding=decoding, key=(1, 2))
    assert [len(group) for group in groups] == [4, 4, 4]
    assert furthest(policy, PROMPTS, groups, temperature) < SEEN
    distinct = {completion.tokens for completion in groups[0]}
    assert len(distinct) == (1 if temperature == 0 else 4)
    assert all(completion.entropy is None for group in groups for completion in group)


def test_samples_follow_the_policy_s_distribution(rollout, policy):
    """The first token's shares, and not those that the model's own generation config asks for."""
    decoding, count = Decoding(max_tokens=1, temperature=1.0), 2000
    (group,) = rollout.generate([PROMPTS[0]], samples=count, decoding=decoding, key=(3,))
    drawn_V = torch.bincount(torch.tensor([completion.tokens[0] for completion in group]), minlength=ROWS)
    with torch.no_grad():
        expected_V = count * torch.softmax(policy.model(torch.tensor([PROMPTS[0]])).logits[0, -1], -1).double()
    common_V = expected_V >= 5
    chi = ((drawn_V - expected_V)[common_V] ** 2 / expected_V[common_V]).sum()
    degrees = int(common_V.sum())
    assert degrees > 40
    assert chi < degrees + 5 * (2 * degrees) ** 0.5


def test_a_sample_does_not_depend_on_its_batch(rollout):
    decoding = Decoding(max_tokens=16, temperature=1.0)
    together = rollout.generate(PROMPTS, samples=4, decoding=decoding, key=(1, 2))
    alone = rollout.generate(PROMPTS[1:2], samples=2, decoding=decoding, key=(1, 2), indices=[1])
    assert [completion.tokens for completion in alone[0]] == [completion.tokens for completion in together[1][:2]]
    other = rollout.generate(PROMPTS[1:2], samples=2, decoding=decoding, key=(1, 3), indices=[1])
    assert [completion.tokens for completion in other[0]] != [completion.tokens for completion in alone[0]]


def test_every_end_token_ends(server, policy):
    ends = frozenset({policy.tokenizer.eos_token_id, *range(40)})
    made = VllmRollout(lambda: server, replace(policy, eos_ids=ends), probe(), restarts=False)
    made.follow(0)
    groups = made.generate(PROMPTS, samples=8, decoding=Decoding(max_tokens=48, temperature=1.0), key=(9,))
    completions = [completion for group in groups for completion in group]
    last = {completion.tokens[-1] for completion in completions if completion.finish == "eos"}
    assert last <= ends
    assert len(last) > 3
    assert all(token not in ends for completion in completions for token in completion.tokens[:-1])
    assert all(len(completion.tokens) == 48 for completion in completions if completion.finish == "length")


def test_new_weights_arrive_and_cached_prompts_are_forgotten(rollout, policy):
    decoding = Decoding(max_tokens=16, temperature=1.0)
    before = rollout.generate(PROMPTS, samples=2, decoding=decoding, key=(1,))
    move(policy)
    assert furthest(policy, PROMPTS, before, 1.0) > 0.1
    metrics = rollout.follow(1)
    assert metrics["vllm/probe_difference"] < SEEN
    assert metrics["vllm/push_seconds"] > 0
    after = rollout.generate(PROMPTS, samples=2, decoding=decoding, key=(1,))
    assert furthest(policy, PROMPTS, after, 1.0) < SEEN, "keys and values of the old weights were used"
    assert rollout.follow(1) == {}, "weights were sent that had not changed"


def test_adapters_are_merged(server, folder):
    adapted = policy_of(folder, rank=4)
    move(adapted, 0.1)
    made = VllmRollout(lambda: server, adapted, probe(), restarts=False)
    assert made.follow(0)["vllm/probe_difference"] < SEEN
    groups = made.generate(PROMPTS, samples=2, decoding=Decoding(max_tokens=8, temperature=0.7), key=(4,))
    assert furthest(adapted, PROMPTS, groups, 0.7) < 10 * SEEN  # merged weights are rounded


def test_a_prompt_that_is_too_long_is_told_and_the_server_goes_on(rollout, server, policy):
    with pytest.raises(RolloutError, match="sampling"):
        rollout.generate([[5] * 200], samples=1, decoding=Decoding(max_tokens=4), key=(1,))
    assert rollout.generate(PROMPTS, samples=1, decoding=Decoding(max_tokens=4), key=(1,))


def test_nobody_but_its_trainer_reaches_it(rollout, server):
    """It listens on the loopback address alone, and no command line or variable holds the key."""
    process = psutil.Process(server.process.pid)
    connections = [line for each in (process, *below(process.pid)) for line in each.net_connections()]
    assert {line.laddr.ip for line in connections if line.status == psutil.CONN_LISTEN} <= {"127.0.0.1", "::1"}
    (own,) = [line for line in process.net_connections() if line.status == psutil.CONN_ESTABLISHED]
    assert own.laddr.ip == own.raddr.ip == HOST
    with pytest.raises(ConnectionRefusedError):  # the trainer is there: nobody else can come
        socket.create_connection((own.laddr.ip, own.laddr.port))

    assert process.cmdline()[-1] == "grpo_core.rollout.vllm.server"
    visible = " ".join([*process.cmdline(), *process.environ().values()])
    assert not re.search(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", visible)


def test_only_the_key_opens_it(folder, tmp_path):
    """The server as it is started, and others that come before the trainer."""
    key, other = bytes(32), bytes(31) + b"\1"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(VLLM_PYTHON), "-P", "-m", "grpo_core.rollout.vllm.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    process.stdin.write(json.dumps({"key": key.hex(), "settings": asdict(settings(folder))}).encode() + b"\n")
    process.stdin.flush()
    port = json.loads(process.stdout.readline())["port"]
    with socket.create_connection((HOST, port)) as line, pytest.raises(WrongKey):
        greet(line, other)
    with socket.create_connection((HOST, port)) as line:
        greet(line, key)
        send(line, {"do": "score", "texts": [[1, 2, 3]]})
        while "doing" in (reply := receive(line)):
            pass
        assert len(reply["ok"][0]) == 2
    assert process.wait() == 0, "it outlives the line to its trainer"
    assert (tmp_path / "log").read_text().count(f"refused {HOST}:") == 1


def test_it_dies_with_its_trainer(folder, tmp_path):
    code = f"""
import sys, time
from tests.core.sampler_vllm.test_server import started
from pathlib import Path
server = started({str(folder)!r}, Path({str(tmp_path / "log")!r}))
print(server.process.pid, flush=True)
time.sleep(1000)
"""
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=os.getcwd())
    server = psutil.Process(int(trainer.stdout.readline()))
    trainer.kill()
    trainer.wait()
    wait_for(lambda: not lives(server), "the server lives on")


def test_a_server_that_stands_still_is_named_by_the_watchdog(server):
    warnings = []
    pids = [server.process.pid, *(process.pid for process in below(server.process.pid))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def warned(text, data):
        warnings.append(text)
        if "vLLM server" in text:  # a busy machine may have made it say one thing before
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    with Watchdog(0.3, warn=warned, log=lambda text: None):
        at("step 5", "sampling")
        assert len(server.score([[1, 2, 3]])[0]) == 2
    named = next(text for text in warnings if "vLLM server" in text)
    assert named.endswith(": the vLLM server, step 5: it is to score")


def test_it_tells_how_far_it_is(server, monkeypatch):
    """So that a server with hours of work is not taken for one that stands still."""
    reports = []
    monkeypatch.setattr(client, "doing", lambda what, detail, count: reports.append((what, detail, count)))
    for samples in (8, 64, 512, 4096):  # as many as take longer than its silence
        reports.clear()
        (group,) = server.generate(GenerateRequest(PROMPTS[:1], [list(range(samples))], Decoding(max_tokens=60), ()))
        assert len(group) == samples
        if len(reports) > 2:
            break
    assert {what for what, _, _ in reports} == {"the vLLM server"}
    ended = [int(re.search(rf"(\d+) of {samples} ended", detail)[1]) for _, detail, _ in reports]
    assert ended == sorted(ended)
    assert ended[-1] < samples
    counts = [count for _, _, count in reports]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("python", "named"),
    [(sys.executable, "GRPO_VLLM_PYTHON"), ("/nowhere/python", "/nowhere/python"), ("/bin/false", "status 1")],
)
def test_a_server_that_cannot_start_is_an_error_that_names_the_cause(folder, tmp_path, monkeypatch, python, named):
    monkeypatch.setenv(client.PYTHON, python)
    with pytest.raises(RolloutError, match=named):
        started(folder, tmp_path / "log")

"""What an engine is told: sizes, devices, seeds; and the configs that are refused."""

import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest

from grpo_core.config import RunConfig
from grpo_core.errors import ConfigError, RolloutError
from grpo_core.rollout.vllm.make import server_gpus, settings_of
from grpo_core.rollout.vllm.rollout import seed_of
from grpo_core.rollout.vllm.settings import Settings
from tests.core.tiny import config, load, tiny_folder


def vllm(**engine: object) -> RunConfig:
    return config(engine={"threads": 1, "rollout": "vllm", **engine})


@pytest.mark.parametrize(
    "engine",
    [
        {"vllm": {"place": "colocated", "devices": 2}},
        {"vllm": {"place": "server", "devices": 2}, "device": "cpu"},
        {"vllm": {"place": "colocated"}, "one_step_off": True},
    ],
)
def test_what_does_not_go_together_is_refused(engine):
    with pytest.raises(ConfigError, match=r"engine\.vllm"):
        vllm(**engine)


RATIOS = [
    {"algorithm": {"loss": "dppo"}},
    {"algorithm": {"off_policy_threshold": 0.5}},
    {"algorithm": {"dynamic_sampling": {"enabled": True}}},
    {"engine": {"one_step_off": True}},
]
"""What divides by the sampler's log-probabilities, whatever algorithm.correction.mode says."""


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 5}])
@pytest.mark.parametrize("parts", [{}, *RATIOS])
def test_ratios_to_what_vllm_cut_are_refused_and_to_our_own_sampler_s_not(parts, cut):
    algorithm = {"correction": {"mode": "none"}, **parts.get("algorithm", {})}
    engine = {"threads": 1, "vllm": {"place": "server"}, **parts.get("engine", {})}
    config(algorithm=algorithm, engine=engine, sampling=cut)
    with pytest.raises(ConfigError, match=r"sampling\.top_p") if parts else nullcontext():
        config(algorithm=algorithm, engine={**engine, "rollout": "vllm"}, sampling=cut)


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

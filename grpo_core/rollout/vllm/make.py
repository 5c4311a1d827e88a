"""The vLLM sampler that a run's config names."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from grpo_core.config.kinds import AnyConfig
from grpo_core.distributed.ranks import Ranks
from grpo_core.errors import RolloutError
from grpo_core.model.load import LoadedModel
from grpo_core.rollout.base import Completion, Rollout, SamplingOptions
from grpo_core.rollout.policy_snapshot import COMPLETIONS, RankedRollout
from grpo_core.rollout.vllm.client import LOG, Server
from grpo_core.rollout.vllm.engine import Engine
from grpo_core.rollout.vllm.probe import Probe
from grpo_core.rollout.vllm.rollout import VllmRollout
from grpo_core.rollout.vllm.settings import GenerateRequest, Sampled, Settings

BLOCK = 128
"""Tokens that vLLM's cache on a CPU gives to a sequence at once; each may waste one block less a token."""


def make_vllm(
    config: AnyConfig,
    policy: LoadedModel,
    *,
    ranks: Ranks,
    check: Callable[[], None],
    positions: int,
    folder: Path | None,
    log: Callable[[str], None],
) -> Rollout:
    """`positions`: most tokens of a sequence, prompt and completion together. `folder`: of the run, for the server's
    log. `tell`: what a person should know. Raises RolloutError on every rank."""
    server = config.engine.vllm.place == "server"
    settings = settings_of(config, policy, positions=positions, per_rank=not server and ranks.world > 1)
    probe = Probe(
        vocabulary=int(policy.model.get_input_embeddings().weight.shape[0]),
        positions=positions,
        tolerance=config.engine.vllm.tolerance,
        seed=config.seed,
    )
    if server:

        def start_server() -> Rollout:
            gpus = server_gpus(config, torch.cuda.device_count()) if settings.device == "cuda" else []
            where = f"on GPU {', '.join(gpus)}" if gpus else "next to the trainer"
            log(f"a vLLM server starts {where}{f'; its log is {folder / LOG}' if folder is not None else ''}")
            start = partial(Server, settings, gpus=gpus, threads=config.engine.threads, folder=folder, check=check)
            return VllmRollout(start, policy, probe, restarts=not config.engine.one_step_off, log=log)

        return Rank0Rollout(start_server, ranks)
    if ranks.main:
        sleep = "" if settings.sleeps else "; on a CPU it does not sleep between phases"
        log(f"vLLM starts in the trainer's process{sleep}")
    start = partial(Colocated, settings, check=check)
    return RankedRollout(ranks.together(lambda: VllmRollout(start, policy, probe, restarts=False)), ranks)


def settings_of(config: AnyConfig, policy: LoadedModel, *, positions: int, per_rank: bool) -> Settings:
    """The engine that samples from `policy`."""
    vllm, gpu = config.engine.vllm, policy.device.type == "cuda"
    server = vllm.place == "server"
    return Settings(
        model=str(policy.source.folder),
        dtype=config.model.dtype,
        device=policy.device.type,
        positions=positions,
        rows=config.engine.rollout_batch,
        memory_share=vllm.memory_share,
        cache_bytes=None if gpu else _cache_bytes(config, policy, positions),
        eager=vllm.eager,
        uncompiled=vllm.eager and not gpu,
        seed=config.seed,
        devices=vllm.devices,
        sleeps=gpu and not server,
        per_rank=per_rank,
    )


def _cache_bytes(config: AnyConfig, policy: LoadedModel, positions: int) -> int:
    """Of keys and values on a CPU: room for as many sequences as run at the same time, at most `memory_share` of the
    machine's memory. With less room vLLM lets sequences wait for each other."""
    text = policy.model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    width = 4 if config.model.dtype == "float32" else 2
    token: int = 2 * text.num_hidden_layers * heads * size * width
    needed = config.engine.rollout_batch * (positions + BLOCK) * token
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(needed, int(config.engine.vllm.memory_share * memory))


def server_gpus(config: AnyConfig, here: int) -> list[str]:
    """Names of the server's GPUs, as CUDA_VISIBLE_DEVICES has them: those after the trainer's, of the `here` that this
    process sees. Raises RolloutError when there are too few."""
    engine = config.engine
    if engine.devices + engine.vllm.devices > here:
        raise RolloutError(
            f"engine.vllm.place server takes {engine.vllm.devices} GPU(s) beside the trainer's {engine.devices}, and "
            f"this machine shows {here}. Lower engine.devices or engine.vllm.devices, or set engine.vllm.place: "
            "colocated"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(here)]
    return names[engine.devices : engine.devices + engine.vllm.devices]


class Colocated(Engine):
    """A `settings.Sampler` in this process, asleep while the policy learns. It copies weights from tensor to tensor."""

    def __init__(self, settings: Settings, *, check: Callable[[], None]) -> None:
        """Raises RolloutError."""
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its output would end up in the run's log
        super().__init__(settings, check=check)
        self.sleep()

    def generate(self, request: GenerateRequest) -> list[list[Sampled]]:
        """See `settings.Sampler`. Only scoring, which sampling follows, leaves the engine awake."""
        groups = super().generate(request)
        self.sleep()
        return groups


class Rank0Rollout:
    """A rollout of all ranks together, done by the first. One server batches better than shares of it would."""

    def __init__(self, make: Callable[[], Rollout], ranks: Ranks) -> None:
        """`make` is called on the first rank only. Raises what it raises, on every rank."""
        self._ranks = ranks
        self._own: Rollout | None = ranks.together(lambda: make() if ranks.main else None)

    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """See `base.Rollout`. Every rank must call it with the same arguments."""
        own = self._own
        groups = self._ranks.together(lambda: own.generate(prompts, **options) if own is not None else [])
        if self._ranks.world == 1:
            return groups
        return COMPLETIONS.validate_python(self._ranks.gather(COMPLETIONS.dump_python(groups))[0])

    def follow(self, step: int) -> dict[str, float]:
        """See `base.Rollout`. The metrics are the first rank's."""
        return self._ranks.together(lambda: self._own.follow(step) if self._own is not None else {})

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

"""Choices of the engine that do not go together, each with the reason and the way out. Loads no torch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_core.errors import Conflict

if TYPE_CHECKING:
    from grpo_core.config.run import RunConfig


def _vllm(c: "RunConfig") -> Iterator[Conflict]:
    engine = c.engine
    if engine.rollout != "vllm":
        return
    if engine.vllm.place == "colocated" and engine.vllm.devices > 1:
        yield Conflict(
            "vllm_devices_unused",
            "engine.vllm.devices has a meaning only with engine.vllm.place: server; colocated, vLLM runs on the "
            "trainer's own device",
            field="engine.vllm.devices",
        )
    if engine.device == "cpu" and engine.vllm.devices > 1:
        yield Conflict(
            "vllm_devices_on_cpu",
            f"engine.vllm.devices {engine.vllm.devices} splits a model over GPUs, and engine.device is cpu; use "
            "vllm.devices: 1",
            field="engine.vllm.devices",
        )
    yield from _cut(c)


def _cut(c: "RunConfig") -> Iterator[Conflict]:
    """With top-p and top-k vLLM returns log-probabilities of what is left; our own sampler, the whole policy's."""
    sampling, algorithm = c.sampling, c.algorithm
    if sampling.top_p >= 1 and sampling.top_k == 0:
        return
    users = (
        (algorithm.loss_spec.ratio == "sampler", "algorithm.loss", f" {algorithm.loss}"),
        (algorithm.off_policy_threshold is not None, "algorithm.off_policy_threshold", ""),
        (c.engine.one_step_off, "engine.one_step_off", ""),
        (algorithm.dynamic_sampling.enabled, "algorithm.dynamic_sampling.enabled", ", which may learn late,"),
    )
    for used, field, note in users:
        if used:
            yield Conflict(
                "vllm_with_cut_sampling",
                f"{field}{note} takes ratios to the sampler's log-probabilities, and with top-p or top-k vLLM's are of "
                "fewer tokens than the policy has; take sampling.top_p 1 and top_k 0, or engine.rollout: local",
                field=field,
            )


def _deepspeed(c: "RunConfig") -> Iterator[Conflict]:
    engine = c.engine
    if engine.training != "deepspeed":
        return
    if c.algorithm.estimator.critic:
        yield Conflict(
            "deepspeed_with_critic",
            f"engine.training deepspeed trains one model, and advantage {c.algorithm.advantage} has a critic next to "
            "the policy; use engine.training: single",
            field="engine.training",
        )
    if engine.torch_compile:
        yield Conflict(
            "deepspeed_with_torch_compile",
            "engine.torch_compile fuses what a layer does, and engine.training deepspeed has to step in between to "
            "fetch and give back weights; switch torch_compile off, or use training: single",
            field="engine.torch_compile",
        )
    if engine.deepspeed.offload == "all" and engine.deepspeed.zero_stage != 3:
        yield Conflict(
            "offload_needs_zero_3",
            "engine.deepspeed.offload all moves weights to the host's memory, and ZeRO "
            f"{engine.deepspeed.zero_stage} does not divide them; use zero_stage: 3, or offload: optimizer",
            field="engine.deepspeed.offload",
        )


def _one_step_off(c: "RunConfig") -> Iterator[Conflict]:
    engine, algorithm = c.engine, c.algorithm
    if not engine.one_step_off:
        return
    if engine.rollout == "vllm" and engine.vllm.place == "colocated":
        yield Conflict(
            "one_step_off_with_colocated_vllm",
            "engine.one_step_off samples while the policy learns, and a colocated vLLM sleeps meanwhile to leave its "
            "memory to the update; use engine.vllm.place: server, or rollout: local",
            field="engine.one_step_off",
        )
    if engine.devices * engine.nodes > 1:
        yield Conflict(
            "one_step_off_with_ranks",
            "engine.one_step_off samples in a second thread of one process, and the ranks' exchanges of two threads "
            "would meet each other; use devices: 1 and nodes: 1, or switch it off",
            field="engine.one_step_off",
        )
    if algorithm.loss_spec.ratio == "none" and algorithm.correction.mode == "none":
        yield Conflict(
            "one_step_off_without_ratio",
            f"engine.one_step_off learns from completions of the policy one update ago, and loss {algorithm.loss} has "
            "no ratio that corrects for it; use algorithm.correction.mode: token_truncate, or another loss",
            field="engine.one_step_off",
        )


ENGINE_RULES = (_vllm, _deepspeed, _one_step_off)

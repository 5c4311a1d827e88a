"""Which settings do nothing under the others, and what would give them a meaning. Loads no torch.

A preset leaves out what means nothing after a person has chosen otherwise, and the form keeps it out of the way; both
ask here. Nothing is refused here: that is `config.conflicts`.
"""

from collections.abc import Callable, Mapping
from typing import Any

Lookup = Callable[[str], Any]
"""Value at a dotted path of a config, its default where it is not given. It may be of any type: what is not valid yet
is asked about too."""

_CLIP_LOW = ("clip", "gspo", "gspo_token", "gmpo", "luspo")
_OWN_SETTINGS = ("sapo", "vespo", "dppo")

CHOICES: Mapping[str, tuple[str, ...]] = {
    "algorithm.loss": ("algorithm.clip_low", "algorithm.clip_high", "algorithm.clip_delta", "algorithm.cispo_bound"),
}
"""Choice → numbers that were found for it, and are another thing under another choice: GSPO clips at 0.0003 where
GRPO clips at 0.2."""


def idle(path: str, value: Lookup) -> str | None:
    """What would give the setting a meaning, such as "loss: sapo"; None when it has one."""
    return next((wanted for rule in _RULES if (wanted := rule(path, value)) is not None), None)


def _loss(path: str, value: Lookup) -> str | None:
    loss, relative = value("algorithm.loss"), value("algorithm.cispo_bound") == "relative"
    name = path.removeprefix("algorithm.")
    own = name.split(".")[0]
    if own in _OWN_SETTINGS:
        return None if loss == own else f"loss: {own}"
    if name == "cispo_bound":
        return None if loss == "cispo" else "loss: cispo"
    if name == "clip_delta":
        return None if loss == "clip" else "loss: clip"
    if name == "clip_high" and loss not in (*_CLIP_LOW, "cispo"):
        return f"loss: {', '.join(_CLIP_LOW)} or cispo"
    if name == "clip_low" and loss not in _CLIP_LOW and not (loss == "cispo" and relative):
        return f"loss: {', '.join(_CLIP_LOW)}, or cispo with cispo_bound: relative"
    return None


def _advantage(path: str, value: Lookup) -> str | None:
    advantage, scale = value("algorithm.advantage"), value("algorithm.scale")
    match path.removeprefix("algorithm."):
        case "pass_k" if advantage != "pass_at_k":
            return "advantage: pass_at_k"
        case name if name.startswith("critic.") and advantage != "gae":
            return "advantage: gae"
        case "advantage_eps" if scale == "none":
            return "a scale to divide by"
        case "std_ddof" if scale == "none" or advantage == "pass_at_k":
            return "a standard deviation to divide by"
        case "multi_objective_aggregation" if (advantage, scale) != ("group", "group_std"):
            return "advantage: group with scale: group_std"
        case "supervision" if advantage != "group" or scale == "batch_std":
            return "advantage: group with scale: group_std or none"
        case "denominator" | "dynamic_sampling.enabled" if advantage == "gae":
            return "an advantage other than gae"
    return None


def _averaging(path: str, value: Lookup) -> str | None:
    aggregation = value("algorithm.aggregation")
    match path:
        case "algorithm.aggregation" if aggregation == "sequence_total" and (
            value("algorithm.loss") != "sequence_ratio"
        ):
            return "loss: sequence_ratio"
        case "algorithm.aggregation_constant" if aggregation != "constant":
            return "aggregation: constant"
        case "algorithm.local_batch" if aggregation != "local_token_mean":
            return "aggregation: local_token_mean"
    return None


def _kl(path: str, value: Lookup) -> str | None:
    if not path.startswith(("algorithm.kl.", "algorithm.reference.")) or path == "algorithm.kl.coef":
        return None
    if value("algorithm.kl.coef") == 0:
        return "kl.coef above 0"
    refresh, place = value("algorithm.reference.refresh"), value("algorithm.kl.place")
    match path:
        case "algorithm.kl.target" if value(path) == "old" and place == "reward":
            return "kl.place: loss"
        case "algorithm.kl.target_nats" | "algorithm.kl.horizon" if value("algorithm.kl.controller") != "adaptive":
            return "kl.controller: adaptive"
        case path if path.startswith("algorithm.reference."):
            if value("algorithm.kl.target") == "old" and place != "reward":
                return "kl.target: reference"
            if value("model.lora.rank") not in (0, None):
                return "model.lora.rank 0: adapters have no reference of their own"
            if path == "algorithm.reference.every" and refresh == "never":
                return "reference.refresh: replace or average"
            if path == "algorithm.reference.weight" and refresh != "average":
                return "reference.refresh: average"
    return None


def _switched(path: str, value: Lookup) -> str | None:
    match path:
        case "algorithm.correction.cap" if value("algorithm.correction.mode") != "token_truncate":
            return "correction.mode: token_truncate"
        case "algorithm.correction.stale" if not (
            value("engine.one_step_off") or value("algorithm.dynamic_sampling.enabled")
        ):
            return "engine.one_step_off or dynamic_sampling.enabled"
        case "algorithm.correction.low" | "algorithm.correction.high" if (
            value("algorithm.correction.mode") != "sequence_mask"
        ):
            return "correction.mode: sequence_mask"
        case "algorithm.dynamic_sampling.max_batches" if value("algorithm.dynamic_sampling.enabled") is False:
            return "dynamic_sampling.enabled"
        case "algorithm.overlong.penalty" if value("algorithm.overlong.buffer_tokens") is None:
            return "overlong.buffer_tokens"
        case "model.lora.alpha" | "model.lora.targets" if value("model.lora.rank") == 0:
            return "model.lora.rank above 0"
    return None


def _engine(path: str, value: Lookup) -> str | None:
    match path.removeprefix("engine."):
        case name if name.startswith("vllm.") and value("engine.rollout") != "vllm":
            return "engine.rollout: vllm"
        case "vllm.devices" if value("engine.vllm.place") != "server":
            return "engine.vllm.place: server"
        case name if name.startswith("deepspeed.") and value("engine.training") != "deepspeed":
            return "engine.training: deepspeed"
        case "rollout_tokens" if path.startswith("engine.") and value("engine.rollout") == "vllm":
            return "engine.rollout: local"
        case "vllm.eager" | "vllm.memory_share" if value("engine.device") == "cpu":
            return "engine.device: cuda or auto"
    return None


_RULES = (_loss, _advantage, _averaging, _kl, _switched, _engine)

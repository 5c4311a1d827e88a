"""Which settings have no effect under the others, and what would give them one. Loads no torch.

A preset leaves out settings without effect under a person's choices, and the form hides them; both use this module.
Nothing is refused here: that is `config.conflicts`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from grpo_core.advantages.settings import ESTIMATORS, IN_PLACE_OF_GROUP
from grpo_core.losses.settings import LOSSES

Lookup = Callable[[str], Any]
"""Value at a dotted path of a config, its default where it is not given. It may be of any type: the
config need not be valid yet."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "algorithm.loss": tuple({f"algorithm.{name}": None for spec in LOSSES.values() for name in spec.settings}),
}
"""Choice → numbers that were tuned for it and mean something else under another choice: GSPO clips at 0.0003 where
GRPO clips at 0.2."""


def idle(path: str, value: Lookup) -> str | None:
    """What would give the setting a meaning, in the words of the run form, such as "policy loss sapo"; None when it has
    one."""
    return next((condition for rule in _RULES if (condition := rule(path, value)) is not None), None)


def _loss(path: str, value: Lookup) -> str | None:
    users = {spec.name: needs for spec in LOSSES.values() for name, needs in spec.settings.items() if _in(path, name)}
    return _unused("loss", "policy loss", users, value)


def _unused(choice: str, words: str, users: Mapping[str, str], value: Lookup) -> str | None:
    """The choices that give a setting a meaning, each with its other conditions; None where one is made, or where the
    setting belongs to no choice."""
    for name, needs in users.items():
        field, _, expected = needs.partition(": ")
        if value(f"algorithm.{choice}") == name and (not needs or value(f"algorithm.{field}") == expected):
            return None
    plain = [name for name, needs in users.items() if not needs]
    others = [f"{name} with {needs}" for name, needs in users.items() if needs]
    if others:
        return f"{words} {', '.join(plain)}, or {' or '.join(others)}"
    if len(plain) > 1:
        return f"{words} {', '.join(plain[:-1])} or {plain[-1]}"
    return f"{words} {plain[0]}" if plain else None


def _in(path: str, setting: str) -> bool:
    return path == f"algorithm.{setting}" or path.startswith(f"algorithm.{setting}.")


def _advantage(path: str, value: Lookup) -> str | None:
    users = {spec.name: "" for spec in ESTIMATORS.values() if any(_in(path, name) for name in spec.settings)}
    if (unused := _unused("advantage", "normalization by", users, value)) is not None:
        return unused
    advantage, scale = value("algorithm.advantage"), value("algorithm.scale")
    for instead in IN_PLACE_OF_GROUP:
        if path == f"algorithm.{instead.chosen_by}" and (advantage != "group" or scale not in [*instead.scales]):
            return f"normalization by group with {' or '.join(instead.scales)}"
    chosen = next((spec for spec in ESTIMATORS.values() if spec.name == advantage), None)
    scaling = next((candidate for name, candidate in chosen.scales.items() if name == scale), None) if chosen else None
    match path.removeprefix("algorithm."):
        case "advantage_eps" if scale == "none":
            return "a normalization that divides"
        case "std_ddof" if scale == "none" or (scaling is not None and not scaling.divides):
            return "a standard deviation to divide by"
        case "signal_gate" if chosen is not None and chosen.compared_with != "group":
            return "a normalization in the group"
        case "denominator" | "dynamic_sampling.enabled" if chosen is not None and chosen.critic:
            return "a normalization without a critic"
    return None


_NEEDED = (
    ("algorithm.aggregation_constant", "algorithm.aggregation", "constant", "averaging by constant"),
    ("algorithm.local_batch", "algorithm.aggregation", "local_token_mean", "averaging by local_token_mean"),
    ("algorithm.correction.cap", "algorithm.correction.mode", "token_truncate", "sampler correction token_truncate"),
    ("algorithm.correction.low", "algorithm.correction.mode", "sequence_mask", "sampler correction sequence_mask"),
    ("algorithm.correction.high", "algorithm.correction.mode", "sequence_mask", "sampler correction sequence_mask"),
    ("engine.vllm.", "engine.rollout", "vllm", "sampler vllm"),
    ("engine.vllm.devices", "engine.vllm.place", "server", "vLLM as server"),
    ("engine.deepspeed.", "engine.training", "deepspeed", "trainer deepspeed"),
    ("optim.trpo.", "optim.method", "trpo", "optimiser trpo"),
    ("optim.lr", "optim.method", "adamw", "optimiser adamw"),
    ("optim.warmup_steps", "optim.method", "adamw", "optimiser adamw"),
    ("optim.schedule", "optim.method", "adamw", "optimiser adamw"),
)
"""Settings, or how their paths begin, with the one choice under which they have an effect, its value and its words."""


def _needed(path: str, value: Lookup) -> str | None:
    for setting, choice, needed, words in _NEEDED:
        if path.startswith(setting) and value(choice) != needed:
            return words
    return None


_OF_ADAMW = ("optim.beta1", "optim.beta2", "optim.eps", "optim.weight_decay", "optim.max_grad_norm")


def _optimiser(path: str, value: Lookup) -> str | None:
    """A critic is trained with AdamW whatever trains the policy."""
    critics = {spec.name for spec in ESTIMATORS.values() if spec.critic}
    if path in _OF_ADAMW and value("optim.method") != "adamw" and value("algorithm.advantage") not in critics:
        return "optimiser adamw, or a critic"
    return None


def _averaging(path: str, value: Lookup) -> str | None:
    aggregation = value("algorithm.aggregation")
    users = [name for name, spec in LOSSES.items() if aggregation in spec.aggregations]
    if path == "algorithm.aggregation" and aggregation == "sequence_total" and value("algorithm.loss") not in users:
        return f"policy loss {' or '.join(users)}"
    return None


def _kl(path: str, value: Lookup) -> str | None:
    if not path.startswith(("algorithm.kl.", "algorithm.reference.")) or path == "algorithm.kl.coef":
        return None
    if value("algorithm.kl.coef") == 0:
        return "β above 0"
    refresh, kl_place = value("algorithm.reference.refresh"), value("algorithm.kl.place")
    match path:
        case "algorithm.kl.target" if value(path) == "old" and kl_place == "reward":
            return "the KL penalty in the loss"
        case "algorithm.kl.target_nats" | "algorithm.kl.horizon" if value("algorithm.kl.controller") != "adaptive":
            return "a KL controller that is adaptive"
        case path if path.startswith("algorithm.reference."):
            if value("algorithm.kl.target") == "old" and kl_place != "reward":
                return "the KL target reference"
            if value("model.lora.rank") not in (0, None):
                return "LoRA rank 0: adapters have no reference of their own"
            if path == "algorithm.reference.every" and refresh == "never":
                return "reference refresh replace or average"
            if path == "algorithm.reference.weight" and refresh != "average":
                return "reference refresh average"
    return None


def _switched(path: str, value: Lookup) -> str | None:
    match path:
        case "algorithm.correction.stale" if not (
            value("engine.one_step_off") or value("algorithm.dynamic_sampling.enabled")
        ):
            return "sampling one step ahead or dynamic sampling"
        case "algorithm.dynamic_sampling.max_batches" if value("algorithm.dynamic_sampling.enabled") is False:
            return "dynamic sampling"
        case "algorithm.overlong.penalty" if value("algorithm.overlong.buffer_tokens") is None:
            return "a soft overlong punishment"
        case "model.lora.alpha" | "model.lora.targets" | "model.quantization" | "checkpoints.merged" if (
            value("model.lora.rank") == 0
        ):
            return "a LoRA rank above 0"
        case "eval.min_delta" if value("eval.patience") is None:
            return "early stopping"
        case "engine.rollout_tokens" if value("engine.rollout") == "vllm":
            return "sampler local"
        case "engine.vllm.eager" | "engine.vllm.memory_share" if value("engine.device") == "cpu":
            return "device cuda or auto"
    return None


_RULES = (_loss, _advantage, _needed, _optimiser, _averaging, _kl, _switched)

"""What does not go together with the optimiser, each with the reason and the way out. Loads no torch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_core.errors import Conflict

if TYPE_CHECKING:
    from grpo_core.config.run import RunConfig


def _trpo(c: "RunConfig") -> Iterator[Conflict]:
    if c.optim.method != "trpo":
        return
    algorithm, engine = c.algorithm, c.engine
    kl_in_loss = algorithm.kl.coef > 0 and algorithm.kl.place == "loss"
    users = (
        (
            algorithm.loss != "unclipped",
            "algorithm.loss",
            algorithm.loss,
            "is another surrogate than TRPO's, the advantage times the ratio; use loss: unclipped",
        ),
        (
            algorithm.inner_iterations > 1,
            "algorithm.inner_iterations",
            algorithm.inner_iterations,
            "would leave the trust region, which is around the policy that sampled; use 1",
        ),
        (
            algorithm.mini_batches > 1,
            "algorithm.mini_batches",
            algorithm.mini_batches,
            "would leave the trust region, which is around the policy that sampled; use 1",
        ),
        (
            kl_in_loss,
            "algorithm.kl.place",
            "loss",
            "adds a penalty to the surrogate, whose step the trust region bounds already; use kl.place: reward, or "
            "kl.coef 0",
        ),
        (
            algorithm.entropy_coef > 0,
            "algorithm.entropy_coef",
            f"{algorithm.entropy_coef:g}",
            "adds a bonus to the surrogate, which the line search does not measure; use 0",
        ),
        (
            algorithm.off_policy_threshold is not None,
            "algorithm.off_policy_threshold",
            algorithm.off_policy_threshold,
            "would leave out other completions at each length of the line search; leave it empty",
        ),
        (
            algorithm.dynamic_sampling.enabled,
            "algorithm.dynamic_sampling.enabled",
            "true",
            "learns from completions of an earlier policy, and the trust region is around the current one; switch it "
            "off",
        ),
        (
            engine.one_step_off,
            "engine.one_step_off",
            "true",
            "learns from completions of an earlier policy, and the trust region is around the current one; switch it "
            "off",
        ),
        (
            engine.training == "deepspeed",
            "engine.training",
            "deepspeed",
            "divides weights that each product with the Fisher matrix needs whole; use training: single",
        ),
        (
            engine.torch_compile,
            "engine.torch_compile",
            "true",
            "fuses layers into kernels without the forward derivatives that TRPO needs; switch it off",
        ),
        (
            engine.autocast != "none",
            "engine.autocast",
            engine.autocast,
            "rounds away the small divergences that a trust region is measured by; use none",
        ),
        (
            c.model.dtype != "float32",
            "model.dtype",
            c.model.dtype,
            "rounds away the small divergences that a trust region is measured by; use float32",
        ),
        (
            c.model.quantization != "none",
            "model.quantization",
            c.model.quantization,
            "has layers without the forward derivatives that TRPO needs; use none",
        ),
    )
    for used, field, value, why in users:
        if used:
            yield Conflict("trpo_not_with_choice", f"{field} {value} {why}, or set optim.method to adamw", field=field)


OPTIM_RULES = (_trpo,)

"""Monitors that count: completions that were not scored, were truncated or gave no answer, and groups without a signal.
Of the last ten steps while training, and at the end of the whole run."""

from grpo_core.config.run import RunConfig
from grpo_core.monitors.base import Evidence
from grpo_core.monitors.figures import MAX_ALL_EQUAL, MAX_TRUNCATED
from grpo_core.rewards.signal import OVERLONG
from grpo_core.stats.paired import EQUAL_TOLERANCE

MAX_UNSCORED = 0.005
"""Share of completions that may fail to be scored."""
MAX_WITHOUT_ANSWER = 0.5
"""Share of completions in which the verifier may find no answer."""
MAX_PHANTOM = 0.2
"""Share of groups in which shaping alone may vary."""
MAX_DIFFERENCE = 0.05
"""Mean distance of sampler and trainer, in nats a token, that rounding may make."""


def says_part_unscored(e: Evidence) -> str:
    if e.share("reward_errors", "samples") <= MAX_UNSCORED:
        return ""
    kinds = [
        (name.removeprefix("reward_errors_"), count) for name, count in sorted(e.sums.items()) if "errors_" in name
    ]
    classes = ", ".join(f"{kind} {count:,}" for kind, count in kinds)
    left_out = e.sums.get("masked_reward_error", 0)
    rest = f"; {left_out:,} of them were left out" if left_out else "; they got 0"
    first = f" The first error: {e.error.rstrip('.')}." if e.error else ""
    return f"{e.part('reward_errors', 'samples')} completions could not be scored ({classes}){rest}.{first}"


def says_machine_failed(e: Evidence) -> str:
    if e.share("reward_errors_infra", "samples") <= MAX_UNSCORED:
        return ""
    return (
        f"A sandbox or a server failed for {e.part('reward_errors_infra', 'samples')} completions, which were left out."
    )


def says_cut_off(e: Evidence) -> str:
    if e.share("truncated", "samples") <= MAX_TRUNCATED:
        return ""
    limit = e.config.sampling.max_completion_tokens
    return f"{e.part('truncated', 'samples')} completions were truncated at {limit} tokens."


def says_end_never_sampled(e: Evidence) -> str:
    if not e.sums.get("samples") or e.sums.get("truncated", 0) < e.sums["samples"]:
        return ""
    ends = f" ({e.ends})" if e.ends else ""
    return f"An end token{ends} was never sampled in {e.sums['samples']:,} completions."


def _all_cut_off(e: Evidence) -> bool:
    """Nearly no completion came to its answer: how hard the problems are, and how answers are written, is not known."""
    return e.share("truncated", "samples") >= MAX_ALL_EQUAL


def says_no_answer(e: Evidence) -> str:
    if e.share("no_answer", "samples") <= MAX_WITHOUT_ANSWER or _all_cut_off(e):
        return ""
    return f"The verifier {e.success} saw no answer in {e.part('no_answer', 'samples')} completions."


def says_all_right(e: Evidence) -> str:
    if e.share("groups_all_right", "groups") < MAX_ALL_EQUAL:
        return ""
    return f"All completions are right in {e.part('groups_all_right', 'groups')} groups."


def says_all_wrong(e: Evidence) -> str:
    if e.share("groups_all_wrong", "groups") < MAX_ALL_EQUAL or _all_cut_off(e):
        return ""
    return f"All completions are wrong in {e.part('groups_all_wrong', 'groups')} groups."


def says_all_equal(e: Evidence) -> str:
    explained = e.share("groups_all_right", "groups") + e.share("groups_all_wrong", "groups")
    if e.share("groups_all_equal", "groups") < MAX_ALL_EQUAL or explained >= MAX_ALL_EQUAL:
        return ""
    return (
        f"Every reward is equal within {e.part('groups_all_equal', 'groups')} groups: none is further "
        f"from another than {EQUAL_TOLERANCE:g} of its size."
    )


def says_shaping_alone(e: Evidence) -> str:
    if e.share("groups_phantom", "groups") < MAX_PHANTOM:
        return ""
    weights = {component.name: component.weight for component in e.config.reward.components}
    others = [name for name, weight in weights.items() if weight and name != e.success]
    others += [OVERLONG] if e.config.algorithm.overlong.buffer_tokens is not None else []
    did = "they were not learned from" if e.config.algorithm.gates_by_success else "they were learned from all the same"
    return (
        f"In {e.part('groups_phantom', 'groups')} groups rewards differ by {', '.join(others)} alone while {e.success} "
        f"does not; {did}."
    )


def says_sampler_differs(e: Evidence) -> str:
    far = e.metrics.get("sampling/logp_difference/mean", 0.0)
    if far <= MAX_DIFFERENCE or e.metrics.get("sampling/staleness", 0.0) > 0:
        return ""
    return (
        f"Sampler and trainer differ by {far:.3g} nats a token on average, "
        f"{e.metrics['sampling/logp_difference/max']:.3g} at most."
    )


def phantom_advice(config: RunConfig) -> str:
    gate = "" if config.algorithm.gates_by_success else "set algorithm.signal_gate: success, and "
    return f"Shaping has nothing to shape yet: {gate}use easier problems, or a cold start that teaches the task first."


def differs_advice(config: RunConfig) -> str:
    """The settings that make a difference, where there are any."""
    sampling = config.sampling
    cutting = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0 or sampling.repetition_penalty != 1
    causes = {
        "Take top_p 1, top_k 0, min_p 0 and repetition_penalty 1.": cutting,
        "bfloat16 rounds so far: take model.dtype float32.": config.model.dtype == "bfloat16",
        "Give vLLM the trainer's dtype.": config.engine.rollout == "vllm",
    }
    held = [text for text, holds in causes.items() if holds] or ["See that the sampler has the newest weights."]
    return " ".join([*held, "algorithm.correction weighs what is left (docs/losses/off-policy.md)."])

"""All monitors, each declared once: the trainer reports by this table, pages show it, docs/monitors.md lists it."""

from collections.abc import Callable

from grpo_core.config.run import RunConfig
from grpo_core.monitors import counted, trends
from grpo_core.monitors.base import Evidence, Figure, Monitor
from grpo_core.monitors.figures import (
    MAX_ALL_EQUAL,
    MAX_DUPLICATES,
    MAX_MADS,
    MAX_RHO,
    MAX_TRUNCATED,
    MIN_ENTROPY_LEFT,
)
from grpo_core.monitors.history import KEPT, WINDOW, History
from grpo_core.monitors.trends import mean_of
from grpo_core.text import format_percent

RUINED = "ruined"
_NOT_CUT_OFF = f", and less than {format_percent(MAX_ALL_EQUAL)} of completions truncated"
_READ = "Read the completions of the step with the highest advantages: what is rewarded there that is not right? "


def _above(limit: float, words: str) -> str:
    return f"above {format_percent(limit)} of {words} in the last {WINDOW} steps"


def _advice(text: str) -> Callable[[RunConfig], str]:
    return lambda config: text


def _reported_by_trainer(history: History, config: RunConfig) -> Figure:
    return Figure(None, "a step is judged against the steps before it; the message has its numbers")


def _nothing(evidence: Evidence) -> str:
    return ""


MONITORS = (
    Monitor(
        "part_unscored",
        "completions not scored",
        "completions with a component that failed ÷ completions",
        _above(counted.MAX_UNSCORED, "completions"),
        counted.says_part_unscored,
        _advice("Mend the verifier, or the problems that it cannot read."),
        ("frac_unscored",),
        mean_of("frac_unscored"),
        samples="errors",
    ),
    Monitor(
        "machine_failed",
        "a sandbox or server failed",
        "completions with an error of class infra ÷ completions",
        _above(counted.MAX_UNSCORED, "completions"),
        counted.says_machine_failed,
        _advice("Look at the worker: its sandbox's self-test, its memory, the judge's address (docs/rewards.md)."),
        ("reward_errors/infra", "frac_unscored"),
        trends.infra_share,
        samples="errors",
    ),
    Monitor(
        "cut_off",
        "completions truncated",
        "completions that reached sampling.max_completion_tokens ÷ completions",
        _above(MAX_TRUNCATED, "completions"),
        counted.says_cut_off,
        _advice("Raise sampling.max_completion_tokens, or ask for shorter answers in the prompt or the reward."),
        ("completions/clipped_ratio",),
        mean_of("completions/clipped_ratio"),
        samples="truncated",
    ),
    Monitor(
        "end_never_sampled",
        "no end token",
        "completions that reached the limit ÷ completions",
        f"all completions of the last {WINDOW} steps",
        counted.says_end_never_sampled,
        _advice(
            "If completions go on after a whole answer, the model ends its turns with another token (grpo doctor), or "
            "has never learned to end them: give sampling.stop, or a cold start."
        ),
        ("completions/clipped_ratio",),
        mean_of("completions/clipped_ratio"),
        samples="truncated",
    ),
    Monitor(
        "no_answer",
        "no answer recognised",
        "completions in which the verifier saw no answer ÷ completions",
        _above(counted.MAX_WITHOUT_ANSWER, "completions") + _NOT_CUT_OFF,
        counted.says_no_answer,
        _advice("Say in the prompt how the answer is to be written, or set the component's extract to how it is."),
        ("completions/no_answer",),
        mean_of("completions/no_answer"),
    ),
    Monitor(
        "all_right",
        "all right, nothing to learn",
        "groups in which every completion is right ÷ groups",
        f"{format_percent(MAX_ALL_EQUAL)} of groups in the last {WINDOW} steps, or more",
        counted.says_all_right,
        _advice("There is nothing left to learn from these problems: use harder ones, or fewer steps."),
        ("groups/all_right",),
        mean_of("groups/all_right"),
    ),
    Monitor(
        "all_wrong",
        "all wrong, nothing to learn",
        "groups in which every completion is wrong ÷ groups",
        f"{format_percent(MAX_ALL_EQUAL)} of groups in the last {WINDOW} steps, or more" + _NOT_CUT_OFF,
        counted.says_all_wrong,
        _advice(
            "Use easier problems, more completions of each (sampling.group_size), a base model that sometimes succeeds "
            "or a cold start; or see whether the reference answers are right."
        ),
        ("groups/all_wrong",),
        mean_of("groups/all_wrong"),
    ),
    Monitor(
        "all_equal",
        "all rewards equal",
        "groups with equal rewards ÷ groups",
        f"{format_percent(MAX_ALL_EQUAL)} of groups in the last {WINDOW} steps, or more, and not all right or wrong",
        counted.says_all_equal,
        _advice("Use a reward with more steps between 0 and full, or a higher sampling.temperature."),
        ("frac_reward_zero_std",),
        mean_of("frac_reward_zero_std"),
    ),
    Monitor(
        "shaping_alone",
        "shaping alone varies",
        "groups whose rewards differ while success does not ÷ groups",
        f"{format_percent(counted.MAX_PHANTOM)} of groups in the last {WINDOW} steps, or more",
        counted.says_shaping_alone,
        counted.phantom_advice,
        ("frac_phantom",),
        mean_of("frac_phantom"),
    ),
    Monitor(
        "sampler_differs",
        "sampler and trainer differ",
        "mean abs(log ρ) of the newest step's tokens, ρ = π of the trainer ÷ π of the sampler",
        f"above {counted.MAX_DIFFERENCE:g} nats a token, for completions of the newest policy",
        counted.says_sampler_differs,
        counted.differs_advice,
        ("sampling/logp_difference/mean", "sampling/logp_difference/max"),
        mean_of("sampling/logp_difference/mean"),
        share=False,
    ),
    Monitor(
        "reward_without_success",
        "reward rises, success does not",
        "gain of success ÷ gain of the mean reward (as a share of its most), last ten steps against the first ten",
        f"the reward gained {format_percent(trends.LEAST_RISE)} or more, and success, by the upper end of its "
        f"interval, less than {trends.LEAST_CARRIED:g} of that",
        trends.says_reward_without_success,
        _advice(_READ + "Probe the reward (docs/probe.md), or give what rises less weight."),
        ("reward", "rewards/{success}/mean", "completions/right"),
        trends.reward_without_success,
        alarm=True,
    ),
    Monitor(
        "reward_without_heldout",
        "reward rises, held-out does not",
        "gain of the held-out score ÷ gain of success in training, newest evaluation against the one before training",
        f"training gained {format_percent(trends.LEAST_RISE)} or more, and the held-out score, by the upper end of its "
        f"interval, less than {trends.LEAST_CARRIED:g} of that; or it fell, and training less; and is below training",
        trends.says_reward_without_heldout,
        _advice(
            _READ + "Look for answers in the training prompts, take more or other problems or fewer steps, and judge "
            "held-out problems by a verifier of their own (eval.reward)."
        ),
        ("completions/right", "rewards/{success}/mean", "eval/{suite}/score"),
        trends.reward_without_heldout,
        alarm=True,
    ),
    Monitor(
        "component_dominates",
        "one component dominates",
        "share of the rewards' variance within groups that is one component, other than success; the largest",
        f"above {format_percent(trends.MAX_COMPONENT)} on average over the last {WINDOW} steps",
        trends.says_component_dominates,
        _advice("The policy learns what this component rewards before it learns the task: give it less weight."),
        ("rewards/*/variance_share",),
        trends.component_dominates,
    ),
    Monitor(
        "length_drift",
        "lengths drift, success does not",
        "mean length of the last ten steps ÷ that of the first ten",
        f"above {trends.MAX_DRIFT:g} or below {1 / trends.MAX_DRIFT:.2g} while success has not clearly risen",
        trends.says_length_drift,
        _advice("See which component rewards length, and read the longest and shortest completions."),
        ("completions/mean_length", "completions/mean_length/right", "completions/mean_length/wrong"),
        trends.length_drift,
        share=False,
        alarm=True,
    ),
    Monitor(
        "length_bias",
        "reward correlates with length",
        "Spearman's ρ of reward and length within groups, mean weighed by size",
        f"above {MAX_RHO:g} either way on average over the last {WINDOW} steps, and lengths have moved that way by "
        f"{format_percent(trends.LEAST_GROWTH)} or more",
        trends.says_length_bias,
        _advice("See what rewards length, and take an aggregation without length bias (docs/losses/README.md)."),
        ("rewards/length_correlation",),
        mean_of("rewards/length_correlation"),
        share=False,
    ),
    Monitor(
        "entropy_collapse",
        "entropy fell",
        "mean token entropy of the last ten steps ÷ that of the first ten",
        f"below {format_percent(MIN_ENTROPY_LEFT)} while success has not clearly risen",
        trends.says_entropy_collapse,
        _advice("Lower optim.lr, raise algorithm.clip_high or algorithm.kl.coef, or begin from an earlier checkpoint."),
        ("entropy",),
        trends.entropy_collapse,
        alarm=True,
    ),
    Monitor(
        "duplicates",
        "duplicate completions",
        "completions that are not right and equal another of their group ÷ completions",
        _above(MAX_DUPLICATES, "completions"),
        trends.says_duplicates,
        _advice(
            "The policy has one answer to a problem and no other to learn from: raise sampling.temperature, lower "
            "optim.lr, or begin from an earlier checkpoint."
        ),
        ("completions/duplicates", "completions/duplicates/wrong"),
        mean_of("completions/duplicates/wrong"),
        alarm=True,
    ),
    Monitor(
        "success_fell",
        "success fell",
        "success of the last ten steps ÷ that of the best ten before them",
        f"below {format_percent(trends.MIN_SUCCESS_LEFT)}, clearly",
        trends.says_success_fell,
        _advice("Begin again from the best checkpoint with a lower optim.lr or a KL penalty."),
        ("completions/right", "rewards/{success}/mean"),
        trends.success_fell,
        alarm=True,
    ),
    Monitor(
        "kl_spike",
        "KL spike",
        f"distance of `kl` above the median of up to {KEPT - 1} steps before, in median absolute deviations",
        f"above {MAX_MADS:g}, {trends.SPIKE_FACTOR:g} times the median and {trends.LEAST_KL:g} nats a token",
        trends.says_kl_spike,
        _advice("One such step may pass; if they come again, lower optim.lr or optim.max_grad_norm."),
        ("kl",),
        trends.kl_spike,
        share=False,
    ),
    Monitor(
        "gradient_spike",
        "gradient spike",
        "the same of `grad_norm`",
        f"above {MAX_MADS:g}, {trends.SPIKE_FACTOR:g} times the median and optim.max_grad_norm",
        trends.says_gradient_spike,
        _advice("It was clipped. If they come again, lower optim.lr or optim.max_grad_norm."),
        ("grad_norm",),
        trends.gradient_spike,
        share=False,
    ),
    Monitor(
        "stall",
        "nothing is learned",
        f"groups with a signal ÷ groups, over {trends.STALL} steps",
        "0",
        trends.says_stall,
        _advice("The causes above say why; a flat reward alone is no fault and is not reported."),
        ("frac_informative",),
        trends.stall,
    ),
    Monitor(
        RUINED,
        "policy ruined",
        "right completions, or the reward, of the newest step against the ten before; jumps of entropy and KL",
        "a tenth is left at most, by chance less often than once in a million; or a jump while the reward fell. Of the "
        "last update the held-out problems show it",
        _nothing,
        _advice("Begin again from the checkpoint that is kept, with a lower optim.lr."),
        ("reward", "completions/right", "entropy", "kl"),
        _reported_by_trainer,
        alarm=True,
        lasting=True,
    ),
)
"""In the order in which they are reported: a cause comes before what it explains."""
BY_CODE = {monitor.code: monitor for monitor in MONITORS}
ALARMS = frozenset(monitor.code for monitor in MONITORS if monitor.alarm)


def title_of(code: str) -> str:
    """Of a cause in words; its code where no monitor has it any more."""
    monitor = BY_CODE.get(code)
    return monitor.title if monitor is not None else code.replace("_", " ")

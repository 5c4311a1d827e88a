"""Which charts there are and what each draws. What a run shows of them: chart_groups.py.

A chart is declared here once; those of a reward's components, of suites and of metrics that no chart knows are made by
the functions below from what a run has.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

from grpo_core.config.reward import RewardConfig

CONSTANT = ""
"""Name in a line's terms for the number 1."""


@dataclass(frozen=True)
class Line:
    name: str
    """In legend and table; unique in its chart, and names the line in a page's address."""
    terms: Mapping[str, float]
    """Metric → factor: the line is their sum, and absent where one of them is."""
    colour: str = "--accent"
    """Name of a CSS custom property."""
    spread: str = ""
    """Metric of a band of this width to either side."""
    low: str = ""
    high: str = ""
    """Metrics of a band's edges."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.terms, self.spread, self.low, self.high)))

    def reported(self, names: Collection[str]) -> bool:
        return all(name in names for name in self.terms if name != CONSTANT)


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    unit: str
    """Label of the vertical axis."""
    lines: tuple[Line, ...]
    note: str = ""
    """What is drawn, in the chart's corner."""
    band: str = ""
    """What the shaded band is."""
    kind: str = "line"
    """line, or stack: parts, one on the other, the first at the bottom."""
    floor: float | None = 0.0
    """Lowest value of the axis, where the quantity has one."""
    ceiling: float | None = None
    wide: bool = False
    """Takes two columns of the page."""
    points: bool = False
    """Each value has a mark: few steps have one."""
    log: bool = False
    """The vertical axis is logarithmic unless a viewer changes it."""
    help: str = ""
    """What the chart shows and how to act on it; folded beneath its heading."""
    own: int | None = None
    """Key of the project's chart that this is."""

    @property
    def lines_json(self) -> str:
        """What plot.js draws."""
        return json.dumps([asdict(line) for line in self.lines])

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that it draws, each once."""
        return tuple(dict.fromkeys(name for line in self.lines for name in line.metrics))


@dataclass(frozen=True)
class Group:
    """Charts under one heading, which folds."""

    id: str
    title: str
    charts: tuple[Chart, ...]
    folded: bool = False
    """Until a viewer opens it."""


SERIES = tuple(f"--series-{number}" for number in range(1, 9))
"""Colours of lines that mean neither right nor wrong."""
PHASES = ("sample", "reward", "log-probs", "update", "checkpoint", "waiting", "other", "evaluate")


def lines_of(metrics: Mapping[str, str], *colours: str) -> tuple[Line, ...]:
    """A line for each metric, by its name."""
    given = colours or SERIES
    return tuple(Line(name, {metric: 1.0}, given[at % len(given)]) for at, (metric, name) in enumerate(metrics.items()))


def shares_of(metrics: Mapping[str, str], rest: str, *colours: str) -> tuple[Line, ...]:
    """Parts of a whole, with what is left of 1 under the name `rest`; the colours in their order, that of the rest
    last."""
    left = {CONSTANT: 1.0, **dict.fromkeys(metrics, -1.0)}
    return (*lines_of(metrics, *colours[:-1]), Line(rest, left, colours[-1]))


_ZERO = "frac_reward_zero_std"
_REWARD = (
    Chart(
        "reward", "Reward", "reward", (Line("mean", {"reward": 1.0}, spread="reward_group_std"),), "mean of the step",
        "± spread inside groups", floor=None, wide=True,
    ),
    Chart(
        "spread", "Spread of rewards", "reward",
        lines_of({"reward_group_std": "inside groups", "reward_std": "of the step"}),
        help="Standard deviations. What is compared is inside groups: near 0 there is nothing to learn from.",
    ),
)  # fmt: skip
_SIGNAL = (
    Chart(
        "signal", "Learning signal", "share of groups",
        shares_of(
            {
                f"{_ZERO}/all_right": "all right", "frac_phantom": "phantom", f"{_ZERO}/other": "unscored, equal",
                f"{_ZERO}/all_wrong": "all wrong",
            },
            "mixed", "--right", "--series-4", "--muted", "--wrong", "--accent",
        ),
        kind="stack", ceiling=1.0, wide=True,
        help="Every group of the step is in one part. Mixed: success varies, and there is something to learn. Phantom: "
        "rewards differ by shaping alone. The others have equal rewards, or fewer than two completions with one.",
    ),
    Chart(
        "verdicts", "Groups by verdict", "share of groups",
        shares_of(
            {"groups/all_right": "all right", "groups/mixed": "mixed", "groups/all_wrong": "all wrong"},
            "not judged", "--right", "--accent", "--wrong", "--muted",
        ),
        kind="stack", ceiling=1.0, help="By the success component alone, whatever the rewards are.",
    ),
    Chart(
        "right", "Right completions", "share of completions",
        lines_of({"completions/right": "right", "completions/no_answer": "no answer seen"}, "--right", "--wrong"),
        "in training", ceiling=1.0,
        help="By the component that means right: those that it passed of those that it judged, and those in which its "
        "verifier saw no answer.",
    ),
    Chart(
        "duplicates", "Duplicate completions", "share of completions",
        lines_of(
            {"completions/duplicates": "equal to another", "completions/duplicates/wrong": "and not right"},
            "--series-1", "--wrong",
        ),
        "of their group", ceiling=1.0,
    ),
    Chart(
        "zero_std", "Zero variance", "share of groups",
        lines_of({"frac_informative": "with a signal", _ZERO: "zero variance"}),
        ceiling=1.0,
    ),
    Chart(
        "dynamic", "Dynamic sampling", "groups",
        lines_of({"dynamic_sampling/discarded_groups": "discarded", "dynamic_sampling/surplus_groups": "left over"}),
    ),
    Chart("batches", "Batches sampled", "batches", lines_of({"dynamic_sampling/batches": "batches"}), "for one step"),
    Chart(
        "masked", "Left out of the update", "completions",
        lines_of(
            {"masked/reward_error": "not scored", "masked/truncated": "truncated", "masked/importance": "mismatch"},
            "--wrong", "--series-1", "--series-5",
        ),
    ),
)  # fmt: skip
_POLICY = (
    Chart("kl", "KL to reference", "nats", lines_of({"kl": "KL"}), "mean per token", floor=None),
    Chart("kl_completion", "KL of a completion", "nats", lines_of({"kl_per_completion": "KL"}), "mean", floor=None),
    Chart(
        "clip", "Clipped tokens", "share of tokens",
        lines_of({"clip_ratio/low_mean": "below", "clip_ratio/high_mean": "above"}, "--series-5", "--series-1"),
    ),
    Chart(
        "entropy", "Entropy", "nats", lines_of({"entropy": "sampled", "policy_entropy": "at the update"}),
        "mean per token",
    ),
    Chart(
        "trust_region", "Trust region", "nats", lines_of({"trpo/kl": "KL of the step"}), "mean per token, TRPO",
    ),
    Chart("surrogate_gain", "Gain of the surrogate", "advantage", lines_of({"trpo/surrogate_gain": "gain"}), "TRPO"),
    Chart(
        "line_search", "Line search", "lengths tried", lines_of({"trpo/line_search_steps": "lengths"}), "TRPO",
    ),
    Chart("kl_coef", "KL weight β", "β", lines_of({"kl_coef": "β"}), "moved towards its target"),
    Chart("off_policy", "Off-policy mask", "share of tokens", lines_of({"off_policy_share": "left out"})),
)  # fmt: skip
_LENGTHS = (
    Chart(
        "length", "Completion length", "tokens",
        (Line("mean", {"completions/mean_length": 1.0}, low="completions/min_length", high="completions/max_length"),),
        "mean of the step", "shortest to longest",
    ),
    Chart(
        "length_verdict", "Length of right and wrong", "tokens",
        lines_of(
            {"completions/mean_length/right": "right", "completions/mean_length/wrong": "wrong"}, "--right", "--wrong"
        ),
        help="Means, by the success component.",
    ),
    Chart(
        "length_correlation", "Reward and length", "Spearman’s ρ",
        lines_of({"rewards/length_correlation": "ρ"}), "within groups", floor=None, ceiling=1.0,
        help="Above 0 longer completions are rewarded more, below 0 shorter ones.",
    ),
    Chart("truncated", "Truncated", "share of completions", lines_of({"completions/clipped_ratio": "truncated"})),
    Chart(
        "overlong", "Overlong punishment", "reward", lines_of({"rewards/overlong/mean": "punishment"}),
        "before its weight", floor=None,
    ),
)  # fmt: skip
_OPTIMISATION = (
    Chart("loss", "Loss", "loss", lines_of({"loss": "loss"}), "mean of the updates", floor=None),
    Chart("grad_norm", "Gradient norm", "norm", lines_of({"grad_norm": "norm"}), "before clipping"),
    Chart("learning_rate", "Learning rate", "rate", lines_of({"learning_rate": "rate"})),
    Chart("value_loss", "Value loss", "loss", lines_of({"value_loss": "loss"}), "of the critic"),
    Chart("value_grad_norm", "Critic’s gradient norm", "norm", lines_of({"value_grad_norm": "norm"})),
    Chart(
        "explained", "Explained variance", "share", lines_of({"explained_variance": "share"}),
        "by the critic; 1 is all", floor=None,
    ),
)  # fmt: skip
_MISMATCH = (
    Chart(
        "mismatch", "Sampler–trainer log-prob mismatch", "nats",
        lines_of({"sampling/logp_difference/mean": "difference"}), "mean |log ratio| per token",
    ),
    Chart(
        "mismatch_max", "Largest mismatch", "nats", lines_of({"sampling/logp_difference/max": "difference"}),
        "|log ratio| of a token",
    ),
    Chart(
        "ratio", "Importance ratio", "ratio",
        (
            Line(
                "mean", {"sampling/importance_ratio/mean": 1.0},
                low="sampling/importance_ratio/min", high="sampling/importance_ratio/max",
            ),
        ),
        "mean per token", "lowest to highest",
    ),
    Chart(
        "corrected", "Ratios truncated, completions masked", "share",
        lines_of({"sampling/truncated_share": "tokens truncated", "sampling/dropped_share": "completions masked"}),
    ),
    Chart("staleness", "Staleness", "updates", lines_of({"sampling/staleness": "updates"}), "mean"),
    Chart("probe", "Weights in vLLM", "nats", lines_of({"vllm/probe_difference": "difference"}), "of a probe"),
)  # fmt: skip
_TIME = (
    Chart(
        "phases", "Step time", "seconds",
        lines_of(
            {f"seconds/{name.replace('-', '')}": name for name in PHASES},
            *(f"--phase-{number}" for number in range(1, len(PHASES) + 1)),
        ),
        kind="stack", wide=True, help="The parts add up to the step. Waiting: for the run's other processes.",
    ),
    Chart("rate", "Samples per second", "completions/s", lines_of({"samples_per_second": "rate"}), "of the whole step"),
    Chart(
        "speed", "Completion tokens per second", "tokens/s",
        lines_of({"tokens_per_second/sample": "sampling", "tokens_per_second/update": "training"}),
        help="Over the time of their own phases. Where learning is slow, larger micro-batches or the shared layout may "
        "help; where sampling is, more completions side by side.",
    ),
    Chart("push", "Weights sent to vLLM", "seconds", lines_of({"vllm/push_seconds": "seconds"})),
)  # fmt: skip
PHASES_OVERLAPPED = (
    "But for the first step's, sample and reward ran alongside the step before and take none of this step's time; the "
    "other parts add up to it. Waiting: for the next step's completions, or for the run's other processes."
)
"""Help of the chart of phases with engine.one_step_off."""
_HARDWARE = (
    Chart(
        "memory", "Memory", "GB",
        (
            Line("peak of the step", {"memory/peak_bytes": 1e-9}, "--series-1"),
            Line("of the GPU, in use", {"memory/device_bytes": 1e-9}, "--series-2"),
        ),
        help="Peak: on a CPU the resident memory of the trainer, on a GPU what PyTorch had allocated of the device; of "
        "several processes the largest. Fewer tokens in a micro-batch, or gradient checkpointing, make it less.",
    ),
    Chart(
        "utilisation", "GPU utilisation", "share of time", lines_of({"device_utilisation": "utilisation"}),
        "mean of the step, by NVML", ceiling=1.0,
        help="Part of the step in which the GPU computed at all. Low: it waits for rewards, for the CPU, or samples "
        "too few completions side by side.",
    ),
)  # fmt: skip
GROUPS = (
    Group("reward", "Reward", _REWARD),
    Group("signal", "Learning signal", _SIGNAL),
    Group("policy", "Policy change", _POLICY),
    Group("lengths", "Lengths", _LENGTHS),
    Group("optimisation", "Optimisation", _OPTIMISATION),
    Group("mismatch", "Sampler mismatch", _MISMATCH),
    Group("time", "Time", _TIME),
    Group("hardware", "Hardware", _HARDWARE),
)
"""In the order of the page; those of evaluations, own charts and the rest are added for a run."""


def component_charts(reward: RewardConfig, reported: Iterable[str]) -> tuple[Chart, ...]:
    """Of the reward's components: their means, success next to the rest, and what could not be scored."""
    names = [component.name for component in reward.components]
    charts = []
    if len(names) > 1:
        means = {f"rewards/{name}/mean": name for name in names}
        charts.append(
            Chart("components", "Components", "value", lines_of(means), "means, before their weights", floor=None)
        )
        parts = {f"rewards/{name}/variance_share": name for name in names}
        note = "of the rewards’ variance within groups"
        charts.append(Chart("variance_shares", "What rewards differ by", "share", lines_of(parts), note, floor=None))
        shares = {f"rewards/{name}/share": name for name in names}
        charts.append(Chart("component_rows", "Rows of a component", "share of samples", lines_of(shares), ceiling=1.0))
    success = reward.success_component
    weight = next(component.weight for component in reward.components if component.name == success)
    if all(component.only is None for component in reward.components):  # else rows differ in what means right
        mean = f"rewards/{success}/mean"
        paid = Line(success, {mean: weight}, "--right")
        rest = Line("the rest of the reward", {"reward": 1.0, mean: -weight}, "--series-5")
        note = "by weight, means of the step"
        charts.insert(0, Chart("shaping", "Success and shaping", "reward", (paid, rest), note, floor=None))
    errors = {
        name: name.removeprefix("reward_errors/") for name in sorted(reported) if name.startswith("reward_errors/")
    }
    unscored = {"frac_unscored": "any component"} | {f"rewards/{name}/unscored": name for name in names}
    if len(names) == 1:
        unscored.popitem()
    return (
        *charts,
        Chart("unscored", "Not scored", "share of samples", lines_of(unscored)),
        Chart("errors", "Errors of rewards", "completions", lines_of({**errors, "reward_errors": "all"})),
    )


_SCORE = re.compile(r"eval/(.+)/score")


def evaluation_chart(reported: Iterable[str]) -> Chart:
    """Scores of evaluations while training, a line for each suite."""
    suites = sorted(match[1] for name in reported if (match := _SCORE.fullmatch(name)))
    return Chart(
        "evaluations",
        "Held-out and suites while training",
        "score",
        tuple(
            Line(
                suite,
                {f"eval/{suite}/score": 1.0},
                SERIES[at % len(SERIES)],
                low=f"eval/{suite}/low",
                high=f"eval/{suite}/high",
            )
            for at, suite in enumerate(suites)
        ),
        band="95 % interval",
        floor=None,
        wide=True,
        points=True,
    )

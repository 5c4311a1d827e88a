"""Which charts a run has, what each draws, and which configs have numbers for it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from grpo_core.config.run import RunConfig


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    note: str
    """What is drawn, in the chart's corner."""
    unit: str
    """Label of the vertical axis."""
    labels: Mapping[str, str]
    """Metric names → what people call them; the first metric decides which points of a long series stay."""
    kind: str = "line"
    """band: a line with a shaded spread; stack: parts, one on the other; line: one for each column."""
    colours: tuple[str, ...] = ("--accent",)
    """Names of CSS custom properties."""
    floor: float | None = 0.0
    """Lowest value of the axis, where the quantity has one."""
    ceiling: float | None = None
    scale: float = 1.0
    """What a stored number is multiplied by, for its unit."""
    help: str = ""
    """What the chart shows and how to act on it; folded beneath its heading."""
    span: int = 0
    """Width in sixtieths of the page on a wide screen; given by `charts_of`."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.labels.values())

    @property
    def legend(self) -> list[tuple[str, str]]:
        """(name, colour) of each line in the chart's legend; empty for one line."""
        single = self.kind == "band" or len(self.columns) == 1
        return [] if single else list(zip(self.names, self.colours, strict=True))


_PHASES = ("sample", "reward", "log-probs", "update", "checkpoint", "waiting", "other", "evaluate")
_PHASES_OVERLAPPED = (
    "But for the first step's, sample and reward ran alongside the step before and take none of this step's time; the "
    "other parts add up to it. Waiting: for the next step's completions, or for the run's other processes."
)
"""Help of the chart of phases with engine.one_step_off."""

_TWO = ("--accent", "--muted")
_THREE = ("--right", "--accent", "--wrong")
CHARTS = (
    Chart(
        "reward",
        "Reward",
        "mean of the step, and spread inside groups",
        "reward",
        {"reward": "mean", "reward_group_std": "spread"},
        "band",
        ("--accent", "--band"),
        floor=None,
    ),
    Chart(
        "signal",
        "Learning signal",
        "groups by how many samples are right",
        "share of groups",
        {"groups/all_right": "all right", "groups/mixed": "mixed", "groups/all_wrong": "all wrong"},
        "stack",
        _THREE,
        ceiling=1.0,
    ),
    Chart(
        "phantom",
        "Phantom groups",
        "rewards differ by shaping alone",
        "share of groups",
        {"frac_phantom": "phantom"},
        ceiling=1.0,
    ),
    Chart("kl", "KL to reference", "mean per token", "nats", {"kl": "KL"}, floor=None),
    Chart("kl_coef", "KL weight β", "moved towards its target", "β", {"kl_coef": "β"}),
    Chart("entropy", "Entropy", "mean per token", "nats", {"entropy": "entropy"}),
    Chart(
        "clip",
        "Clipped tokens",
        "of all updates",
        "share of tokens",
        {"clip_ratio/low_mean": "below", "clip_ratio/high_mean": "above"},
        colours=("--muted", "--accent"),
    ),
    Chart("length", "Completion length", "mean of the step", "tokens", {"completions/mean_length": "length"}),
    Chart(
        "zero_std",
        "Zero-variance groups",
        "equal rewards, by how many samples are right",
        "share of groups",
        {f"frac_reward_zero_std/{name.replace(' ', '_')}": name for name in ("all right", "other", "all wrong")},
        "stack",
        _THREE,
        ceiling=1.0,
    ),
    Chart(
        "dynamic",
        "Dynamic sampling",
        "groups",
        "groups",
        {"dynamic_sampling/discarded_groups": "discarded", "dynamic_sampling/surplus_groups": "left over"},
        colours=_TWO,
    ),
    Chart(
        "overlong",
        "Overlong punishment",
        "mean of the step, before its weight",
        "reward",
        {"rewards/overlong/mean": "punishment"},
        floor=None,
    ),
    Chart(
        "masked",
        "Left out of the update",
        "completions",
        "completions",
        {"masked/reward_error": "not scored", "masked/truncated": "truncated", "masked/importance": "mismatch"},
        colours=("--wrong", *_TWO),
    ),
    Chart(
        "mismatch",
        "Sampler–trainer log-prob mismatch",
        "mean |log ratio| per token",
        "nats",
        {"sampling/logp_difference/mean": "difference"},
    ),
    Chart("value_loss", "Value loss", "of the critic", "loss", {"value_loss": "loss"}),
    Chart(
        "explained",
        "Explained variance",
        "of the returns, by the critic; 1 is all",
        "share",
        {"explained_variance": "share"},
        floor=None,
    ),
    Chart(
        "phases",
        "Step time",
        "seconds by phase",
        "seconds",
        {f"seconds/{name.replace('-', '')}": name for name in _PHASES},
        "stack",
        tuple(f"--phase-{number}" for number in range(1, len(_PHASES) + 1)),
        help="The parts add up to the step. Waiting: for the run's other processes.",
    ),
    Chart(
        "speed",
        "Completion tokens per second",
        "while sampling, while training",
        "tokens/s",
        {"tokens_per_second/sample": "sampling", "tokens_per_second/update": "training"},
        colours=_TWO,
        help="Over the time of their own phases. Where learning is slow, larger micro-batches or the shared layout may "
        "help; where sampling is, more completions side by side.",
    ),
    Chart(
        "memory",
        "Peak memory",
        "within each step",
        "GB",
        {"memory/peak_bytes": "peak"},
        scale=1e-9,
        help="On a CPU the resident memory of the trainer, on a GPU what PyTorch had allocated of the device; of "
        "several processes the largest. Fewer tokens in a micro-batch, or gradient checkpointing, make it less.",
    ),
    Chart(
        "utilisation",
        "GPU utilisation",
        "mean of the step, by NVML",
        "share of time",
        {"device_utilisation": "utilisation"},
        ceiling=1.0,
        help="Part of the step in which the GPU computed at all. Low: it waits for rewards, for the CPU, or samples "
        "too few completions side by side.",
    ),
)
"""The first stack column is drawn at the bottom."""


def clips(config: RunConfig) -> bool:
    """Whether tokens can be clipped at all: not with one update on each batch, whose ratio is 1, unless groups of an
    earlier step are in it; and not with a loss that holds no ratio. A ratio to the sampler (DPPO) is never 1
    for certain."""
    algorithm = config.algorithm
    if algorithm.loss_spec.ratio == "sampler":
        return algorithm.loss_spec.clips
    earlier = algorithm.dynamic_sampling.enabled or config.engine.one_step_off
    moves = algorithm.updates_per_batch > 1 or (earlier and algorithm.correction.stale == "ratio")
    return moves and algorithm.loss_spec.clips


_APPLIES: Mapping[str, Callable[[RunConfig], bool]] = {
    "phantom": lambda c: len(c.reward.components) > 1 or c.algorithm.overlong.buffer_tokens is not None,
    "kl": lambda c: c.algorithm.kl.coef > 0,
    "kl_coef": lambda c: c.algorithm.kl.controller == "adaptive",
    "clip": clips,
    "dynamic": lambda c: c.algorithm.dynamic_sampling.enabled,
    "overlong": lambda c: c.algorithm.overlong.buffer_tokens is not None,
    "utilisation": lambda c: c.engine.device != "cpu",
    "value_loss": lambda c: c.algorithm.estimator.critic,
    "explained": lambda c: c.algorithm.estimator.critic,
}
"""Charts that only some configs have numbers for. Where a reader would look for one, its tile shows why."""
_WIDE = {"reward": 33, "signal": 27}
_A_ROW = 4


_OPTIONAL = frozenset({"speed", "memory", "utilisation"})
"""Charts of metrics that not every machine or version reports: left out of a run whose steps do not."""


def charts_of(config: RunConfig, reported: Collection[str] = ()) -> tuple[Chart, ...]:
    """What a run draws, with widths that leave no hole in a row. `reported`: names of the metrics of its newest step;
    none before the first."""
    drawn = [chart for chart in CHARTS if chart.id not in _APPLIES or _APPLIES[chart.id](config)]
    if reported:
        drawn = [chart for chart in drawn if chart.id not in _OPTIONAL or chart.columns[0] in reported]
    if config.algorithm.kl.target == "old":
        drawn = [replace(chart, title="KL to old policy") if chart.id == "kl" else chart for chart in drawn]
    if config.engine.one_step_off:
        drawn = [replace(chart, help=_PHASES_OVERLAPPED) if chart.id == "phases" else chart for chart in drawn]
    spans = iter(_spans(sum(chart.id not in _WIDE for chart in drawn)))
    return tuple(replace(chart, span=_WIDE.get(chart.id) or next(spans)) for chart in drawn)


def _spans(count: int) -> list[int]:
    """Widths of so many charts in rows of at most four, the rows as even as they go."""
    rows = -(-count // _A_ROW)
    sizes = [count // rows + (row < count % rows) for row in range(rows)]
    return [60 // size for size in sizes for _ in range(size)]

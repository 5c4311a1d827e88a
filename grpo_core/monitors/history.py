"""What monitors look at: a run's first steps, its newest ones and its evaluations. Bounded, and carried through
checkpoints, so that a resumed run reports what an uninterrupted one does."""

from collections import Counter
from collections.abc import Iterator, Mapping

from pydantic import Field

from grpo_core.monitors.figures import Share
from grpo_core.records.types import Body

WINDOW = 10
"""Steps that a figure is the mean of, and that a cause is looked for in; fewer while there are fewer."""
KEPT = 30
"""Newest steps that are kept."""
_KEPT_METRICS = (
    *("reward", "frac_informative", "frac_reward_zero_std", "frac_phantom"),
    *("frac_unscored", "reward_errors", "reward_errors/infra"),
    *("completions/right", "completions/no_answer", "completions/mean_length", "completions/clipped_ratio"),
    *("completions/duplicates/wrong", "rewards/length_correlation", "entropy", "kl", "grad_norm", "learning_rate"),
    *("groups/all_right", "groups/all_wrong", "sampling/logp_difference/mean", "sampling/logp_difference/max"),
    "sampling/staleness",
)
_COMPONENTS = ("/mean", "/variance_share")


def watched(name: str) -> bool:
    """Whether a monitor reads the metric."""
    if name.startswith("rewards/") and name.endswith(_COMPONENTS):
        return True
    return name in _KEPT_METRICS or name.startswith("eval/")


class StepRow(Body):
    """One step."""

    step: int
    sampled_at: int | None = None
    """Step whose policy sampled the oldest of its groups, when that is an earlier one."""
    metrics: dict[str, float]
    """Those that a monitor reads."""
    sums: dict[str, int] = Field(default_factory=dict)
    """What the step added to the run's sums (trainer.metrics.step_sums); of the newest `WINDOW` steps only."""


class History(Body):
    """One run's steps as far as monitors need them."""

    first: tuple[StepRow, ...] = ()
    """`WINDOW` at most."""
    newest: tuple[StepRow, ...] = ()
    """`KEPT` at most, the newest last. Those of `first` are among them while the run is young."""
    before: dict[str, float] = Field(default_factory=dict)
    """`eval/<suite>/score`, `low` and `high` of the evaluation before training, else of the first one."""
    evaluated: dict[str, float] = Field(default_factory=dict)
    """The same of the newest evaluation while training; empty before the first."""
    trained: tuple[StepRow, ...] = ()
    """The `WINDOW` steps up to that evaluation."""

    def add(self, row: StepRow) -> "History":
        """With one more step."""
        metrics = {name: value for name, value in row.metrics.items() if watched(name)}
        scores = {name: value for name, value in metrics.items() if name.startswith("eval/")}
        row = row.model_copy(update={"metrics": {name: v for name, v in metrics.items() if name not in scores}})
        kept = self.newest[1 - KEPT :]
        old = {} if len(kept) < WINDOW else {len(kept) - WINDOW}
        kept = tuple(own.model_copy(update={"sums": {}}) if at in old else own for at, own in enumerate(kept))
        changed: dict[str, object] = {"newest": (*kept, row)}
        if len(self.first) < WINDOW:
            changed["first"] = (*self.first, row.model_copy(update={"sums": {}}))
        if scores:
            trained = (*kept, row)[-WINDOW:]
            changed |= {"evaluated": scores, "before": self.before or scores}
            changed["trained"] = tuple(own.model_copy(update={"sums": {}}) for own in trained)
        return self.model_copy(update=changed)

    def evaluated_before(self, scores: Mapping[str, float]) -> "History":
        """With the evaluation before training."""
        return self.model_copy(update={"before": {**self.before, **scores}})

    @property
    def window(self) -> tuple[StepRow, ...]:
        """The newest `WINDOW` steps."""
        return self.newest[-WINDOW:]

    @property
    def apart(self) -> bool:
        """Whether the first and the newest `WINDOW` steps have none in common."""
        return len(self.newest) >= WINDOW and len(self.first) == WINDOW and self.window[0].step > self.first[-1].step

    def sums(self) -> Counter[str]:
        """Of the window."""
        total: Counter[str] = Counter()
        for row in self.window:
            total.update(row.sums)
        return total

    def share(self, suite: str, *, before: bool = False) -> Share | None:
        """Score of a suite, before training or newest."""
        scores = self.before if before else self.evaluated
        names = [f"eval/{suite}/{part}" for part in ("score", "low", "high")]
        return Share(*(scores[name] for name in names)) if all(name in scores for name in names) else None


def series(rows: tuple[StepRow, ...], name: str) -> list[float]:
    """Values of a metric in the steps that have it."""
    return [row.metrics[name] for row in rows if name in row.metrics]


def component_names(rows: tuple[StepRow, ...], part: str) -> Iterator[str]:
    """Reward components with the metric `rewards/<component>/<part>` in any of the steps."""
    names = dict.fromkeys(name for row in rows for name in row.metrics if name.endswith(f"/{part}"))
    return (name.split("/")[1] for name in names if name.startswith("rewards/"))

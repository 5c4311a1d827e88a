"""The row of numbers above a run's charts: of each the mean of the newest ten steps, and of the first ten.

One step's mean of a few dozen completions says little, and the difference of two such says less. No step is in both
windows: a run of fewer than twenty shows no change.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Q

from cohort.base.formatting import MINUS, NBSP, fixed, num, percent
from cohort.runs.models import Run
from cohort.runs.transitions import current_steps
from cohort.web.runs.header import Header
from grpo_core.config.run import RunConfig
from grpo_core.config.stage import Kind

WINDOW = 10
"""Steps that a tile's number is the mean of."""


Row = tuple[str, tuple[str, ...], str, str]
"""Label, metrics that are added up, how the value is written, which direction counts as good."""
_LEARNED: tuple[Row, ...] = (
    ("Loss", ("loss",), "number", "down"),
    ("Gradient norm", ("grad_norm",), "number", ""),
    ("Learning rate", ("learning_rate",), "number", ""),
    ("Tokens per second", ("tokens_per_second/update",), "number", ""),
)
_SFT: tuple[Row, ...] = (
    *_LEARNED[:1],
    ("Token accuracy", ("mean_token_accuracy",), "share", "up"),
    *_LEARNED[1:],
    ("Epochs", ("epoch",), "number", ""),
)
OF_KIND: dict[Kind, tuple[Row, ...]] = {
    "sft": _SFT,
    "distill": _SFT,
    "reward_model": (
        *_LEARNED[:1],
        ("Pairs ordered right", ("rewards/accuracies",), "share", "up"),
        ("Margin", ("rewards/margins",), "number", "up"),
        *_LEARNED[1:],
        ("Epochs", ("epoch",), "number", ""),
    ),
    "sample": (
        ("Reward", ("reward",), "number", ""),
        ("Right completions", ("completions/right",), "share", ""),
        ("Kept", ("dataset/kept",), "share", ""),
        ("Length, tokens", ("completions/mean_length",), "number", ""),
        ("Truncated", ("completions/clipped_ratio",), "share", ""),
        ("Samples per second", ("samples_per_second",), "number", ""),
    ),
}
"""Of the kinds whose tiles depend on no setting."""


@dataclass(frozen=True)
class Tile:
    label: str
    value: float | None
    """Mean over the newest window."""
    kind: str
    """number or share: how the value is written."""
    change: float | None
    """From the mean over the first window; None while the two would overlap."""
    better: str
    """up, down or empty: which direction counts as good, for colour besides the sign."""
    absent: str
    """Shown instead of a value."""
    meaning: str
    """What the numbers are."""

    @property
    def shown(self) -> str:
        return _share(self.value) if self.kind == "share" else num(self.value)

    @property
    def change_shown(self) -> str:
        """With as many decimals as the value itself, three next to a plain 0; empty when that shows no change, or none
        is known."""
        if self.change is None:
            return ""
        written = self.shown.removesuffix(f"{NBSP}%")
        decimals = 3 if self.value == 0 else len(written.partition(".")[2])
        text = fixed(100 * self.change if self.kind == "share" else self.change, decimals)
        if float(text.replace(",", "").replace(MINUS, "-")) == 0:
            return ""
        sign = "" if text.startswith(MINUS) else "+"
        return f"{sign}{text} points" if self.kind == "share" else f"{sign}{text}"

    @property
    def tone(self) -> str:
        if not self.change or not self.better:
            return "muted"
        return "right" if (self.change > 0) == (self.better == "up") else "wrong"


def _share(value: float | None) -> str:
    """A percentage with two significant digits, so that a small share is not shown as none; whole from 10 % on."""
    if not value:
        return percent(value, 0)
    places = max(0, 1 - math.floor(math.log10(abs(100 * value))))
    return percent(value, places) if places < 5 else f"{num(100 * value, 2)}{NBSP}%"


@dataclass(frozen=True)
class Windows:
    """The numbers of the steps that tiles are made of, in order."""

    first: Sequence[Mapping[str, float]]
    """Empty while it would overlap the newest."""
    newest: Sequence[Mapping[str, float]]

    @property
    def meaning(self) -> str:
        count = len(self.newest)
        if self.first:
            return f"Mean of the last {WINDOW} steps, and its difference from the mean of the first {WINDOW}."
        if count == 0:
            return "Comes with the first step."
        of = f"the last {count} steps" if count == WINDOW else f"{count} steps" if count > 1 else "one step"
        return f"Mean of {of}. A change is shown from step {2 * WINDOW} on."


def windows(run: Run) -> Windows:
    """Of the current steps, twenty rows at most, in one query."""
    edges = Q(step__lte=WINDOW) | Q(step__gt=run.step - WINDOW)
    rows = list(current_steps(run).filter(edges).values_list("metrics", flat=True))
    return Windows(rows[:WINDOW] if run.step >= 2 * WINDOW else [], rows[-WINDOW:])


def tiles(header: Header, steps: Windows) -> tuple[Tile, ...]:
    config = header.config

    def tile(label: str, *names: str, kind: str = "number", better: str = "", absent: str = "–") -> Tile:
        """Of several metrics their sum."""
        now, start = (_mean(rows, names) for rows in (steps.newest, steps.first))
        change = now - start if now is not None and start is not None else None
        return Tile(label, now, kind, change, better, absent, steps.meaning)

    if not isinstance(config, RunConfig):
        return tuple(
            tile(label, *names, kind=kind, better=better) for label, names, kind, better in OF_KIND[config.kind]
        )
    beta = config.algorithm.kl.coef
    return (
        tile("Reward", "reward", better="up"),
        tile("Groups with signal", "frac_informative", kind="share"),
        tile(
            "KL to old policy" if beta and config.algorithm.kl.target == "old" else "KL to reference",
            "kl",
            absent="n/a, β 0" if beta == 0 else "–",
        ),
        tile("Clipped tokens", "clip_ratio/low_mean", "clip_ratio/high_mean", kind="share", absent=_unclipped(config)),
        tile("Entropy", "entropy"),
        tile("Length, tokens", "completions/mean_length"),
        tile("Samples per second", "samples_per_second"),
    )


def _mean(rows: Sequence[Mapping[str, float]], names: Sequence[str]) -> float | None:
    """Over the steps that report all of them; None where none does."""
    sums = [sum(row[name] for name in names) for row in rows if all(name in row for name in names)]
    return math.fsum(sums) / len(sums) if sums else None


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


def _unclipped(config: RunConfig) -> str:
    """Why there is no share of tokens that were clipped, where there cannot be one."""
    if not config.algorithm.loss_spec.clips:
        return f"n/a, loss {config.algorithm.loss.replace('_', ' ')}"
    return "–" if clips(config) else "n/a at μ 1"

"""The row of numbers above a run's charts: the newest of each, with its change since the first step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cohort.base.formatting import MINUS, fixed, num, percent
from cohort.web.runs.chart_list import clips
from cohort.web.runs.header import Header


@dataclass(frozen=True)
class Tile:
    label: str
    value: float | None
    kind: str
    """number, share, or plain; how the value is written."""
    change: float | None
    better: str
    """up, down or empty: which direction counts as good, for colour besides the sign."""
    absent: str
    """Shown instead of a value."""

    @property
    def shown(self) -> str:
        return percent(self.value, 0) if self.kind == "share" else num(self.value)

    @property
    def change_shown(self) -> str:
        """With as many decimals as the value itself, three next to a plain 0; empty when that shows no change, or none
        is known."""
        if self.change is None:
            return ""
        decimals = 0 if self.kind == "share" else 3 if self.value == 0 else len(self.shown.partition(".")[2])
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


def tiles(header: Header) -> tuple[Tile, ...]:
    """The newest numbers, with their change since the first step."""
    run, algorithm = header.run, header.config.algorithm
    beta = algorithm.kl.coef
    speed = header.config.completions_per_step / run.seconds_per_step if run.seconds_per_step else None

    def tile(label: str, *names: str, kind: str = "number", better: str = "", absent: str = "–") -> Tile:
        """Of several metrics their sum."""
        now, start = (_sum(metrics, names) for metrics in (run.latest_metrics, run.first_metrics))
        change = now - start if now is not None and start is not None and run.step > 1 else None
        return Tile(label, now, kind, change, better, absent)

    return (
        tile("Reward", "reward", better="up"),
        tile("Groups with signal", "frac_informative", kind="share"),
        tile(
            "KL to old policy" if beta and algorithm.kl.target == "old" else "KL to reference",
            "kl",
            absent="n/a, β 0" if beta == 0 else "–",
        ),
        tile("Clipped tokens", "clip_ratio/low_mean", "clip_ratio/high_mean", kind="share", absent=_unclipped(header)),
        tile("Entropy", "entropy"),
        tile("Length, tokens", "completions/mean_length"),
        Tile("Samples per second", speed, "number", None, "", "–"),
    )


def _sum(metrics: Mapping[str, float], names: Sequence[str]) -> float | None:
    """None where one is absent."""
    return sum(metrics[name] for name in names) if all(metrics.get(name) is not None for name in names) else None


def _unclipped(header: Header) -> str:
    """Why there is no share of tokens that were clipped, where there cannot be one."""
    algorithm = header.config.algorithm
    if not algorithm.loss_spec.clips:
        return f"n/a, loss {algorithm.loss.replace('_', ' ')}"
    return "–" if clips(header.config) else "n/a at μ 1"

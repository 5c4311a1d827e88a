"""The row of numbers above a run's charts: the newest of each, with its change since the first step."""

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

    def tile(
        label: str, name: str, kind: str = "number", better: str = "", absent: str = "–", flip: bool = False
    ) -> Tile:
        now, start = run.latest_metrics.get(name), run.first_metrics.get(name)
        if flip:
            now, start = (None if value is None else 1 - value for value in (now, start))
        change = now - start if now is not None and start is not None and run.step > 1 else None
        return Tile(label, now, kind, change, better, absent)

    return (
        tile("Reward", "reward", better="up"),
        tile("Groups with signal", "frac_reward_zero_std", kind="share", flip=True),
        tile(
            "KL to old policy" if beta and algorithm.kl.target == "old" else "KL to reference",
            "kl",
            absent="n/a, β 0" if beta == 0 else "–",
        ),
        _clipped(header),
        tile("Entropy", "entropy"),
        tile("Length, tokens", "completions/mean_length"),
        Tile("Samples per second", speed, "number", None, "", "–"),
    )


def _clipped(header: Header) -> Tile:
    """Share of tokens that were clipped, below and above together; why there is none where there cannot be."""
    run, config = header.run, header.config
    names = ("clip_ratio/low_mean", "clip_ratio/high_mean")
    if not config.algorithm.loss_spec.clips:
        absent = f"n/a, loss {config.algorithm.loss.replace('_', ' ')}"
    else:
        absent = "–" if clips(config) else "n/a at μ 1"
    now, start = ([metrics.get(name) for name in names] for metrics in (run.latest_metrics, run.first_metrics))
    if None in now:
        return Tile("Clipped tokens", None, "share", None, "", absent)
    total = sum(value for value in now if value is not None)
    change = total - sum(value for value in start if value is not None) if None not in start and run.step > 1 else None
    return Tile("Clipped tokens", total, "share", change, "", absent)

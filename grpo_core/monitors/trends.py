"""Monitors of what moves over many steps: reward without success, drift, collapse, spikes. Each compares the first ten
steps, or those before, with the newest ten."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median

from grpo_core.config.run import RunConfig
from grpo_core.monitors.base import Evidence, Figure, heldout_of
from grpo_core.monitors.figures import (
    LEAST_FOR_A_SPIKE,
    MAX_DUPLICATES,
    MAX_MADS,
    MAX_RHO,
    MIN_ENTROPY_LEFT,
    Gain,
    deviations,
    gain,
    share_gain,
)
from grpo_core.monitors.history import WINDOW, History, StepRow, component_names, series
from grpo_core.text import format_percent

LEAST_RISE = 0.1
"""Rise of the reward, as a share of its most, that is looked into."""
LEAST_CARRIED = 0.5
"""Part of a rise that success, or the held-out problems, must show as well."""
SOLVED = 0.9
"""Share of right completions from which on little is left to gain."""
MAX_COMPONENT = 0.5
"""Share of the variance within groups that a component may be, other than the one that means right."""
MAX_DRIFT = 1.5
"""Factor by which lengths may grow or shrink."""
LEAST_GROWTH = 0.1
"""Share by which lengths must have followed what is rewarded."""
MIN_SUCCESS_LEFT = 0.5
"""Share of the best success that may be left."""
LEAST_SUCCESS = 0.05
"""Success below it is too little to fall."""
STALL = 20
"""Steps without a signal."""
LEAST_KL = 0.05
"""Nats a token below which the divergence does not spike."""
SPIKE_FACTOR = 3.0
"""Times the median that a spike must reach besides."""

_LENGTH = "completions/mean_length"
_TOO_EARLY = f"comes with step {2 * WINDOW}"


def _success(rows: tuple[StepRow, ...], config: RunConfig) -> list[float]:
    """Share of right completions by step; the mean of the component that means right where none is judged."""
    return series(rows, "completions/right") or series(rows, f"rewards/{config.reward.success_component}/mean")


def _gain_of(history: History, name: str) -> Gain | None:
    """From the first to the newest window; None while they overlap, or where steps do not report the metric."""
    before, after = series(history.first, name), series(history.window, name)
    return gain(before, after) if history.apart and min(len(before), len(after)) >= 2 else None


def _success_gain(history: History, config: RunConfig) -> Gain | None:
    before, after = _success(history.first, config), _success(history.window, config)
    return gain(before, after) if history.apart and min(len(before), len(after)) >= 2 else None


def _most(config: RunConfig) -> float:
    """What the reward may reach, each component being 1."""
    return sum(component.weight for component in config.reward.components if component.weight > 0) or 1.0


def _mean(history: History, name: str) -> Figure:
    values = series(history.window, name)
    return Figure(fmean(values)) if values else Figure(None, "no step reported it")


def mean_of(name: str) -> Callable[[History, RunConfig], Figure]:
    """The figure of a monitor that is the mean of a metric over the window."""
    return lambda history, config: _mean(history, name)


def infra_share(history: History, config: RunConfig) -> Figure:
    """Share of completions that a sandbox or a server failed."""
    unscored = _mean(history, "frac_unscored")
    failed, errors = series(history.window, "reward_errors/infra"), series(history.window, "reward_errors")
    if unscored.value is None or not failed:
        return unscored if unscored.value is None else Figure(0.0)
    return Figure(unscored.value * sum(failed) / sum(errors))


# ---------------------------------------------------------------------- reward without success


@dataclass(frozen=True)
class _Rise:
    reward: Gain
    """As shares of its most."""
    success: Gain

    @property
    def carried(self) -> float:
        return self.success.difference / self.reward.difference if self.reward.difference > 0 else 0.0


def _rise(history: History, config: RunConfig) -> _Rise | str:
    if len(config.reward.components) == 1 and config.algorithm.overlong.buffer_tokens is None:
        return "the reward has one component, which is what means right"
    success, most = _success_gain(history, config), _most(config)
    reward = _gain_of(history, "reward")
    if reward is None or success is None:
        return _TOO_EARLY if not history.apart else "too few steps have a reward and a verdict"
    shares = Gain(reward.before / most, reward.after / most, reward.low / most, reward.high / most)
    if shares.low <= 0 or shares.difference < LEAST_RISE:
        return "the reward has not risen"
    return _Rise(shares, success)


def reward_without_success(history: History, config: RunConfig) -> Figure:
    rise = _rise(history, config)
    return Figure(None, rise) if isinstance(rise, str) else Figure(rise.carried)


def says_reward_without_success(e: Evidence) -> str:
    rise = _rise(e.history, e.config)
    if isinstance(rise, str) or rise.success.after >= SOLVED:
        return ""
    if rise.success.high >= LEAST_CARRIED * rise.reward.difference:
        return ""
    return (
        f"Suspect: the reward rose from {format_percent(rise.reward.before)} to {format_percent(rise.reward.after)} of "
        f"its most, and {e.success} went from {format_percent(rise.success.before)} to "
        f"{format_percent(rise.success.after)}."
    )


@dataclass(frozen=True)
class _Carried:
    trained: Gain
    heldout: Gain


def _carried(history: History, config: RunConfig) -> _Carried | str:
    suite = heldout_of(config)
    if suite not in config.eval.during_suites:
        return f"{suite} is not evaluated while training"
    after, before = history.share(suite), history.share(suite, before=True)
    if after is None or before is None:
        return f"{suite} has not been evaluated twice yet"
    if len(history.first) < WINDOW or history.trained[0].step <= history.first[-1].step:
        return f"comes with the first evaluation after step {2 * WINDOW - 1}"
    first, last = _success(history.first, config), _success(history.trained, config)
    if min(len(first), len(last)) < 2:
        return "too few steps have a verdict"
    heldout = share_gain(before, after)
    if config.eval.higher_is(suite) == "worse":
        heldout = Gain(-heldout.before, -heldout.after, -heldout.high, -heldout.low)
    return _Carried(gain(first, last), heldout)


def reward_without_heldout(history: History, config: RunConfig) -> Figure:
    carried = _carried(history, config)
    if isinstance(carried, str):
        return Figure(None, carried)
    if carried.trained.low <= 0 or carried.trained.difference < LEAST_RISE:
        return Figure(None, "success in training has not risen")
    return Figure(carried.heldout.difference / carried.trained.difference)


def says_reward_without_heldout(e: Evidence) -> str:
    carried = _carried(e.history, e.config)
    if isinstance(carried, str):
        return ""
    trained, heldout, suite = carried.trained, carried.heldout, heldout_of(e.config)
    rose = trained.low > 0 and trained.difference >= LEAST_RISE
    fell = heldout.high < min(0.0, trained.low)
    if not fell and not (rose and heldout.high < LEAST_CARRIED * trained.difference):
        return ""
    newest = e.history.share(suite)
    if e.config.eval.higher_is(suite) == "better" and newest is not None and newest.high >= trained.after:
        return ""  # it is where training is, whatever way it came
    return (
        f"Suspect: in training {e.success} went from {format_percent(trained.before)} to "
        f"{format_percent(trained.after)} of completions, and {suite} from {format_percent(abs(heldout.before))} to "
        f"{format_percent(abs(heldout.after))}."
    )


# ---------------------------------------------------------------------- components


def _dominant(history: History, config: RunConfig) -> tuple[str, float] | None:
    """The component, other than success, that is most of the variance within groups, and its share."""
    rows = history.window
    names = [name for name in component_names(rows, "variance_share") if name != config.reward.success_component]
    shares = [(fmean(series(rows, f"rewards/{name}/variance_share")), name) for name in names]
    return max(shares)[::-1] if shares else None


def component_dominates(history: History, config: RunConfig) -> Figure:
    if len(history.newest) < WINDOW:
        return Figure(None, f"comes with step {WINDOW}")
    dominant = _dominant(history, config)
    return Figure(None, "one component alone is rewarded") if dominant is None else Figure(dominant[1])


def says_component_dominates(e: Evidence) -> str:
    dominant = _dominant(e.history, e.config) if len(e.history.newest) >= WINDOW else None
    if dominant is None or dominant[1] <= MAX_COMPONENT:
        return ""
    return (
        f"{format_percent(dominant[1])} of what rewards differ by within groups is {dominant[0]}, not {e.success} (the "
        f"last {WINDOW} steps)."
    )


# ---------------------------------------------------------------------- lengths


def length_drift(history: History, config: RunConfig) -> Figure:
    lengths = _gain_of(history, _LENGTH)
    return Figure(None, _TOO_EARLY) if lengths is None else Figure(lengths.after / lengths.before)


def says_length_drift(e: Evidence) -> str:
    lengths, success = _gain_of(e.history, _LENGTH), _success_gain(e.history, e.config)
    if lengths is None or success is None or success.low > 0 or success.after >= SOLVED:
        return ""
    if 1 / MAX_DRIFT <= lengths.after / lengths.before <= MAX_DRIFT or lengths.low <= 0 <= lengths.high:
        return ""
    return (
        f"Suspect: completions went from {lengths.before:.0f} to {lengths.after:.0f} tokens on average, and "
        f"{e.success} from {format_percent(success.before)} to {format_percent(success.after)}."
    )


def says_length_bias(e: Evidence) -> str:
    """A correlation alone is no fault: wrong completions may be truncated, or ramble. It is one once lengths follow."""
    values, lengths = series(e.history.window, "rewards/length_correlation"), _gain_of(e.history, _LENGTH)
    if lengths is None or not values or abs(fmean(values)) <= MAX_RHO:
        return ""
    rho, grown = fmean(values), lengths.after / lengths.before - 1
    if abs(grown) < LEAST_GROWTH or grown * rho < 0 or lengths.low <= 0 <= lengths.high:
        return ""
    return (
        f"Within groups {'longer' if rho > 0 else 'shorter'} completions are rewarded more (Spearman's ρ of reward and "
        f"length {rho:.2f} over the last {WINDOW} steps), and completions went from {lengths.before:.0f} to "
        f"{lengths.after:.0f} tokens on average."
    )


# ---------------------------------------------------------------------- collapse


def entropy_collapse(history: History, config: RunConfig) -> Figure:
    entropy = _gain_of(history, "entropy")
    if entropy is None:
        return Figure(None, _TOO_EARLY if not history.apart else "the sampler reports none")
    return Figure(entropy.after / entropy.before) if entropy.before > 0 else Figure(None, "it was 0 from the start")


def says_entropy_collapse(e: Evidence) -> str:
    left, success = entropy_collapse(e.history, e.config).value, _success_gain(e.history, e.config)
    if left is None or left >= MIN_ENTROPY_LEFT or success is None or success.low > 0 or success.after >= SOLVED:
        return ""
    entropy = _gain_of(e.history, "entropy")
    assert entropy is not None
    return (
        f"Suspect: the entropy fell from {entropy.before:.3g} to {entropy.after:.3g} nats a token, and {e.success} "
        f"went from {format_percent(success.before)} to {format_percent(success.after)}."
    )


def says_duplicates(e: Evidence) -> str:
    share = _mean(e.history, "completions/duplicates/wrong").value
    if len(e.history.newest) < WINDOW or share is None or share <= MAX_DUPLICATES:
        return ""
    return (
        f"Suspect: {format_percent(share)} of completions are wrong and equal another of their group (the last "
        f"{WINDOW} steps)."
    )


def _fall(history: History, config: RunConfig) -> Gain | str:
    """From the best ten steps in a row that are kept to the newest ten."""
    if not history.apart:
        return _TOO_EARLY
    earlier = [_success(history.first, config)]
    values = _success(history.newest, config)
    earlier += [values[at : at + WINDOW] for at in range(len(values) - 2 * WINDOW + 1)]
    best = max((own for own in earlier if len(own) >= 2), key=fmean, default=None)
    if best is None or len(values) < WINDOW:
        return "too few steps have a verdict"
    return gain(best, values[-WINDOW:]) if fmean(best) >= LEAST_SUCCESS else "too little was right to fall"


def success_fell(history: History, config: RunConfig) -> Figure:
    fall = _fall(history, config)
    return Figure(None, fall) if isinstance(fall, str) else Figure(fall.after / fall.before)


def says_success_fell(e: Evidence) -> str:
    fall = _fall(e.history, e.config)
    if isinstance(fall, str) or fall.after >= MIN_SUCCESS_LEFT * fall.before or fall.high >= 0:
        return ""
    return (
        f"Suspect: {e.success} fell from {format_percent(fall.before)} in its best {WINDOW} steps to "
        f"{format_percent(fall.after)} in the newest."
    )


# ---------------------------------------------------------------------- spikes and stalls


def _spike(history: History, name: str) -> Figure:
    values = series(history.newest, name)
    if len(values) <= LEAST_FOR_A_SPIKE or name not in history.newest[-1].metrics:
        return Figure(None, f"needs {LEAST_FOR_A_SPIKE + 1} steps that report it")
    far = deviations(values[-1], values[:-1])
    return Figure(None, "over half of the steps had the same value") if far is None else Figure(far)


def kl_spike(history: History, config: RunConfig) -> Figure:
    return _spike(history, "kl")


def gradient_spike(history: History, config: RunConfig) -> Figure:
    return _spike(history, "grad_norm")


def _says_spike(e: Evidence, name: str, words: str, least: float) -> str:
    far = _spike(e.history, name).value
    if far is None or far <= MAX_MADS:
        return ""
    *before, newest = series(e.history.newest, name)
    if newest <= max(least, SPIKE_FACTOR * median(before)):
        return ""
    return (
        f"The {words} was {newest:.3g} at this step and {median(before):.3g} in the median of {len(before)} before it "
        f"({far:.0f} median absolute deviations)."
    )


def says_kl_spike(e: Evidence) -> str:
    return _says_spike(e, "kl", "KL divergence", LEAST_KL)


def says_gradient_spike(e: Evidence) -> str:
    """With a trust region a step is no longer for a longer gradient."""
    if e.config.optim.method == "trpo":
        return ""
    return _says_spike(e, "grad_norm", "gradient norm", e.config.optim.max_grad_norm)


def stall(history: History, config: RunConfig) -> Figure:
    values = series(history.newest, "frac_informative")[-STALL:]
    return Figure(fmean(values)) if len(values) == STALL else Figure(None, f"comes with step {STALL}")


def says_stall(e: Evidence) -> str:
    if stall(e.history, e.config).value != 0:
        return ""
    return f"No group carried a signal in the last {STALL} steps: nothing was learned in them."

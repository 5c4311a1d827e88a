"""Operations in words: each method with its reasoning, why the two differ, and how far from a threshold they are.

Nothing here says whether anybody complies with anything.
"""

import math
from collections.abc import Sequence

from grpo_core.compute.flop import TITLES as PARTS
from grpo_core.compute.flop import Flop, Part, Work
from grpo_core.compute.hardware import Hardware
from grpo_core.compute.shape import Shape
from grpo_core.compute.thresholds import TITLES, Threshold
from grpo_core.text import format_duration

_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
LEAST = 1e-10
"""Shares below it are shown as below it."""


def format_flop(flop: float, unit: str = "FLOP") -> str:
    """Such as 950 FLOP and 7.2 × 10⁶ FLOP: powers of ten, to be compared with thresholds."""
    if flop < 1000:
        return f"{flop:.3g} {unit}"
    exponent = math.floor(math.log10(flop))
    mantissa = f"{flop / 10**exponent:.2g}"
    if mantissa == "10":
        mantissa, exponent = "1", exponent + 1
    return f"{mantissa} × 10{str(exponent).translate(_SUPERSCRIPT)} {unit}"


def format_share(share: float) -> str:
    """0.125 is 12.5 %, 2.2e-9 is 0.0000002 %."""
    if share >= 0.0005:
        return f"{100 * share:.1f} %"
    if share < LEAST:
        return f"less than {100 * LEAST:.8f} %" if share > 0 else "0 %"
    return f"{100 * share:.{-math.floor(math.log10(100 * share))}f} %"


def architecture_lines(flop: Flop, shape: Shape, work: Work) -> list[str]:
    """The reasoning behind operations by architecture: a line for each kind of pass, then what is to be known."""
    counted, apart = ([part for part in flop.parts if part.counted is side] for side in (True, False))
    lines = [f"{PARTS[part.name]}: {format_flop(part.flop)} ({_product(part)})" for part in counted]
    if flop.attention:
        lines.append(f"in these, attention over the texts: {format_flop(flop.attention)}")
    else:
        lines.append("attention is not counted: the model's layers, or the lengths of the texts, are not known")
    if shape.head:
        lines.append("the output layer counts for completion tokens alone")
    if shape.inactive:
        lines.append(
            f"a mixture of experts: a token goes through {format_count(shape.active)} of "
            f"{format_count(shape.parameters)} parameters, and these are counted"
        )
    elif shape.experts:
        lines.append("a token goes through fewer parameters of a mixture of experts than are counted: this is too much")
    if work.learned_share < 1:
        lines.append(
            f"{format_share(work.learned_share)} of the groups go through the update; the others give no gradient"
        )
    if any(part.name == "critic" for part in counted):
        lines.append("the guidelines (Annex A.1) let a critic be left out; it is counted here")
    if apart:
        listed = "; ".join(f"{PARTS[part.name]}: {format_flop(part.flop)}" for part in apart)
        lines.append(f"not counted, as the guidelines (Annex A.1) leave it out: {listed}")
    return lines


def _product(part: Part) -> str:
    counts = f"{format_count(part.parameters)} parameters × {format_count(part.tokens)} tokens"
    return f"{part.passes * 2:g} × {counts}"


def hardware_text(used: Hardware) -> str:
    """The reasoning behind operations by hardware time."""
    held = f"{format_duration(used.device_seconds)} of devices"
    if used.peak is None or used.flop is None:
        return f"not known here: {held} on {used.device}, and {used.source}"
    rate = format_flop(used.peak, "FLOP/s")
    share = "all the time" if used.utilisation is None else f"{format_share(used.utilisation)} of the time, as measured"
    return (
        f"at most {format_flop(used.flop)}: {held} × {rate} of {used.device} in {used.dtype} ({used.source}), were it "
        f"computing products at that rate {share}"
    )


def difference_text(flop: Flop, used: Hardware) -> str:
    """Why the two methods differ; empty where there is one alone."""
    if used.flop is None or not used.flop:
        return ""
    return (
        f"The architecture's count is {format_share(flop.total / used.flop)} of that bound. Hardware time holds all "
        "that ran on the devices, and that they waited: loading, evaluations, sampling, which reads weights more than "
        "it computes, and rewards. The architecture's count holds the multiplications of the training alone, and is "
        "the estimate; the other is a bound."
    )


def threshold_text(threshold: Threshold) -> str:
    """How far from one threshold."""
    what = TITLES[threshold.key]
    if threshold.flop is None:
        return f"{what}: not known, as nobody stated what training the original took"
    limit = f"{what} ({format_flop(threshold.flop)})"
    if threshold.share is None:
        return f"{limit}: not known, as this training's operations are not known"
    words = f"{format_share(threshold.share)} of {limit}"
    if not threshold.applies:
        return f"{words}; for comparison alone, as the original's is known"
    return f"{words}: the indication is {'' if threshold.reached else 'not '}reached"


def indications_text(rows: Sequence[Threshold]) -> str:
    """All of them in a clause."""
    reached = [TITLES[row.key] for row in rows if row.reached]
    if reached:
        return f"above {' and above '.join(reached)}: that indication of the guidelines is reached"
    shares = [row.share for row in rows if row.reached is False and row.share is not None]
    if not shares:
        return "how far that is from the guidelines' indications is not known"
    return f"{format_share(max(shares))} of the guidelines' nearest indication, which is not reached"


def format_count(count: float) -> str:
    """Such as 950, 12,400 and 1.5 × 10⁹."""
    return f"{count:,.0f}" if count < 1e7 else format_flop(count, "").rstrip()

"""How far a step that is done again may be from what was recorded, where it is not equal to the bit.

On a CPU of the same kind, with the same threads, versions and code, no bound is needed: every addition is done in the
same order. Elsewhere a sum is rounded otherwise, which moves a logit by some units of its last digit. That seldom
changes which token is drawn; where it does, the whole rest of that completion is another. So completions are counted,
and numbers are compared only where all completions of the step are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.config.run import RunConfig


@dataclass(frozen=True)
class Bounds:
    completions: float
    """Share of a step's completions that may be others. Their rewards are then not compared."""
    logprob: float
    """Of a completion's mean log-probability a token, in nats."""
    relative: float
    """Of a metric of the step, of its recorded value …"""
    absolute: float
    """… or this much, whichever is more."""

    def metric_fits(self, recorded: float, again: float) -> bool:
        return abs(again - recorded) <= max(self.absolute, self.relative * abs(recorded))


FLOAT32 = Bounds(completions=0.02, logprob=1e-4, relative=0.01, absolute=1e-4)
"""A proposal of this project. A step of the demo's model, right after its checkpoint, with one thread in place of two
gave the same completions, log-probabilities within 2e-7 nats and metrics within 1e-6; the rest is left for other
kinds of processors and for the steps on the way."""
BFLOAT16 = Bounds(completions=0.5, logprob=5e-2, relative=0.25, absolute=5e-2)
"""A proposal of this project, by the format alone: of bfloat16's 8 bits of precision one unit of the last digit of a
logit of 10 is 0.06."""


def bounds_of(config: RunConfig) -> Bounds:
    """By the coarsest format that the run computes in."""
    coarse = config.model.dtype != "float32" or config.engine.autocast != "none" or config.model.quantization != "none"
    return BFLOAT16 if coarse else FLOAT32


_MACHINE = {
    "processor": "processor",
    "device": "device",
    "threads": "CPU threads",
    "ranks": "processes",
}
_CODE = {
    "version": "Cohort's version",
    "git_commit": "Cohort's commit",
    "dirty_sha256": "Cohort's uncommitted changes (SHA-256)",
}


@dataclass(frozen=True)
class Difference:
    """Something that decides the last bits of numbers and is not as it was."""

    what: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: {self.then} then, {self.now} now"


def environment_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """`then` and `now`: manifests, or what of one a card shows. What was not recorded, or is not shown to the card's
    audience, is not known to be the same."""
    labelled = [
        *(("platform", name, label) for name, label in _MACHINE.items()),
        *(("packages", name, name) for name in sorted({*then.get("packages", {}), *now["packages"]})),
        *(("code", name, label) for name, label in _CODE.items()),
    ]
    differences = []
    for part, name, label in labelled:
        before = then[part].get(name, "not recorded") if part in then else "not in this card"
        after = now[part].get(name)
        if before != after:
            differences.append(Difference(label, _shown(before), _shown(after)))
    return differences


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)

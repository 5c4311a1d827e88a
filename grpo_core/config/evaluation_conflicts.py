"""Choices of evaluation that do not go together, each with the reason and the way out. Loads no torch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_core.config.evaluation import HELDOUT, REWARD
from grpo_core.errors import Conflict

if TYPE_CHECKING:
    from grpo_core.config.run import RunConfig


def _during(c: "RunConfig") -> Iterator[Conflict]:
    e = c.eval
    there = ([HELDOUT] if e.has_heldout else []) + [suite.name for suite in e.suites]
    if unknown := [name for name in e.during if name not in there]:
        listed = f"there are {', '.join(there)}" if there else "there is nothing to evaluate on"
        yield Conflict(
            "unknown_suite_during",
            f"{', '.join(unknown)} cannot be evaluated while training: it is no suite of the run; {listed}",
            field="eval.during",
        )
    if e.every is not None and not there:
        yield Conflict(
            "every_without_problems",
            "eval.every has nothing to evaluate on: give eval.path or eval.holdout or eval.suites, or leave it empty",
            field="eval.every",
        )
    if e.reward is not None and not e.has_heldout:
        yield Conflict(
            "heldout_reward_without_problems",
            "eval.reward judges held-out problems, and there are none: give eval.path or eval.holdout, or leave it out",
            field="eval.reward",
        )


def _best(c: "RunConfig") -> Iterator[Conflict]:
    chosen = c.checkpoints.best_by
    if chosen is None or chosen == REWARD:
        return
    if chosen not in c.eval.during_suites:
        listed = ", ".join((*c.eval.during_suites, REWARD))
        yield Conflict(
            "best_by_not_evaluated",
            f"checkpoints.best_by {chosen} is not evaluated while training, so it cannot decide; take one of {listed}, "
            "or name it in eval.during",
            field="checkpoints.best_by",
        )
    if c.eval.higher_is(chosen) == "neutral":
        yield Conflict(
            "best_by_neutral",
            f"checkpoints.best_by {chosen}: neither a higher nor a lower score of this suite is better; take another",
            field="checkpoints.best_by",
        )


def _patience(c: "RunConfig") -> Iterator[Conflict]:
    if c.eval.patience is None:
        return
    if c.best_by == REWARD:
        yield Conflict(
            "patience_without_evaluation",
            "eval.patience counts evaluations while training of the suite that decides the best checkpoint, and that "
            "is the training reward here; evaluate held-out problems or a suite while training and let it decide "
            "(checkpoints.best_by)",
            field="eval.patience",
        )
    if c.eval.every is None:
        yield Conflict(
            "patience_needs_every",
            "eval.patience needs eval.every: where the clock decides when to evaluate, a run that is repeated or "
            "resumed would end at another step",
            field="eval.patience",
        )


EVALUATION_RULES = (_during, _best, _patience)

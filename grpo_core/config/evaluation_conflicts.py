"""Choices of evaluation that do not go together, each with the reason and the way out. Loads no torch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_core.config.evaluation import HELDOUT, LOSS, REWARD, EvalConfig
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


def heldout_refusal(own: EvalConfig, best_by: str, *, has_loss: bool) -> Conflict | None:
    """Why these evaluations cannot be made by a run without a training reward, which has a held-out loss where
    `has_loss`; None where they can. `best_by`: what decides the best checkpoint."""
    there = ([HELDOUT] if own.has_heldout else []) + [suite.name for suite in own.suites]
    measured = ([LOSS] if has_loss and (own.every is not None or own.cost > 0) else []) + list(own.during_suites)
    if unknown := [name for name in own.during if name not in there]:
        return Conflict(
            "unknown_suite_during",
            f"{', '.join(unknown)} cannot be evaluated while training: it is no suite of the run; the held-out loss is "
            "measured with every evaluation, unnamed",
            field="eval.during",
        )
    if (own.every is not None or own.patience is not None) and not measured:
        return Conflict(
            "every_without_problems",
            "there is nothing to measure while training: hold out some of the training data (data.holdout), or leave "
            "eval.every and eval.patience empty",
            field="eval.every" if own.every is not None else "eval.patience",
        )
    if best_by not in measured and best_by != LOSS:
        return Conflict(
            "best_by_not_evaluated",
            f"checkpoints.best_by {best_by} is not evaluated while training, so it cannot decide; take one of "
            f"{', '.join(measured) or 'none: there is nothing to measure'}",
            field="checkpoints.best_by",
        )
    if own.higher_is(best_by) == "neutral":
        return Conflict(
            "best_by_neutral",
            f"checkpoints.best_by {best_by}: neither a higher nor a lower score of this suite is better; take another",
            field="checkpoints.best_by",
        )
    if own.patience is not None and own.every is None:
        return Conflict(
            "patience_needs_every",
            "eval.patience needs eval.every: where the clock decides when to evaluate, a run that is repeated or "
            "resumed would end at another step",
            field="eval.patience",
        )
    if own.patience is not None and best_by not in measured:
        return Conflict(
            "patience_without_evaluation",
            "eval.patience counts measurements of what decides the best checkpoint, and that is not measured while "
            "training; hold out some of the training data (data.holdout)",
            field="eval.patience",
        )
    return None

"""What a run will do, and what must hold before it can start: the form's running summary.

Estimates come from runs that happened; without one there is none.
"""

from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from django.utils import timezone

from cohort.runs.forms.run_form import RunForm
from cohort.runs.models import Node, Run
from grpo_core.config import RunConfig

NODE_SILENT_AFTER = timedelta(seconds=90)


@dataclass(frozen=True)
class TimeGuess:
    seconds: float
    spread: float
    """Half the range over the past runs; 0 with one run."""
    runs: int


@dataclass(frozen=True)
class Check:
    passed: bool
    blocks: bool
    """A check that fails without blocking is a warning: the run is taken and waits."""
    text: str


@dataclass(frozen=True)
class Outlook:
    steps: int | None
    completions: int | None
    updates: int | None
    tokens_at_most: int | None
    eval_problems: int | None
    eval_rounds: int
    epochs: float | None
    """Times the training problems are gone through."""
    time: TimeGuess | None
    checks: tuple[Check, ...]

    @property
    def blocked(self) -> bool:
        return any(check.blocks and not check.passed for check in self.checks)


def outlook(form: RunForm, config: RunConfig | None) -> Outlook:
    """`config` is what `form.check()` returned; without one, only the checks are told."""
    checks = (*_choices_made(form), _valid(form), _node_seen())
    if config is None:
        return Outlook(None, None, None, None, None, 0, None, None, checks)
    completions = config.optim.steps * config.completions_per_step
    problems, trained_on = _eval_problems(form, config), _training_problems(form, config)
    return Outlook(
        steps=config.optim.steps,
        completions=completions,
        updates=config.optim.steps * config.algorithm.inner_iterations,
        tokens_at_most=completions * config.sampling.max_completion_tokens,
        eval_problems=problems,
        eval_rounds=int(config.eval.before) + int(config.eval.after),
        epochs=config.optim.steps * config.sampling.prompts_per_step / trained_on if trained_on else None,
        time=_time(form, config),
        checks=checks,
    )


def _choices_made(form: RunForm) -> tuple[Check, ...]:
    wanted = (
        (form.base_model, "a base model", bool(form.choices.base_models), "register one under Base models"),
        (form.dataset, "a dataset", bool(form.choices.datasets), "upload one under Datasets"),
        (form.verifier_version, "a reward source", bool(form.choices.verifier_versions), "make one under Rewards"),
    )
    return tuple(
        Check(
            row is not None, True, f"{what} is chosen" if row else f"{what} is missing" + ("" if any_ else f": {how}")
        )
        for row, what, any_, how in wanted
    )


def _valid(form: RunForm) -> Check:
    count = sum(map(len, form.problems.values())) + len(form.general)
    if count == 0:
        return Check(True, True, "every setting is valid")
    return Check(False, True, f"{count} {'setting is' if count == 1 else 'settings are'} not valid")


def _node_seen() -> Check:
    since = timezone.now() - NODE_SILENT_AFTER
    names = list(
        Node.objects.filter(revoked_at=None, last_seen_at__gte=since)
        .order_by("name")
        .values_list("name", flat=True)[:4]
    )
    if not names:
        return Check(False, False, "no worker was seen in the last 90 s: the run will wait for one")
    more = ", …" if len(names) == 4 else ""
    return Check(
        True, False, f"{'a worker is' if len(names) == 1 else 'workers are'} there: {', '.join(names[:3])}{more}"
    )


def _eval_problems(form: RunForm, config: RunConfig) -> int:
    found = form.eval_dataset.problems if form.eval_dataset else config.eval.holdout
    return min(found, config.eval.limit) if config.eval.limit else found


def _training_problems(form: RunForm, config: RunConfig) -> int:
    if form.dataset is None:
        return 0
    taken = min(form.dataset.problems, config.data.limit or form.dataset.problems)
    return max(0, taken - (0 if form.eval_dataset else config.eval.holdout))


def _time(form: RunForm, config: RunConfig) -> TimeGuess | None:
    """From the newest runs of the same model, in proportion to the completions of a step."""
    if form.base_model is None:
        return None
    past = Run.objects.filter(base_model=form.base_model, seconds_per_step__isnull=False).order_by("-id")[:8]
    guesses = []
    for config_then, seconds in past.values_list("config", "seconds_per_step"):
        sampling = config_then["sampling"]
        per_completion = seconds / (sampling["group_size"] * sampling["prompts_per_step"])
        guesses.append(per_completion * config.completions_per_step * config.optim.steps)
    if not guesses:
        return None
    return TimeGuess(median(guesses), (max(guesses) - min(guesses)) / 2, len(guesses))

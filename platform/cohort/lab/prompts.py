"""Whether the prompts of a run are known to fit the model and the limits before it is queued.

Only a worker has the tokenizer, so a preview knows, or nobody: how many characters a prompt has decides nothing. A
preview answers for every config that makes the same prompts, whatever else differs. A run whose prompts no preview
knows is launched only with a reason, as one whose reward was never probed (`cohort.lab.gate`).
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import rfc8785
from django.db.models import Q

from cohort.accounts.models import Project, User
from cohort.audit import services as audit
from cohort.lab.gate import FIELD, MIN_REASON_CHARS, override_reason
from cohort.lab.models import OPEN, JobKind, JobState, LabJob
from cohort.runs.models import Run
from cohort.runs.transitions import run_event, run_logged
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError, DataError, FieldProblem

_OF_MODEL = {"path", "revision"}
_OF_EVALUATION = {"path", "hub", "format", "columns", "holdout", "limit", "reward", "max_completion_tokens", "suites"}


def prompts_digest(config: RunConfig) -> str:
    """Of what decides a run's prompts and what they must fit: model, problems, suites and limits. Where the held-out
    problems are drawn from the training file and checked in another way than those, the seed is of it too."""
    made_of: dict[str, Any] = {
        "model": config.model.model_dump(mode="json", include=_OF_MODEL),
        "data": config.data.model_dump(mode="json"),
        "reward": config.reward.model_dump(mode="json"),
        "eval": config.eval.model_dump(mode="json", include=_OF_EVALUATION),
        "max_completion_tokens": config.sampling.max_completion_tokens,
    }
    for suite in made_of["eval"]["suites"]:
        del suite["margin"]
    evaluation = config.eval
    drawn = evaluation.path is None and evaluation.holdout > 0
    own = evaluation.limit is not None or evaluation.reward is not None or config.data.long_prompts == "drop"
    if drawn and (own or config.eval_max_completion_tokens != config.sampling.max_completion_tokens):
        made_of["seed"] = config.seed
    return hashlib.sha256(rfc8785.dumps(made_of)).hexdigest()


@dataclass(frozen=True)
class PromptCheck:
    """What is known of the prompts of one config."""

    state: str
    """checked, running (a worker checks them, or is to) or unchecked."""
    refused: tuple[str, ...] = ()
    """Why the run would not start, as its trainer says it."""


def prompt_checks(project: Project, configs: Iterable[RunConfig]) -> list[PromptCheck]:
    """One for each, by the newest preview of the same prompts. One query."""
    digests = [prompts_digest(config) for config in configs]
    previews = LabJob.objects.filter(project=project, kind=JobKind.PREVIEW, prompts_digest__in=set(digests))
    knows = Q(state=JobState.DONE) | Q(state=JobState.FAILED, error_code=DataError.code)
    rows = previews.filter(knows | Q(state__in=OPEN, cancel_asked=False)).order_by("pk")
    checks: dict[str, PromptCheck] = {}
    for digest, state, error, refused in rows.values_list("prompts_digest", "state", "error", "result__refused"):
        if state == JobState.DONE:
            checks[digest] = PromptCheck("checked", tuple(refused))
        elif state == JobState.FAILED:  # the problems were refused before they became prompts
            checks[digest] = PromptCheck("checked", (error,))
        else:
            checks.setdefault(digest, PromptCheck("running"))
    return [checks.get(digest, PromptCheck("unchecked")) for digest in digests]


def distinct_prompts(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """The first config of each set of prompts."""
    first: dict[str, RunConfig] = {}
    for config in configs:
        first.setdefault(prompts_digest(config), config)
    return list(first.values())


def prompts_unchecked(run: Run) -> bool:
    """Whether a launch must say why its prompts are not checked."""
    config = run.parsed_config
    return isinstance(config, RunConfig) and prompt_checks(run.project, [config])[0].state != "checked"


def record_launch_prompts(*, run: Run, actor: User, override: str) -> None:
    """Check what is known of the run's prompts, in the transaction of its launch, and record a launch without it.

    Raises ConfigError for prompts that do not fit, and at `probe_override` where nobody knows and `override` is no
    reason. Of a GRPO run: no preview knows the rows of another kind, which its trainer checks as it loads them.
    """
    config = run.parsed_config
    if not isinstance(config, RunConfig):  # a preview is of GRPO's problems
        return
    [known] = prompt_checks(run.project, [config])
    if known.refused:
        raise ConfigError("\n".join(known.refused), tuple(FieldProblem("", why) for why in known.refused))
    if known.state == "checked":
        return
    reason = override_reason(override)
    if len(reason) < MIN_REASON_CHARS:
        why = "blocked: nobody has checked whether the prompts fit the model. Let a worker do it, or give a reason."
        raise ConfigError("the prompts of the run were never checked", (FieldProblem(FIELD, why),))
    person, data = audit.who(actor), {"config_digest": run.config_digest}
    message = f"Launched although its prompts were not checked: {reason}"
    run_event(run=run, actor=person, kind="prompts_unchecked", message=message)
    run_logged(run=run, actor=person, kind="prompt_check_overridden", reason=reason, data=data)

"""What a run will do, and what must hold before it can start: the form's running summary.

Estimates come from runs that happened; without one there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from django.db.models import Exists, OuterRef

from cohort.base.formatting import percent
from cohort.contamination.models import DataOverlap
from cohort.contamination.selectors import of_choice, token
from cohort.evaluations.forecast import ForecastShown, forecast_of
from cohort.lab.estimates import digest_of
from cohort.lab.gate import MIN_REASON_CHARS
from cohort.lab.prompts import PromptCheck, distinct_prompts, prompt_checks
from cohort.launch.references import unreadable_references
from cohort.nodes.engines import WORDS, gpus_needed, packages_needed
from cohort.nodes.services import SILENT_AFTER
from cohort.runs.models import EvalResult, Run
from cohort.runs.waiting import none_takes
from cohort.web.lab.estimate_shown import estimate_shown
from cohort.web.lab.preview_shown import preview_shown, probe_shown
from cohort.web.launch import suites
from cohort.web.launch.outlook_kinds import facts_of
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.schema import lookup
from cohort.web.launch.sweep import SweepPlan, sweep_plan
from cohort.web.runs.compute_shown import ComputeShown, compute_before
from grpo_core.advantages.settings import ESTIMATORS
from grpo_core.config.evaluation import HELDOUT
from grpo_core.config.run import RunConfig
from grpo_core.files.token_size import size_text, token_size
from grpo_core.records.estimate import SECONDS
from grpo_core.records.types import MAX_TOKEN_FILE_BYTES

PAST_RUNS = 8
_SIZE = ("optim.steps", "sampling.prompts_per_step", "sampling.group_size")


@dataclass(frozen=True)
class TimeShown:
    """The one figure of time on the page, in seconds."""

    seconds: float
    low: float
    high: float
    basis: str
    """What it rests on."""


@dataclass(frozen=True)
class Check:
    passed: bool
    blocks: bool
    """A check that fails without blocking is a warning: the run is taken and waits."""
    text: str


class Outlook:
    """A number that cannot be computed from the inputs is None; one wrong field does not hide the others."""

    def __init__(self, form: RunForm) -> None:
        """Of a form that has been checked."""
        steps, prompts, group = (_count(form, path) for path in _SIZE)
        config = form.config if isinstance(form.config, RunConfig) else None
        """Of a GRPO run alone are token arrays, an estimate, a preview and a forecast."""
        self.facts = facts_of(form)
        """What a run of another kind will do: (label, text) of each line."""
        longest = _count(form, "sampling.max_completion_tokens")
        passes, parts = _count(form, "algorithm.inner_iterations"), _count(form, "algorithm.mini_batches")
        trained_on = _training_problems(form)
        self.steps = steps
        self.completions = steps * prompts * group if steps and prompts and group else None
        self.completions_at_most = at_most = _at_most(form, self.completions)
        """With dynamic sampling; else the same."""
        self.updates = steps * passes * parts if steps and passes and parts else None
        self.tokens_at_most = at_most * longest if at_most and longest else None
        self.eval_problems = _eval_problems(form)
        self.eval_rounds = sum(lookup(form.settings, f"eval.{when}") is True for when in ("before", "after"))
        self.eval_during = _while_training(form)
        samples = _count(form, "eval.samples_per_problem") or 1
        self.suites = suites.cost(form.suites, samples=samples, rounds=self.eval_rounds)
        self.epochs = steps * prompts / trained_on if steps and prompts and trained_on else None
        """Times the training problems are gone through; with dynamic sampling at least."""
        size = token_size(config) if config else None
        self.token_arrays = size_text(size) if size else ""
        """What the samples that are stored token by token will take."""
        self.too_many_tokens = size is not None and size.step_bytes > MAX_TOKEN_FILE_BYTES
        self.models = _models(form)
        """Which models are held in memory while training."""
        self.sweep = sweep_plan(form)
        """The runs that launching will make where it is a sweep."""
        digest = digest_of(config) if config else ""
        self.estimate = estimate_shown(form.project, form.texts["estimate"], digest)
        """What a worker measured of this config, or of an earlier one, from which it was requested."""
        self.time = _time(form, self.completions, self.estimate)
        self.compute = _compute(form, self.estimate)
        """Operations of the run, or of each of a sweep's, by both methods."""
        unprobed = form.gate is not None and form.gate.state == "unprobed"
        self.probing = probe_shown(form.verifier_version) if form.verifier_version and unprobed else None
        """The probe that was requested of a reward that has none."""
        self.preview = preview_shown(form.project, form.texts["preview"], digest)
        """The exact tokens of this config's prompts, or of an earlier one's, from which they were requested."""
        self.preview_changed = self.preview is not None and str(self.preview["job"].pk) != form.texts["preview"]
        """Whether that is another than the page shows: a config that had its tokens shown before is back."""
        planned = [] if config is None else self.sweep.configs if self.sweep else [config]
        configs = [each for each in planned if isinstance(each, RunConfig)]
        known = prompt_checks(form.project, distinct_prompts(configs)) if configs else []
        self.unchecked = any(each.state != "checked" for each in known)
        """Whether nobody knows of some of the run's prompts whether they fit."""
        self.forecast = _forecast(form) if form.kind == "grpo" else None
        """Share of groups with a signal by G, from the newest run of the same model and dataset; None without any."""
        self.sweep_seconds = self.time.seconds * len(self.sweep.runs) if self.time and self.sweep else None
        self.overlaps = overlaps_of(form)
        """What was found of the chosen evaluation's items in the chosen dataset, as far as it was searched."""
        self.overlap_token = token(self.overlaps)
        """What ticking the box confirms as seen; empty where nothing was found."""
        pairs = [Check(pair.state == "none", False, pair.text) for pair in self.overlaps]
        self.checks = (
            *(*_choices_made(form), _valid(form), *_probed(form), *_references(form), *_prompts(known, form)),
            _node_seen(form),
            *(*_own_judge(form), *_without_effect(form), *pairs, *_swept(self.sweep)),
        )


def overlaps_of(form: RunForm) -> tuple[DataOverlap, ...]:
    if form.dataset is None:
        return ()
    return tuple(of_choice(form.dataset, form.eval_dataset, [suite.version for suite in form.suites]))


def _references(form: RunForm) -> tuple[Check, ...]:
    """Of a form that is valid."""
    if form.config is None:
        return ()
    faults = unreadable_references(form.config, form.dataset, form.eval_dataset)
    return tuple(Check(False, True, fault) for fault in faults)


def _forecast(form: RunForm) -> ForecastShown | None:
    past = Run.objects.filter(project=form.project, base_model=form.base_model, dataset=form.dataset)
    before = EvalResult.objects.filter(run=OuterRef("pk"), suite=HELDOUT, phase="before")
    evaluated = past.filter(Exists(before)).order_by("-id").first()
    group = form.config.sampling.group_size if form.config is not None else None
    return forecast_of(evaluated, group) if evaluated is not None else None


def _swept(plan: SweepPlan | None) -> tuple[Check, ...]:
    if plan is None:
        return ()
    if plan.ready:
        return (Check(True, True, f"every one of the sweep's {len(plan.runs)} runs is valid"),)
    count = len(plan.faulty)
    of_runs = f"{count} of the sweep's {len(plan.runs)} runs {'is' if count == 1 else 'are'} not valid"
    return (Check(False, True, of_runs if count else "the sweep is not valid"),)


def _probed(form: RunForm) -> tuple[Check, ...]:
    """What is known of the reward; a reason only lifts the block."""
    if form.gate is None:
        return ()
    return (Check(form.gate.state == "clean", form.gate.held and not _reasoned(form), form.gate.text),)


def _prompts(checks: Sequence[PromptCheck], form: RunForm) -> tuple[Check, ...]:
    """Whether all prompts fit, as far as a worker has counted them; a reason only lifts the block."""
    if refused := [why for known in checks for why in known.refused]:
        return tuple(Check(False, True, why) for why in dict.fromkeys(refused))
    if not (states := {known.state for known in checks}):
        return ()
    if states == {"checked"}:
        return (Check(True, True, "every prompt fits"),)
    text = (
        "blocked: a worker checks whether every prompt fits the model and the limits"
        if "unchecked" not in states
        else "blocked: nobody has checked whether every prompt fits the model and the limits"
    )
    return (Check(False, not _reasoned(form), text),)


def _reasoned(form: RunForm) -> bool:
    """Whether there is a reason to launch what is blocked."""
    return len(form.texts["probe_override"].strip()) >= MIN_REASON_CHARS


def _at_most(form: RunForm, completions: int | None) -> int | None:
    """Dynamic sampling may draw several batches for a step."""
    if completions is None or lookup(form.settings, "algorithm.dynamic_sampling.enabled") is not True:
        return completions
    batches = _count(form, "algorithm.dynamic_sampling.max_batches")
    return completions * batches if batches else None


def _models(form: RunForm) -> str:
    settings = form.settings
    models = ["policy"]
    adapters = lookup(settings, "model.lora.rank") not in (0, None)
    if lookup(settings, "algorithm.advantage") in [name for name, row in ESTIMATORS.items() if row.critic]:
        models.append("critic")
    beta = lookup(settings, "algorithm.kl.coef", 0)
    if beta and lookup(settings, "algorithm.kl.target") == "reference" and not adapters:
        models.append("reference")
    return " + ".join(models) + (", adapters trained" if adapters else "")


def _count(form: RunForm, path: str) -> int | None:
    """The count in that field; None when it is not a count, is 0, or did not pass the check."""
    value = None if path in form.problems else lookup(form.settings, path)
    return value if isinstance(value, int) and value > 0 else None


def _while_training(form: RunForm) -> str:
    """How often suites are evaluated while training, in words; empty where none is."""
    if form.config is None or not form.config.eval.during_suites:
        return ""
    settings = form.config.eval
    if settings.every is not None:
        return f"every {settings.every} step{'' if settings.every == 1 else 's'}"
    return f"in at most {percent(settings.cost, 0)} of the time"


def _choices_made(form: RunForm) -> tuple[Check, ...]:
    reward = (form.verifier_version, "a reward source", form.choices.verifier_versions, "make one under Rewards")
    sampled = "have a larger model write one by a sampling run; given answers are learned by fine-tuning"
    dataset_from = sampled if form.kind == "distill" else "upload one under Datasets"
    required = (
        (form.base_model, "a base model", form.choices.base_models, "register one under Base models"),
        (
            form.dataset,
            "a dataset",
            form.choices.datasets,
            dataset_from,
        ),
        *((reward,) if form.has("verifier_version") else ()),
    )
    return tuple(
        Check(True, True, f"{what} is chosen")
        if row
        else Check(False, True, f"{what} is missing" + ("" if offered else f": {advice}"))
        for row, what, offered, advice in required
    )


def _valid(form: RunForm) -> Check:
    wrong = [faults for name, faults in form.problems.items() if name != "probe_override"]  # has a separate line
    count = sum(map(len, wrong)) + len(form.general)
    if count == 0:
        return Check(True, True, "every setting is valid")
    return Check(False, True, f"{count} {'setting is' if count == 1 else 'settings are'} not valid")


def _own_judge(form: RunForm) -> tuple[Check, ...]:
    """A reward that the probe found wanting should not judge what it trained."""
    wanting = form.gate is not None and form.gate.state in ("pays_wrong", "rejects_right")
    if not wanting or form.eval_verifier_version is not None or form.config is None or not form.config.eval.has_heldout:
        return ()
    text = (
        "the probe found the reward wanting, and it judges the held-out problems too: choose another reward as "
        "held-out verifier"
    )
    return (Check(False, False, text),)


_BOUNDS = ("clip_low", "clip_high", "clip_delta")


def _without_effect(form: RunForm) -> tuple[Check, ...]:
    """A loss that differs from GRPO's in what it does to a ratio, or a bound on it, where the ratio is always 1."""
    if not isinstance(form.config, RunConfig):
        return ()
    algorithm = form.config.algorithm
    bounds = [name for name in _BOUNDS if getattr(algorithm, name) != RunConfig.default_at(f"algorithm.{name}")]
    if algorithm.loss_spec.ratio != "old" or (algorithm.loss == "clip" and not bounds):
        return ()
    if algorithm.updates_per_batch > 1 or algorithm.dynamic_sampling.enabled or form.config.engine.one_step_off:
        return ()
    without = bounds if algorithm.loss == "clip" else [f"loss {algorithm.loss}"]
    does = "have" if len(without) > 1 else "has"
    why = "with one update for a sampled batch the ratio is 1 and the gradient GRPO's; raise mini-batches or μ"
    return (Check(False, False, f"{', '.join(without)} {does} no effect: {why}"),)


def _node_seen(form: RunForm) -> Check:
    """Whether a node that may take it is available: of any kind while the form is not valid."""
    nodes = form.choices.nodes
    if not nodes:
        seconds = SILENT_AFTER.total_seconds()
        return Check(False, False, f"no worker was seen in the last {seconds:.0f} s: the run will wait for one")
    gpus = gpus_needed(form.config) if form.config else 0
    label = "" if "node_label" in form.problems else form.texts["node_label"].strip()
    packages = packages_needed(form.config) if form.config else []
    run = Run(gpus=gpus, node_label=label, needs_packages=packages)
    fitting = [node for node in nodes if node.fits(run)]
    if not fitting:
        devices = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else ""
        needs = (f"the label {label}" if label else "", devices, *(WORDS[name] for name in packages))
        needed = " and ".join(filter(None, needs))
        return Check(False, False, f"no worker that is here has {needed}: the run will wait for one")
    names = [node.name for node in fitting if not node.obstacle]
    if not names:
        return Check(False, False, f"{none_takes(fitting)}: the run will wait")
    shown = f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
    return Check(True, False, f"{'a worker is' if len(names) == 1 else 'workers are'} there: {shown}")


def _eval_problems(form: RunForm) -> int | None:
    problems = form.eval_dataset.problems if form.eval_dataset else _count(form, "eval.holdout")
    limit = _count(form, "eval.limit")
    return min(problems, limit) if problems and limit else problems


def _training_problems(form: RunForm) -> int | None:
    if form.dataset is None or {"data.limit", "eval.holdout"} & set(form.problems):
        return None
    taken = min(form.dataset.problems, _count(form, "data.limit") or form.dataset.problems)
    return taken - (0 if form.eval_dataset else _count(form, "eval.holdout") or 0)


def _time(form: RunForm, completions: int | None, measured: dict[str, Any] | None) -> TimeShown | None:
    """What a worker measured of this very config; without that, from past runs; without those none."""
    if measured is not None and measured["measured"] is not None and not measured["stale"]:
        estimate = measured["measured"]
        whole, step = estimate.seconds_total, estimate.seconds_per_step
        low, high = estimate.spread.get(SECONDS, (step, step))
        node = f" on {measured['job'].node.name}" if measured["job"].node else ""
        scaled = (whole * low / step, whole * high / step) if step else (whole, whole)
        return TimeShown(whole, *scaled, f"with evaluations, measured of these settings{node}")
    return _time_of_past_runs(form, completions) if completions else None


def _compute(form: RunForm, measured: dict[str, Any] | None) -> ComputeShown | None:
    if not isinstance(form.config, RunConfig) or form.base_model is None:
        return None
    current = measured is not None and not measured["stale"]
    return compute_before(form.config, form.base_model, measured["measured"] if measured and current else None)


def _time_of_past_runs(form: RunForm, completions: int) -> TimeShown | None:
    """From the newest runs of the same model, in proportion to the number of completions and to their limit. The range
    takes in completions that stay as long as they were."""
    limit = _count(form, "sampling.max_completion_tokens")
    if form.base_model is None or limit is None:
        return None
    past = Run.objects.filter(base_model=form.base_model, kind=form.kind, seconds_per_step__isnull=False)
    past = past.order_by("-id")[:PAST_RUNS]
    as_long: list[float] = []
    at_limit: list[float] = []
    for config, seconds in past.values_list("config", "seconds_per_step"):
        assert seconds is not None, "the query leaves such runs out"
        sampling = config["sampling"]
        as_long.append(completions * seconds / (sampling["group_size"] * sampling["prompts_per_step"]))
        at_limit.append(as_long[-1] * limit / sampling["max_completion_tokens"])
    if not at_limit:
        return None
    runs = f"{len(at_limit)} past run{'' if len(at_limit) == 1 else 's'} of this model"
    basis = f"of training, from {runs} in proportion to completions and their limit"
    every = (*as_long, *at_limit)
    return TimeShown(median(at_limit), min(every), max(every), basis)

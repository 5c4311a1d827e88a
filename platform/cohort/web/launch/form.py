"""The run form: new, from a preset, from another run, from YAML; launch or save."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from cohort.accounts.models import Project, Role, User
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.catalog.models import BaseModel, EvalSuiteVersion
from cohort.catalog.suites import CATEGORIES, starters_add
from cohort.catalog.tasks import MOST, dataset_from_task, task_reward
from cohort.contamination import services as overlaps
from cohort.lab.models import JobKind
from cohort.lab.prompts import distinct_prompts
from cohort.lab.services import config_jobs_request, job_request
from cohort.launch.configs import CONTENTS
from cohort.launch.drafts import draft_discard, drafts_of
from cohort.launch.sweeps import MAX_RUNS
from cohort.runs.models import Run, Sweep
from cohort.web.access import form_page, project_for
from cohort.web.accounts.views import person
from cohort.web.lab import preview_shown
from cohort.web.launch.changes import choose_preset, clone_differences, preset_changes, undo_preset
from cohort.web.launch.choices import Choices, kind_named
from cohort.web.launch.copies import COPIES, copied, refused
from cohort.web.launch.draft import from_draft, open_window, saved, starts_offered
from cohort.web.launch.from_yaml import form_from_yaml
from cohort.web.launch.launching import launched, obstacles, saved_as_run
from cohort.web.launch.layout import FIRST
from cohort.web.launch.outlook import Outlook
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.shown import (
    FieldShown,
    choices_shown,
    fields_shown,
    groups_shown,
    placing_shown,
    registration_shown,
)
from cohort.web.launch.suites import SPECS, field, offered
from cohort.web.launch.sweep import HOW, sweep_plan
from grpo_core.config import builtin_suites
from grpo_core.config.run import RunConfig
from grpo_core.data import gym
from grpo_core.errors import ConfigError


def _suite_row(form: RunForm, version: EvalSuiteVersion) -> dict[str, Any]:
    """One suite on the form: its switch, its margin (whose help the list of suites has), and the folded inputs, open
    where one has a text or an error."""
    margin, *more = (
        FieldShown.from_form(
            form, field(version, part), spec.label, spec.kind, help="" if part == "margin" else spec.help
        )
        for part, spec in SPECS.items()
    )
    return {
        "version": version,
        "category": CATEGORIES.get(version.category, version.category),
        "switch": FieldShown.from_form(form, field(version), version.title, "switch"),
        "margin": margin,
        "more": more,
        "more_open": any(shown.text or shown.errors for shown in more),
    }


KINDS = (
    ("grpo", "GRPO", "Completions in groups, compared by a reward."),
    ("sft", "Fine-tuning", "Given answers of conversations are learned."),
    ("reward_model", "Reward model", "A classifier that scores answers, from pairs or scores."),
    ("sample", "Sampling", "Completions that a filter keeps become a dataset."),
    ("distill", "Distillation", "A small model on a large one's samples."),
)
"""Kind, its title and what such a run does, as the row of links above the form has them."""
ACTIONS = (
    *("check", "find", "estimate", "preview", "probe", "preset", "undo", "starters", "import", "task", *COPIES),
    *("discard", "draft", "launch"),
)


@form_page
def run_new(request: HttpRequest, slug: str) -> HttpResponse:
    """One address for every button of the form; `action` names the button."""
    project = project_for(request, slug, at_least=Role.OPERATOR)
    if request.method != "POST":
        return _page(request, _started_from(request, project))
    action = request.POST.get("action", "check")
    if action == "import":
        return _import(request, project)
    if action == "discard":
        draft_discard(project=project, user=person(request), form_token=request.POST.get("discarded", ""))
        return redirect("run_new", slug)
    form = RunForm.posted(project, request.POST)
    if form.dataset is not None:
        overlaps.request_comparisons(form.dataset, form.eval_dataset, [suite.version for suite in form.suites])
    match action:
        case "check":
            form.check()
            return _checked(request, form)
        case "find":
            return _page(request, form)
        case "estimate" | "preview":
            return _measure(request, form, JobKind(action))
        case "probe":
            return _probe(request, form)
        case "preset" | "undo":
            if action == "preset":
                choose_preset(form)
            elif not undo_preset(form):
                form.general = ["There is no choice of a preset to undo."]
                return _page(request, form, status=422)
            return _page(request, form, template="launch/_form.html" if request.htmx else "launch/new.html")  # type: ignore[attr-defined]
        case "starters":
            try:
                starters_add(project=project, actor=person(request))
            except ValidationError as error:
                form.general = error.messages
                return _page(request, form, status=422)
            return _page(request, RunForm.posted(project, request.POST))
        case "task":
            return _task(request, form)
        case "yaml" | "command" | "api":
            return _copy(request, form, action)
        case "draft" | "launch":
            return _make(request, form, launch=action == "launch")
        case _:
            form.general = [f"action: {action} is not one of {', '.join(ACTIONS)}"]
            return _page(request, form, status=422)


def _task(request: HttpRequest, form: RunForm) -> HttpResponse:
    """Problems made by a task, chosen with the reward that scores them; or the errors at its fields."""
    _choose_task(form, person(request))
    choices = Choices.read(form.project, form.texts["find"], form.kind)
    chosen = RunForm(form.project, choices, form.texts, faults_of_task=form.problems)
    if chosen.faults_of_task:
        return _page(request, chosen, status=422)
    assert chosen.dataset is not None
    made, task = chosen.dataset.problems, chosen.texts["task"]
    messages.success(request, f"{made:,} problems of {task} are chosen, with the reward that scores them.")
    return _page(request, chosen)


def _choose_task(form: RunForm, actor: User) -> None:
    """Make the task's dataset and reward, unless the project has them, and choose both. Errors are put at the
    fields `task`, `task_size` and `task_seed`."""
    task = form.texts["task"]
    size, seed = natural(form.texts["task_size"].strip()), natural(form.texts["task_seed"].strip())
    if not task or size is None or seed is None:
        form.problems |= {"task": ["Choose a task."]} if not task else {}
        form.problems |= {"task_size": ["Give a whole number of problems."]} if size is None else {}
        form.problems |= {"task_seed": ["Give a whole number."]} if seed is None else {}
        return
    try:
        dataset = dataset_from_task(project=form.project, actor=actor, task=task, size=size, seed=seed)
        version = task_reward(project=form.project, actor=actor)
    except ValidationError as error:
        names = {"size": "task_size", "seed": "task_seed"}
        form.problems |= {names.get(field, "task"): faults for field, faults in error.message_dict.items()}
        return
    form.texts |= {"dataset": str(dataset.pk), "verifier_version": str(version.pk), "eval_dataset": ""}
    if "eval.holdout" in form.texts:
        form.texts["eval.holdout"] = str(min(256, dataset.problems // 5))


def _started_from(request: HttpRequest, project: Project) -> RunForm:
    """Empty, a draft of this person (`?draft=`), a preset (`?preset=`), a run of this project (`?clone=`), a registered
    checkpoint with the settings of its run (`?model=`); `?task=` fills in that task's panel."""
    if token := storable(request.GET.get("draft", "")):
        return from_draft(project, get_object_or_404(drafts_of(project, person(request)), form_token=token))
    if model := request.GET.get("model"):
        registered = BaseModel.objects.filter(project=project, checkpoint__isnull=False)
        form = RunForm.further(get_object_or_404(registered, pk=natural(model) or 0))
    elif clone := request.GET.get("clone"):
        form = RunForm.clone(get_object_or_404(Run, project=project, pk=natural(clone) or 0))
    else:
        form = RunForm.new(project, preset=request.GET.get("preset", ""), kind=kind_named(request.GET.get("kind", "")))
        form.texts["task"] = request.GET.get("task", "")
        if chosen := request.GET.get("dataset", ""):
            form = RunForm.of_dataset(form, chosen)
    open_window(form)
    return form


def _measure(request: HttpRequest, form: RunForm, kind: JobKind) -> HttpResponse:
    """Have a worker measure the form's config, or show its tokens, and those of the sweep's; the panel then shows
    the progress."""
    config, job = form.check(), None
    if config is not None and not isinstance(config, RunConfig):
        form.general.append("Only a GRPO run is measured or previewed before its launch.")
    elif config is not None:
        plan = sweep_plan(form) if kind == JobKind.PREVIEW else None
        try:
            job, *_ = config_jobs_request(
                configs=distinct_prompts([config, *(plan.configs if plan is not None else ())]),
                kind=kind,
                project=form.project,
                actor=person(request),
                node_label=form.texts["node_label"].strip(),
                **form.measured_rows,
            )
            form.texts[kind] = str(job.pk)
        except ConfigError as error:
            form.take(error)
    more = {"previewing": kind == JobKind.PREVIEW, "not_requested": job is None}
    return _checked(request, form, status=422 if job is None else 200, more=more)


def _probe(request: HttpRequest, form: RunForm) -> HttpResponse:
    """Have a worker probe the chosen reward on the chosen dataset, unless one does already."""
    form.check()
    version = form.verifier_version
    if version is not None and not preview_shown.probe_shown(version)["live"]:
        try:
            job_request(
                project=form.project, actor=person(request), kind="probe", version=version, dataset=form.dataset
            )
        except ConfigError as error:
            form.general += [problem.message for problem in error.problems]
    return _checked(request, form, status=422 if version is None or form.general else 200)


def _make(request: HttpRequest, form: RunForm, *, launch: bool) -> HttpResponse:
    config, plan, actor = form.check(), sweep_plan(form), person(request)
    if config is None:
        return _page(request, form, status=422)
    if launch:
        form.general = obstacles(form, config, plan)
    elif plan is not None:
        form.general = ["A draft is of one run: take the sweep's lines out, or launch it."]
    if form.general:
        return _page(request, form, status=422, checked=True)
    try:
        made = launched(form, config, plan, actor=actor) if launch else saved_as_run(form, config, actor=actor)
    except ConfigError as error:
        form.take(error)
        return _page(request, form, status=422, checked=True)
    draft_discard(project=form.project, user=actor, form_token=form.texts["form_token"])
    if isinstance(made, Sweep):
        messages.success(request, f"The runs of {made.name} are in the queue.")
        return redirect("sweep_detail", form.project.slug, made.pk)
    done = "in the queue." if launch else "saved as a draft. Nothing runs until you launch it."
    messages.success(request, f"{made.name} is {done}")
    return redirect("run_detail", form.project.slug, made.pk)


def _import(request: HttpRequest, project: Project) -> HttpResponse:
    text = request.POST.get("yaml", "")
    if (upload := request.FILES.get("file")) is not None:
        text = upload.read().decode(errors="replace")
    try:
        form = form_from_yaml(project, text)
        open_window(form)
    except ConfigError as error:
        form = RunForm.new(project)
        open_window(form)
        faults = [str(problem) for problem in error.problems] or [str(error)]
        return _page(request, form, status=422, more={"yaml": text, "yaml_faults": faults})
    if not form.problems and not form.general:
        messages.success(request, "The form is filled from the text. Nothing is launched yet.")
    return _page(request, form, checked=True, status=422 if form.problems or form.general else 200)


def _copy(request: HttpRequest, form: RunForm, what: str) -> HttpResponse:
    """The config as text; the page's script asks for JSON and copies it without leaving the form."""
    config, as_json = form.check(), request.headers.get("Accept") == "application/json"
    if config is None:
        return refused(form) if as_json else _page(request, form, status=422, checked=True)
    return copied(request, form, config, what, as_json=as_json)


def _page(
    request: HttpRequest,
    form: RunForm,
    *,
    status: int = 200,
    checked: bool = False,
    template: str = "launch/new.html",
    more: dict[str, Any] | None = None,
) -> HttpResponse:
    """The whole form. One just opened or filled lists blockers at the side, without field errors until it is sent."""
    if not checked:
        form.check()
    context = _context(form) | starts_offered(form, person(request))
    if request.method == "POST":
        context |= saved(form, person(request))
    if request.method != "POST" or template == "launch/_form.html":
        unchecked = RunForm(form.project, form.choices, form.texts)
        unchecked.gate = form.gate
        context |= _fields(unchecked)
    return render(request, template, context | (more or {}), status=status)


def _checked(
    request: HttpRequest, form: RunForm, *, status: int = 200, more: dict[str, Any] | None = None
) -> HttpResponse:
    """The running summary, and with it the notes beneath each field, swapped in out of band; without htmx the page.
    Of a form that has been checked."""
    if request.htmx:  # type: ignore[attr-defined]
        context = _context(form) | saved(form, person(request)) | (more or {})
        return render(request, "launch/_checked.html", context)
    return _page(request, form, status=status, checked=True, more=more)


def _context(form: RunForm) -> dict[str, Any]:
    changed = {"preset_changes": preset_changes(form), "parent_differences": clone_differences(form)}
    return {"form": form, "outlook": Outlook(form), **changed, **_fields(form)}


def _fields(form: RunForm) -> dict[str, Any]:
    shown, versions, extra = (
        fields_shown(form),
        form.choices.suite_versions,
        (registration_shown(form), placing_shown(form)),
    )
    suites = [_suite_row(form, version) for version in offered(form.texts, versions)]
    inputs = [shown for row in suites for shown in (row["switch"], row["margin"], *row["more"])]
    missing = set(builtin_suites.names()) - {version.suite.name for version in versions}
    return {
        "every_field": [*shown.values(), *(field for group in extra for field in group.fields), *inputs],
        "suites": {"rows": suites, "starters_missing": len(missing)},
        "choice": {field.name: field for field in choices_shown(form, shown)},
        "first": {path.rsplit(".", 1)[-1]: shown[path] for path in FIRST[form.kind]},
        "kinds": KINDS,
        "evaluates": form.has("suites"),
        "needs_reward": form.has("verifier_version"),
        "wanted_content": "" if form.kind == "grpo" else f" of {CONTENTS[form.kind].label.lower()}",
        "groups": [*groups_shown(form, shown), *extra],
        "hows": HOW,
        "most": MAX_RUNS,
        "tasks": {"fields": gym.TASKS.items(), "count": len(gym.NAMES), "most": MOST},
    }

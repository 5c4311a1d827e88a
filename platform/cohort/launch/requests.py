"""A run as a request: all that the run form sends, as JSON in which rows are called by their names. Read by the public
API, written by it and by the form; a run's own request makes the same run again.

Everything is checked by `creation`, as for the form; nothing here decides what a valid run is.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, Literal

from django.db import transaction
from pydantic import BaseModel as Schema
from pydantic import ConfigDict, Field, StringConstraints

from cohort.accounts.models import ApiToken, Project
from cohort.accounts.quotas import lock_project
from cohort.base.storable import Refused
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import OWN, ChosenSuite
from cohort.contamination import selectors as overlaps
from cohort.lab.gate import launch_of
from cohort.launch.configs import CHOSEN, NO_FURTHER, FurtherData, further_of, run_config
from cohort.launch.creation import run_create, run_submit
from cohort.launch.references import unreadable_references
from cohort.runs.models import Priority, Run, RunState
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.stage import Kind
from grpo_core.errors import ConfigError, FieldProblem

PriorityName = Literal["low", "normal", "high"]
PRIORITIES: dict[PriorityName, Priority] = {"low": Priority.LOW, "normal": Priority.NORMAL, "high": Priority.HIGH}
_FIELDS = (
    ("name", "name"),
    ("model.path", "base_model"),
    ("model.revision", "base_model"),
    ("data.path", "dataset"),
    ("data.format", "dataset"),
    ("data.columns", "dataset"),
    ("data.more", "more"),
    ("data.heldout_path", "heldout"),
    ("data.replay_path", "replay"),
    ("eval.path", "eval_dataset"),
    ("eval.format", "eval_dataset"),
    ("eval.columns", "eval_dataset"),
    ("eval.reward", "eval_verifier"),
    ("eval.suites", "suites"),
    ("reward", "verifier"),
    ("verifier_version", "verifier"),
    ("eval_verifier_version", "eval_verifier"),
)
"""Path of a fault, or the beginning of it → the field of a request that decides what is there."""


NOT_OF_CONFIG = ("priority", "node_label", "cloned_from", "hypotheses")
"""What a request says of a run besides its config."""


class SuiteRequest(Schema):
    """A suite that the run is evaluated on, with what the run decides of it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    suite: str = Field(description="Name and version of the suite, as gsm8k@1.")
    margin: float | None = Field(
        None, description="Margin of regression. Left out: the suite's own; null: `eval.margin` of the settings."
    )
    limit: int | None = Field(None, description="Most items that are used. Null: all.")
    max_completion_tokens: int | None = Field(None, description="Null: that of the run.")
    template: str | None = Field(None, description="Of prompts, with {prompt}. Null: that of the run.")


class RunRequest(Schema):
    """A run to make: its rows by name, and its settings."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind = Field("grpo", description="What the run does. Rows that its config has no place for are refused.")
    name: Annotated[str, StringConstraints(strip_whitespace=True)]
    base_model: str = Field(description="Name of a base model of the project.")
    dataset: str = Field(
        description="Name of a dataset of problems (grpo, sample), conversations (sft, distill) or preferences."
    )
    more: list[str] = Field([], description="Names of further datasets of conversations (sft, distill).")
    heldout: str | None = Field(
        None, description="Name of the dataset whose loss or accuracy is measured (sft, distill, reward_model)."
    )
    replay: str | None = Field(
        None, description="Name of the preferences that an earlier reward model was trained on (reward_model)."
    )
    eval_dataset: str | None = Field(
        None, description="Name of the held-out dataset. Null: `eval.holdout` problems of the dataset are held out."
    )
    verifier: str | None = Field(
        None, description="Name and version of the reward, as r1@1: of the kinds that score completions (grpo, sample)."
    )
    eval_verifier: str | None = Field(None, description="What judges the held-out problems. Null: the reward.")
    suites: list[SuiteRequest] = Field([], description="At most one version of each suite; their order has no meaning.")
    settings: dict[str, Any] = Field(
        {},
        description="A nested part of the run's config, such as {preset: dapo, sampling: {group_size: 8}}. What it "
        "leaves out comes from the preset, then from the defaults; what the rows decide may not be in it.",
    )
    priority: PriorityName = "normal"
    node_label: str = Field("", description="Only a node with this label takes the run. Empty: any.")
    hypotheses: str = Field(
        "",
        description="What its people expect, one a line: registered in the audit log at the launch, before the first "
        "step, and shown to anyone in the record's card.",
    )
    cloned_from: int | None = Field(None, description="Id of the run of the project whose settings it began with.")
    probe_override: str = Field("", description="Why it is launched although its reward or its prompts block it.")
    overlap_seen: str = Field(
        "", description="Confirms that evaluation items in the training data were seen, as the refusal states it."
    )
    launch: bool = Field(False, description="Whether it goes into the queue; else it is a draft.")

    def digest(self) -> str:
        """SHA-256 over what was given, as JSON with sorted names, as hex."""
        given = self.model_dump(mode="json", exclude_unset=True)
        return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


class LaunchRefused(ConfigError):
    """The run is valid, and what is known of its data, its reward or the machines keeps it from the queue."""

    code = "launch_refused"


class KeyReused(Refused, code="idempotency_key_reused"):
    """Another request of the same person in the project had this key."""


# ---------------------------------------------------------------------- from a request to a run


def run_request(*, project: Project, token: ApiToken, request: RunRequest, key: str = "") -> tuple[Run, bool]:
    """The run of a request, by the person whose token it is, and whether it was made now: the same request with the
    same `key` gives the run that it made before.

    Raises ConfigError whose problems carry the fields of the request, LaunchRefused, and KeyReused; then nothing is
    stored.
    """
    form_token = hashlib.sha256(f"api\0{key}".encode()).hexdigest()[:16] if key else ""
    if run := _made_before(project, token, request, form_token):
        return run, False
    rows, config = _checked(project, request)
    with transaction.atomic():
        if form_token:
            lock_project(project)
            if run := _made_before(project, token, request, form_token):  # by a call that came at the same time
                return run, False
        return _make(project, token, request, rows, config, form_token), True


def run_request_check(*, project: Project, token: ApiToken, request: RunRequest) -> AnyConfig:
    """The config of the run that the request would make. All of it is done and rolled back, so that everything that
    would be refused is: raises as `run_request`."""
    rows, config = _checked(project, request)
    with transaction.atomic():
        _make(project, token, request, rows, config, "")
        transaction.set_rollback(True)
    return config


def _make(
    project: Project, token: ApiToken, request: RunRequest, rows: dict[str, Any], config: AnyConfig, form_token: str
) -> Run:
    called = {"api_token": {"name": token.name, "prefix": token.prefix}, "request_digest": request.digest()}
    made: dict[str, Any] = {"name": request.name, "settings": config, "form_token": form_token, "api_call": called}
    try:
        run = run_create(project=project, actor=token.user, **made, **rows)
    except ConfigError as error:
        raise _of_request(error, request.settings) from None
    if not request.launch:
        return run
    confirmed = {"overlap_seen": request.overlap_seen, "probe_override": request.probe_override}
    try:
        run_submit(run=run, actor=token.user, **confirmed, api_call=called)
    except ConfigError as error:
        problems = error.problems
        if any(problem.path == "overlap_seen" for problem in problems):
            seen = overlaps.token(overlaps.of_run(run))
            problems += (FieldProblem("overlap_seen", f'send "{seen}" to confirm that you have seen it'),)
        raise LaunchRefused(str(error), problems) from None
    return run


def _checked(project: Project, request: RunRequest) -> tuple[dict[str, Any], AnyConfig]:
    """The rows as `run_create` takes them, and the config made of them."""
    rows = _rows(project, request)
    of_config = {name: row for name, row in rows.items() if name not in NOT_OF_CONFIG}
    try:
        config = run_config(kind=request.kind, name=request.name, settings=request.settings, **of_config)
    except ConfigError as error:
        raise _of_request(error, request.settings) from None
    if request.launch:
        faults = unreadable_references(config, rows["dataset"], rows["eval_dataset"])
        if faults:
            raise LaunchRefused.listing("the run would not start", [FieldProblem("", text) for text in faults])
    return rows, config


def _made_before(project: Project, token: ApiToken, request: RunRequest, form_token: str) -> Run | None:
    if not form_token:
        return None
    run = Run.objects.filter(project=project, created_by=token.user, form_token=form_token).first()
    if run is None:
        return None
    created = run.events.filter(kind="created").first()
    if created is None or created.data.get("request_digest") != request.digest():
        raise KeyReused(f"the request that had this Idempotency-Key made run {run.pk}, and was another; take a new key")
    return run


def _rows(project: Project, request: RunRequest) -> dict[str, Any]:
    """Raises ConfigError that names each row that the project does not have."""
    faults: list[FieldProblem] = []

    def named(model: type[Any], field: str, what: str, name: str | None) -> Any:
        row = None if name is None else model.objects.filter(project=project, name=name).first()
        if row is None and name is not None:
            faults.append(FieldProblem(field, f"no {what} of the project is called {name!r}"))
        return row

    reward, judge = _versions(
        VerifierVersion.objects.filter(verifier__project=project).select_related("verifier"),
        "verifier",
        (("verifier", request.verifier), ("eval_verifier", request.eval_verifier)),
        faults,
    )
    versions = _versions(
        EvalSuiteVersion.objects.filter(suite__project=project).select_related("suite"),
        "suite",
        [(f"suites.{at}.suite", suite.suite) for at, suite in enumerate(request.suites)],
        faults,
    )
    suites = [_chosen(suite, version) for suite, version in zip(request.suites, versions, strict=True) if version]
    suites.sort(key=lambda suite: suite.version.suite.name)
    names: set[str] = set()
    for at, suite in enumerate(request.suites):
        name = suite.suite.rpartition("@")[0]
        if name in names:
            faults.append(FieldProblem(f"suites.{at}.suite", f"{name} is in the list already; a run takes one version"))
        names.add(name)
    parent = None
    if request.cloned_from is not None:
        known = 0 < request.cloned_from < 2**63
        parent = Run.objects.filter(project=project, pk=request.cloned_from).first() if known else None
        if parent is None:
            faults.append(FieldProblem("cloned_from", f"no run of the project has the id {request.cloned_from}"))
    more = [named(PromptDataset, f"more.{at}", "dataset", name) for at, name in enumerate(request.more)]
    rows = {
        "base_model": named(BaseModel, "base_model", "base model", request.base_model),
        "dataset": named(PromptDataset, "dataset", "dataset", request.dataset),
        "eval_dataset": named(PromptDataset, "eval_dataset", "dataset", request.eval_dataset),
        "further": FurtherData(
            more=[row for row in more if row is not None],
            heldout=named(PromptDataset, "heldout", "dataset", request.heldout),
            replay=named(PromptDataset, "replay", "dataset", request.replay),
        ),
        "verifier_version": reward,
        "eval_verifier_version": judge,
        "suites": suites,
        "cloned_from": parent,
        "priority": PRIORITIES[request.priority],
        "node_label": request.node_label,
        "hypotheses": request.hypotheses,
    }
    if faults:
        raise ConfigError.listing("this request is not valid", faults)
    return rows


def _versions(rows: Any, of: str, wanted: Sequence[tuple[str, str | None]], faults: list[FieldProblem]) -> list[Any]:
    """For each (field, name@version) its row; None where there is none, which is a fault, and where none is wanted."""
    names = {text.rpartition("@")[0] for _, text in wanted if text}
    by_name = {(getattr(row, of).name, str(row.number)): row for row in rows.filter(**{f"{of}__name__in": names})}
    chosen = []
    for field, text in wanted:
        name, _, number = (text or "").rpartition("@")
        row = by_name.get((name, number))
        if row is None and text is not None:
            what = "reward" if of == "verifier" else of
            faults.append(FieldProblem(field, f"no {what} of the project is {text!r}; give it as NAME@VERSION"))
        chosen.append(row)
    return chosen


def _chosen(suite: SuiteRequest, version: EvalSuiteVersion) -> ChosenSuite:
    given = {name: getattr(suite, name) for name in OWN}
    if "margin" not in suite.model_fields_set:
        given["margin"] = version.margin
    return ChosenSuite(version, **given)


def _of_request(error: ConfigError, settings: Mapping[str, Any]) -> ConfigError:
    """The same faults, by the fields of a request."""
    problems = tuple(FieldProblem(_field(each.path, settings), each.message, each.code) for each in error.problems)
    return ConfigError.listing("this request is not valid", problems) if problems else error


def _field(path: str, settings: Mapping[str, Any]) -> str:
    if not path or _given(path, settings):
        return f"settings.{path}" if path else ""
    for beginning, field in _FIELDS:
        if path == beginning or path.startswith(f"{beginning}."):
            return field + path.removeprefix(beginning) if field == "suites" else field
    return path if path.partition(".")[0] in RunRequest.model_fields else f"settings.{path}"


def _given(path: str, settings: Any) -> bool:
    """Whether the settings hold something at the path, or at a part of it that is no mapping."""
    for piece in path.split("."):
        if not isinstance(settings, Mapping):
            return True
        if piece not in settings:
            return False
        settings = settings[piece]
    return True


# ---------------------------------------------------------------------- from a run to its request


def request_of(run: Run) -> RunRequest:
    """What would make the run again, as things are now."""
    chosen = run.run_suites.select_related("version__suite")
    versions = {(row.version.suite.name, row.version.number): row.version for row in chosen}
    suites = [
        ChosenSuite(versions[suite.name, suite.version], **{name: getattr(suite, name) for name in OWN})
        for suite in run.parsed_config.eval.suites
    ]
    config, at_launch, launched = run.parsed_config, launch_of(run), run.state != RunState.DRAFT
    acknowledged = launched and (overlaps.at_launch(run) or {}).get("acknowledged")
    return request_from(
        config,
        base_model=run.base_model,
        dataset=run.dataset,
        further=further_of(run),
        eval_dataset=run.eval_dataset,
        verifier_version=run.verifier_version,
        eval_verifier_version=run.eval_verifier_version,
        suites=suites,
        priority=run.priority,
        node_label=run.node_label,
        cloned_from=run.cloned_from_id,
        hypotheses=run.hypotheses,
        probe_override=at_launch.reason if at_launch else "",
        overlap_seen=overlaps.token(overlaps.of_run(run)) if acknowledged else "",
        launch=launched,
    )


def request_from(
    config: AnyConfig,
    *,
    base_model: BaseModel,
    dataset: PromptDataset,
    further: FurtherData = NO_FURTHER,
    eval_dataset: PromptDataset | None,
    verifier_version: VerifierVersion | None,
    eval_verifier_version: VerifierVersion | None,
    suites: Sequence[ChosenSuite],
    priority: int,
    **more: Any,
) -> RunRequest:
    """The request for a run of this config, made of these rows; `more` are fields of the request as they are."""
    settings = deepcopy(config.to_dict())
    settings.pop("kind", None)
    for path in CHOSEN[config.kind]:
        *parents, leaf = path.split(".")
        part = settings
        for parent in parents:
            part = part[parent]
        part.pop(leaf, None)
    return RunRequest(
        kind=config.kind,
        name=config.name,
        base_model=base_model.name,
        dataset=dataset.name,
        more=[row.name for row in further.more],
        heldout=further.heldout.name if further.heldout else None,
        replay=further.replay.name if further.replay else None,
        eval_dataset=eval_dataset.name if eval_dataset else None,
        verifier=_named(verifier_version, "verifier") if verifier_version else None,
        eval_verifier=_named(eval_verifier_version, "verifier") if eval_verifier_version else None,
        suites=[
            SuiteRequest(suite=_named(each.version, "suite"), **{name: getattr(each, name) for name in OWN})
            for each in suites
        ],
        settings=settings,
        priority=next(name for name, value in PRIORITIES.items() if value == priority),
        **more,
    )


def _named(version: VerifierVersion | EvalSuiteVersion, of: str) -> str:
    return f"{getattr(version, of).name}@{version.number}"

"""The run form: the input, whether it makes a valid run, and the errors of each field.

One form state for all ways in (empty, preset, clone, YAML, a posted page): a flat dict of texts by field name. The
check is the one that creating a run makes (`launch.configs.run_config`), so the two cannot disagree.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from django.core.exceptions import ValidationError
from django.http import QueryDict

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.catalog.models import BaseModel, EvalSuiteVersion, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite
from cohort.lab.gate import Gate, gate
from cohort.launch.configs import run_config
from cohort.runs.base_models import OFFER_AGAIN
from cohort.runs.models import Priority, Run
from cohort.runs.preregistration import hypotheses_checked
from cohort.runs.schedule import NodeCapacity, node_capacities
from cohort.web.catalog.selectors import Offered, base_models_offered
from cohort.web.launch import suites
from cohort.web.launch.schema import (
    CHOICES,
    FROM_VARIANT,
    SUBJECTS,
    fields,
    input_of,
    settings_of,
    texts_of,
    unreadable,
)
from cohort.web.launch.variants import ALL, DEFAULT, USUAL
from grpo_core.config.presets import PRESETS, unknown_preset
from grpo_core.config.run import RunConfig
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.protocol.queues import LABEL, LABEL_RULE

ROWS = ("base_model", "dataset", "eval_dataset", "verifier_version", "eval_verifier_version")
NOT_FIELDS = frozenset({"csrfmiddlewaretoken", "action", "yaml"})
EXTRA_FIELDS = {
    **dict.fromkeys(CHOICES, ""),
    "variant": DEFAULT,
    "priority": str(Priority.NORMAL.value),
    "cloned_from": "",
    "form_token": "",
    "window": "",
    "preset_before": "",
    "undo": "",
    "sweep": "",
    "sweep_how": "product",
    "overlap_seen": "",
    "probe_override": "",
    "estimate": "",
    "preview": "",
    "task": "",
    "task_size": "1000",
    "task_seed": "0",
}
"""The form's fields besides the config's, with their initial texts."""
FORM_TOKEN = re.compile(r"[0-9a-f]{16}")
PRESET_PARTS = ("sampling.", "algorithm.", "optim.")
PRESET_PATHS = frozenset(path for preset in PRESETS.values() for path, _ in preset.leaves())
"""Choosing a preset resets these parts, and whatever any preset sets: the form is then the same whatever was there
before, another preset too."""


def of_presets(path: str) -> bool:
    """Whether choosing a preset sets this input, so that nothing of the preset before is left in it."""
    return path == "variant" or path.startswith(PRESET_PARTS) or path in PRESET_PATHS


@dataclass(frozen=True)
class Choices:
    """What the project's catalog and the machines offer; read once per form."""

    base_models: Offered[BaseModel]
    datasets: Offered[PromptDataset]
    verifier_versions: Offered[VerifierVersion]
    suite_versions: tuple[EvalSuiteVersion, ...]
    """All of them: an older one may be what a clone is evaluated on."""
    nodes: tuple[NodeCapacity, ...]
    """Nodes that are here."""

    @classmethod
    def read(cls, project: Project, find: str = "") -> "Choices":
        """`find`: part of a name, to choose from lists that are too long to be offered whole."""
        versions = VerifierVersion.objects.filter(verifier__project=project).select_related("verifier")
        return cls(
            Offered(base_models_offered(project), find),
            Offered(PromptDataset.objects.filter(project=project).defer("preview"), find),
            Offered(versions, find, name="verifier__name"),
            tuple(EvalSuiteVersion.objects.filter(suite__project=project).select_related("suite").order_by("pk")),
            node_capacities(),
        )

    @property
    def complete(self) -> bool:
        return bool(self.base_models and self.datasets and self.verifier_versions)

    @property
    def more(self) -> bool:
        """Whether a list is too long to be offered whole."""
        return self.base_models.more or self.datasets.more or self.verifier_versions.more


@dataclass
class RunForm:
    project: Project
    choices: Choices
    texts: dict[str, str]
    """By name: those of EXTRA_FIELDS, the dotted path of every field of the config, and those of launch.suites."""
    unknown: tuple[str, ...] = ()
    """Posted names that the form does not know."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    general: list[str] = field(default_factory=list)
    faults_of_task: dict[str, list[str]] = field(default_factory=dict)
    """Why a task's problems could not be made (launch.form); later checks do not report it again."""
    config: RunConfig | None = None
    """The config that the last check made; None when it failed."""

    # ------------------------------------------------------------------ ways in

    @classmethod
    def new(cls, project: Project, *, preset: str = "") -> "RunForm":
        form = cls.posted(project, {})
        form.choose_rows()
        if form.dataset and not form.eval_dataset:
            form.texts["eval.holdout"] = str(min(256, form.dataset.problems // 5))
        form.texts["name"] = form.suggested_name("")
        if preset in PRESETS:
            form.fill_preset(preset)
            form.texts["preset_before"] = preset
        return form

    @classmethod
    def clone(cls, run: Run) -> "RunForm":
        choices = Choices.read(run.project)
        form = cls(run.project, choices, {**EXTRA_FIELDS, **texts_of(run.config)})
        form.fill_suites(run.config["eval"].get("suites", ()))
        form.texts |= {
            "priority": str(run.priority),
            "node_label": run.node_label,
            "cloned_from": str(run.pk),
            "hypotheses": run.hypotheses,
            "name": run.name,
            "preset": run.preset,
            "preset_before": run.preset,
            **_rows_of(run),
        }
        return form

    @classmethod
    def further(cls, model: BaseModel) -> "RunForm":
        """A run like that of a registered checkpoint, which begins from it."""
        checkpoint = model.checkpoint
        assert checkpoint is not None
        form = cls.clone(checkpoint.run)
        form.texts |= {"base_model": str(model.pk), "model.adapter": "continue"}
        form.texts["name"] = f"continues {checkpoint.run.name[:90]} from step {checkpoint.step}"
        return form

    @classmethod
    def posted(cls, project: Project, data: Mapping[str, str]) -> "RunForm":
        """What a page sent. A field that it did not send is at its default. Of a name sent twice the last counts,
        which is how an unticked checkbox is sent; of a field with several checkboxes each ticked one."""
        choices = Choices.read(project, str(data.get("find", "")))
        texts = {**texts_of({}), **EXTRA_FIELDS, **suites.empty_texts(choices.suite_versions)}
        known = {name: str(data[name]) for name in data if name in texts}
        if isinstance(data, QueryDict):
            several = [path for path, spec in fields().items() if spec.kind == "checks" and path in known]
            known |= {path: "\n".join(filter(None, data.getlist(path))) for path in several}
        unknown = tuple(sorted(name for name in data if name not in texts and name not in NOT_FIELDS))
        return cls(project, choices, texts | known, unknown)

    def fill_suites(self, config_suites: Sequence[Mapping[str, Any]]) -> list[FieldProblem]:
        """Choose what a config's `eval.suites` names; what the project does not have is returned."""
        texts, missing = suites.texts_of_suites(config_suites, self.choices.suite_versions)
        self.texts |= suites.empty_texts(self.choices.suite_versions) | texts
        return missing

    def fill_preset(self, name: str) -> None:
        """Set every field that is a matter of presets to this one's, or to the default where it sets none."""
        if self.texts["name"] in {self.suggested_name(preset) for preset in ("", *PRESETS)}:
            self.texts["name"] = self.suggested_name(name)
        fresh = texts_of(PRESETS[name].settings if name in PRESETS else {})
        self.texts["preset"] = name
        self.texts |= {path: text for path, text in fresh.items() if of_presets(path)}

    def suggested_name(self, preset: str) -> str:
        """A name to start from; one that a person has typed is never replaced."""
        return " · ".join(filter(None, (self.dataset.name if self.dataset else "run", preset)))

    def choose_rows(self) -> None:
        """What the project's newest run was made of; for the first run, the newest of each."""
        newest = Run.objects.filter(project=self.project).order_by("-pk").only(*(f"{name}_id" for name in ROWS)).first()
        if newest is not None:
            self.texts |= _rows_of(newest)
            if self.choices.base_models.row(self.texts["base_model"]) is None:  # archived since
                self.texts["base_model"] = self.choices.base_models.newest
            return
        self.texts |= {
            "base_model": self.choices.base_models.newest,
            "dataset": self.choices.datasets.newest,
            "verifier_version": self.choices.verifier_versions.newest,
        }

    # ------------------------------------------------------------------ what it holds

    @cached_property
    def base_model(self) -> BaseModel | None:
        return self.choices.base_models.row(self.texts["base_model"])

    @cached_property
    def dataset(self) -> PromptDataset | None:
        return self.choices.datasets.row(self.texts["dataset"])

    @cached_property
    def eval_dataset(self) -> PromptDataset | None:
        return self.choices.datasets.row(self.texts["eval_dataset"])

    @cached_property
    def verifier_version(self) -> VerifierVersion | None:
        return self.choices.verifier_versions.row(self.texts["verifier_version"])

    @cached_property
    def eval_verifier_version(self) -> VerifierVersion | None:
        """What judges the held-out problems; None: the reward."""
        return self.choices.verifier_versions.row(self.texts["eval_verifier_version"])

    @cached_property
    def gate(self) -> Gate | None:
        """What is known of the chosen reward, on the chosen dataset where there is a probe of just that."""
        return gate(self.verifier_version, self.dataset) if self.verifier_version else None

    @property
    def suites(self) -> list[ChosenSuite]:
        return suites.chosen(self.texts, self.choices.suite_versions)

    @property
    def rows(self) -> dict[str, Any]:
        """What the config is made of besides settings, as `launch.creation.run_create` takes it."""
        return {**{name: getattr(self, name) for name in ROWS}, "suites": self.suites}

    @property
    def settings(self) -> dict[str, Any]:
        """The nested part of a RunConfig that `launch.creation.run_create` takes."""
        return {**settings_of(self.texts), "preset": self.texts["preset"] or None}

    @cached_property
    def cloned_from(self) -> Run | None:
        """The run that the form began with; none when it is gone or was never of this project."""
        return Run.objects.filter(project=self.project, pk=natural(self.texts["cloned_from"]) or 0).first()

    @property
    def placing(self) -> dict[str, Any]:
        """Where and when it runs, as `launch.creation.run_create` takes it. Of a form that has been checked."""
        return {
            "priority": int(self.texts["priority"]),
            "node_label": self.texts["node_label"].strip(),
            "cloned_from": self.cloned_from,
            "hypotheses": self.texts["hypotheses"],
            "form_token": self.texts["form_token"],
        }

    # ------------------------------------------------------------------ check

    def check(self) -> RunConfig | None:
        """The whole config when everything fits; else None, with the reasons in `problems` and `general`."""
        self.problems = {name: list(faults) for name, faults in self.faults_of_task.items()}
        self.general = [f"{name} is not a field of the run form; take it out" for name in self.unknown]
        if self.texts["form_token"] and not FORM_TOKEN.fullmatch(self.texts["form_token"]):
            self.general.append("form_token is none that a run form has; reload the page")
        missing = {
            "base_model": ("choose a base model", self.base_model),
            "dataset": ("choose a dataset to train on", self.dataset),
            "verifier_version": ("choose what completions are scored by", self.verifier_version),
        }
        missing |= {
            name: ("", getattr(self, name)) for name in ("eval_dataset", "eval_verifier_version") if self.texts[name]
        }
        self.problems |= {
            name: [self._no_row(name, message)] for name, (message, row) in missing.items() if row is None
        }
        if self.texts["variant"] not in ALL:
            usual = [variant.label for variant in USUAL]
            self.problems["variant"] = [f"{CHOICES['variant']} must be one of: {'; '.join(usual)}."]
        if self.texts["preset"] and self.texts["preset"] not in PRESETS:
            self.problems["preset"] = [f"{unknown_preset(self.texts['preset'])}."]
        if self.texts["priority"] not in map(str, Priority.values):
            levels = ", ".join(priority.label.lower() for priority in Priority)
            self.problems["priority"] = [f"Priority must be one of {levels}."]
        label = self.texts["node_label"].strip()
        if label and not LABEL.fullmatch(label):
            self.problems["node_label"] = [f"Node label takes {LABEL_RULE}."]
        try:
            hypotheses_checked(self.texts["hypotheses"])
        except ValidationError as error:
            self.problems["hypotheses"] = error.messages
        self.problems |= {name: [message] for name, message in suites.twice(self.suites)}
        self.problems |= {path: [why] for path, why in unreadable(self.texts).items()}
        config = None
        try:
            config = self._config()
        except ConfigError as error:
            self.take(error)
        self.config = None if self.problems or self.general else config
        return self.config

    def take(self, error: ConfigError) -> None:
        """Add each problem to its field; errors that the form already has for a field are kept."""
        by_input: dict[str, list[str]] = {}
        for problem in error.problems:
            name = input_of(problem.path)
            if (suite_input := suites.input_of(problem.path, self.suites)) is not None:
                by_input.setdefault(suite_input[0], []).append(_sentence(suite_input[1], problem.message))
            elif name is not None:
                subject = SUBJECTS.get(name) or CHOICES.get(name) or fields()[name].label
                by_input.setdefault(name, []).append(_sentence(subject, problem.message))
            else:
                self.general.append(str(problem))
        self.problems = {**by_input, **self.problems}
        self.general += [] if error.problems else [str(error)]

    def _config(self) -> RunConfig:
        """Checked with stand-ins for rows not chosen yet, so that all other faults show at once."""
        settings = self.settings
        if self.problems.keys() & {"variant", "preset"}:
            settings["preset"] = None
        if "variant" in self.problems:
            decided = {path.removeprefix("algorithm.") for path in FROM_VARIANT}
            settings["algorithm"] = {key: value for key, value in settings["algorithm"].items() if key not in decided}
        config = run_config(
            name=self.texts["name"].strip(),
            settings=settings,
            **{name: row or _STAND_INS[name] for name, row in self.rows.items()},
        )
        assert isinstance(config, RunConfig), "of kind grpo"
        return config

    def _archived_model(self) -> BaseModel | None:
        """The chosen one where it is no longer offered."""
        return BaseModel.objects.filter(project=self.project, pk=natural(self.texts["base_model"]) or 0).first()

    def _no_row(self, name: str, message: str) -> str:
        if name == "base_model" and (archived := self._archived_model()) is not None:
            return f"{archived.name} is archived. {OFFER_AGAIN}, or choose another."
        if self.texts[name]:
            return f"{CHOICES[name]} {self.texts[name]} is not in this project. Choose one from the list."
        return message[:1].upper() + message[1:] + "."


def _rows_of(run: Run) -> dict[str, str]:
    return {name: str(getattr(run, f"{name}_id") or "") for name in ROWS}


def _sentence(subject: str, message: str) -> str:
    """ "G must be 2 or more; given 1."; a caret under a template's line stays the last sign."""
    separator = " " if message.startswith(("must ", "is ", "holds ", "does ")) else ": "
    text = f"{subject}{separator}{message}"
    return text if text.endswith((".", ")", "^")) else text + "."


_STAND_INS: dict[str, Any] = {
    "base_model": BaseModel(path="-"),
    "dataset": PromptDataset(sha256="-", format="plain", problems=10**9),
    "eval_dataset": None,
    "verifier_version": VerifierVersion(spec={"components": [{"name": "chosen", "kind": "exact"}]}),
    "eval_verifier_version": None,
    "suites": [],
}
"""For rows that are not chosen yet; whatever is held out of the dataset, some of it is left."""

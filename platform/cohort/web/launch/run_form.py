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
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion
from cohort.catalog.run_inputs import ChosenSuite
from cohort.lab.gate import Gate, gate
from cohort.launch.configs import CHOSEN, CONTENTS, FurtherData, further_of, run_config
from cohort.runs.base_models import OFFER_AGAIN
from cohort.runs.models import Priority, Run
from cohort.runs.preregistration import hypotheses_checked
from cohort.web.launch import suites
from cohort.web.launch.choices import DECIDED, ROWS, Choices, kind_named
from cohort.web.launch.layout import FROM_VARIANT, of_presets
from cohort.web.launch.schema import (
    CHOICES,
    SUBJECTS,
    fields,
    input_of,
    sentence,
    settings_of,
    texts_of,
    unreadable,
)
from cohort.web.launch.variants import ALL, DEFAULT, USUAL
from grpo_core.config.kinds import CONFIGS, AnyConfig
from grpo_core.config.presets import PRESETS, unknown_preset
from grpo_core.config.stage import Kind
from grpo_core.errors import ConfigError, FieldProblem
from grpo_core.protocol.queues import LABEL, LABEL_RULE

NOT_FIELDS = frozenset({"csrfmiddlewaretoken", "action", "yaml"})
EXTRA_FIELDS = {
    "kind": "grpo",
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
    config: AnyConfig | None = None
    """The config that the last check made; None when it failed."""

    # ------------------------------------------------------------------ ways in

    @classmethod
    def new(cls, project: Project, *, preset: str = "", kind: Kind = "grpo") -> "RunForm":
        form = cls.posted(project, {"kind": kind})
        form.choose_rows()
        form.hold_out()
        form.texts["name"] = form.suggested_name("")
        if preset in PRESETS:
            form.fill_preset(preset)
            form.texts["preset_before"] = preset
        return form

    @classmethod
    def of_dataset(cls, form: "RunForm", chosen: str) -> "RunForm":
        """The same form with this dataset, whose part it then holds out."""
        again = cls(form.project, form.choices, {**form.texts, "dataset": chosen})
        again.hold_out()
        again.texts["name"] = again.suggested_name("")
        return again

    @classmethod
    def clone(cls, run: Run) -> "RunForm":
        kind = kind_named(run.kind)
        choices = Choices.read(run.project, kind=kind)
        form = cls(run.project, choices, {**EXTRA_FIELDS, **texts_of(run.config, kind), "kind": kind})
        form.fill_suites(run.config.get("eval", {}).get("suites", ()))
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
        kind = kind_named(str(data.get("kind", "grpo")))
        choices = Choices.read(project, str(data.get("find", "")), kind)
        texts = {**texts_of({}, kind), **EXTRA_FIELDS, **suites.empty_texts(choices.suite_versions)}
        known = {name: str(data[name]) for name in data if name in texts}
        if isinstance(data, QueryDict):
            checks = [path for path, spec in fields(kind).items() if spec.kind == "checks"]
            several = [path for path in (*checks, "more") if path in known]
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

    def hold_out(self) -> None:
        """Split a part of the dataset off, where the kind has such a field and no other rows are held out."""
        field = next((name for name in ("data.holdout", "eval.holdout") if name in fields(self.kind)), None)
        if field is not None and self.dataset and not (self.eval_dataset or self.heldout):
            self.texts[field] = str(min(256, self.dataset.problems // 5))

    def choose_rows(self) -> None:
        """What the project's newest run of the kind was made of; for the first such run, the newest of each."""
        runs = Run.objects.filter(project=self.project, kind=self.kind).order_by("-pk")
        newest = runs.only("project_id", *(f"{name}_id" for name in ROWS)).first()
        if newest is not None:
            self.texts |= _rows_of(newest)
            if self.choices.base_models.row(self.texts["base_model"]) is None:  # archived since
                self.texts["base_model"] = self.choices.base_models.newest
            return
        self.texts |= {
            "base_model": self.choices.base_models.newest,
            "dataset": self.choices.datasets.newest,
            "verifier_version": self.choices.verifier_versions.newest if self.has("verifier_version") else "",
        }

    # ------------------------------------------------------------------ what it holds

    @property
    def kind(self) -> Kind:
        return kind_named(self.texts["kind"])

    def has(self, choice: str) -> bool:
        """Whether the kind has this choice of rows."""
        return choice not in DECIDED or DECIDED[choice] in CHOSEN[self.kind]

    @property
    def complete(self) -> bool:
        """Whether the catalog has something of each that a run of the kind must be made of."""
        offered = self.choices
        rewards = bool(offered.verifier_versions) or not self.has("verifier_version")
        return bool(offered.base_models and offered.datasets and rewards)

    @cached_property
    def base_model(self) -> BaseModel | None:
        return self.choices.base_models.row(self.texts["base_model"])

    @cached_property
    def dataset(self) -> PromptDataset | None:
        return self.choices.datasets.row(self.texts["dataset"])

    @cached_property
    def eval_dataset(self) -> PromptDataset | None:
        return self.choices.problems.row(self.texts["eval_dataset"])

    @cached_property
    def more(self) -> tuple[PromptDataset, ...]:
        """Further datasets, those that the project has."""
        chosen = map(self.choices.datasets.row, self.texts["more"].split())
        return tuple(row for row in chosen if row is not None)

    @cached_property
    def heldout(self) -> PromptDataset | None:
        return self.choices.datasets.row(self.texts["heldout"])

    @cached_property
    def replay(self) -> PromptDataset | None:
        return self.choices.datasets.row(self.texts["replay"])

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
        return suites.chosen(self.texts, self.choices.suite_versions) if self.has("suites") else []

    @property
    def rows(self) -> dict[str, Any]:
        """What the config is made of besides settings, as `launch.creation.run_create` takes it."""
        rows = {name: getattr(self, name) if self.has(name) else None for name in ROWS}
        return {**rows, "suites": self.suites, "further": self.further_data, "kind": self.kind}

    @property
    def measured_rows(self) -> dict[str, Any]:
        """The same of what a worker measures or shows before the launch, which is of GRPO alone."""
        return {name: row for name, row in self.rows.items() if name not in ("further", "kind")}

    @property
    def further_data(self) -> FurtherData:
        return FurtherData(
            more=self.more if self.has("more") else (),
            heldout=self.heldout if self.has("heldout") else None,
            replay=self.replay if self.has("replay") else None,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The nested part of a config that `launch.creation.run_create` takes."""
        settings = settings_of(self.texts, self.kind)
        return {**settings, "preset": self.texts["preset"] or None} if self.kind == "grpo" else settings

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

    def check(self) -> AnyConfig | None:
        """The whole config when everything fits; else None, with the reasons in `problems` and `general`."""
        self.problems = {name: list(faults) for name, faults in self.faults_of_task.items()}
        self.general = [f"{name} is not a field of the run form; take it out" for name in self.unknown]
        if self.texts["form_token"] and not FORM_TOKEN.fullmatch(self.texts["form_token"]):
            self.general.append("form_token is none that a run form has; reload the page")
        if self.texts["kind"] not in CONFIGS:
            self.general.append(f"kind is one of {', '.join(CONFIGS)}")
        missing: dict[str, tuple[str, Any]] = {
            "base_model": ("choose a base model", self.base_model),
            "dataset": (f"choose a dataset of {CONTENTS[self.kind].label.lower()}", self.dataset),
        }
        if self.has("verifier_version"):
            missing["verifier_version"] = ("choose what completions are scored by", self.verifier_version)
        optional = ("eval_dataset", "eval_verifier_version", "heldout", "replay")
        missing |= {name: ("", getattr(self, name)) for name in optional if self.texts[name] and self.has(name)}
        if self.has("more") and len(self.more) < len(self.texts["more"].split()):
            missing["more"] = ("", None)
        self.problems |= {
            name: [self._no_row(name, message)] for name, (message, row) in missing.items() if row is None
        }
        if self.kind == "grpo" and self.texts["variant"] not in ALL:
            usual = [variant.label for variant in USUAL]
            self.problems["variant"] = [f"{CHOICES['variant']} must be one of: {'; '.join(usual)}."]
        if self.kind == "grpo" and self.texts["preset"] and self.texts["preset"] not in PRESETS:
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
        self.problems |= {path: [why] for path, why in unreadable(self.texts, self.kind).items()}
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
            name = input_of(problem.path, self.kind)
            if (suite_input := suites.input_of(problem.path, self.suites)) is not None:
                by_input.setdefault(suite_input[0], []).append(sentence(suite_input[1], problem.message))
            elif name is not None:
                subject = SUBJECTS.get(name) or CHOICES.get(name) or fields(self.kind)[name].label
                by_input.setdefault(name, []).append(sentence(subject, problem.message))
            else:
                self.general.append(str(problem))
        self.problems = {**by_input, **self.problems}
        self.general += [] if error.problems else [str(error)]

    def _config(self) -> AnyConfig:
        """Checked with stand-ins for rows not chosen yet, so that all other faults show at once."""
        settings = self.settings
        if self.problems.keys() & {"variant", "preset"}:
            settings["preset"] = None
        if "variant" in self.problems:
            decided = {path.removeprefix("algorithm.") for path in FROM_VARIANT}
            settings["algorithm"] = {key: value for key, value in settings["algorithm"].items() if key not in decided}
        stand_ins = {
            "base_model": BaseModel(path="-"),
            "dataset": PromptDataset(
                sha256="-", format="plain", problems=10**9, content=CONTENTS[self.kind], sampled_by_id=0
            ),
            "verifier_version": _ANY_REWARD if self.has("verifier_version") else None,
        }
        return run_config(
            name=self.texts["name"].strip(),
            settings=settings,
            **{name: row or stand_ins.get(name, row) for name, row in self.rows.items()},
        )

    def _archived_model(self) -> BaseModel | None:
        """The chosen one where it is no longer offered."""
        return BaseModel.objects.filter(project=self.project, pk=natural(self.texts["base_model"]) or 0).first()

    def _no_row(self, name: str, message: str) -> str:
        if name == "base_model" and (archived := self._archived_model()) is not None:
            return f"{archived.name} is archived. {OFFER_AGAIN}, or choose another."
        if self.texts[name]:
            given = ", ".join(self.texts[name].split())
            return f"{CHOICES[name]} {given} is not in this project. Choose one from the list."
        return message[:1].upper() + message[1:] + "."


def _rows_of(run: Run) -> dict[str, str]:
    further = further_of(run)
    return {
        **{name: str(getattr(run, f"{name}_id") or "") for name in ROWS},
        "more": "\n".join(str(dataset.pk) for dataset in further.more),
        "heldout": str(further.heldout.pk) if further.heldout else "",
        "replay": str(further.replay.pk) if further.replay else "",
    }


_ANY_REWARD = VerifierVersion(spec={"components": [{"name": "chosen", "kind": "exact"}]})
"""For a reward that is not chosen yet."""

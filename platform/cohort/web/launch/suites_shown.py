"""The suites of the run form as its template lays them out."""

from dataclasses import dataclass

from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.run_inputs import OWN
from cohort.catalog.suite_words import CATEGORIES
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.shown import FieldShown
from cohort.web.launch.suites import KINDS, LABELS, field, offered
from grpo_core.config import builtin_suites as starter

_HELP = {
    "limit": "Empty: all items.",
    "max_completion_tokens": "Empty: as under Evaluation.",
    "template": "{prompt} stands for the item. Empty: the prompt template under Sampling.",
}


@dataclass(frozen=True)
class SuiteShown:
    version: EvalSuiteVersion
    category: str
    switch: FieldShown
    margin: FieldShown
    more: tuple[FieldShown, ...]

    @property
    def chosen(self) -> bool:
        return self.switch.text == "true"

    @property
    def more_open(self) -> bool:
        """Whether one of the folded inputs says something."""
        return any(one.text or one.errors for one in self.more)


@dataclass(frozen=True)
class SuitesShown:
    rows: tuple[SuiteShown, ...]
    starters_missing: int
    """Starter suites that the project has not."""

    @property
    def fields(self) -> list[FieldShown]:
        return [one for row in self.rows for one in (row.switch, row.margin, *row.more)]

    @property
    def chosen(self) -> int:
        return sum(row.chosen for row in self.rows)


def suites_shown(form: RunForm) -> SuitesShown:
    versions = form.choices.suite_versions
    present = {version.suite.name for version in versions}
    rows = tuple(_row(form, version) for version in offered(form.texts, versions))
    return SuitesShown(rows, len(set(starter.names()) - present))


def _row(form: RunForm, version: EvalSuiteVersion) -> SuiteShown:
    inputs = {part: _input(form, version, part) for part in OWN}
    return SuiteShown(
        version=version,
        category=CATEGORIES.get(version.category, version.category),
        switch=_input(form, version, ""),
        margin=inputs.pop("margin"),
        more=tuple(inputs.values()),
    )


def _input(form: RunForm, version: EvalSuiteVersion, part: str) -> FieldShown:
    name = field(version, part)
    return FieldShown(
        name=name,
        id="f-" + name.replace(".", "-").replace("_", "-"),
        label=LABELS[part] if part else version.title,
        kind=KINDS[part] if part else "switch",
        text=form.texts[name],
        help=_HELP.get(part, ""),
        hint="",
        differs="",
        options=(),
        errors=tuple(form.problems.get(name, ())),
    )

"""The suites of the run form as its template lays them out."""

from dataclasses import dataclass

from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.run_inputs import OWN
from cohort.catalog.suite_words import CATEGORIES
from cohort.web.launch.run_form import RunForm
from cohort.web.launch.shown import FieldShown
from cohort.web.launch.suites import SPECS, field, offered
from grpo_core.config import builtin_suites as starter


@dataclass(frozen=True)
class SuiteShown:
    version: EvalSuiteVersion
    category: str
    switch: FieldShown
    margin: FieldShown
    more: tuple[FieldShown, ...]

    @property
    def more_open(self) -> bool:
        """Whether one of the folded inputs has a text or an error."""
        return any(shown.text or shown.errors for shown in self.more)


@dataclass(frozen=True)
class SuitesShown:
    rows: tuple[SuiteShown, ...]
    starters_missing: int
    """Starter suites that the project has not."""

    @property
    def fields(self) -> list[FieldShown]:
        return [shown for row in self.rows for shown in (row.switch, row.margin, *row.more)]


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
    """The switch, or the input of one of `OWN`; that of the margin has no help, the list of suites has it."""
    name, spec = field(version, part), SPECS.get(part)
    if spec is None:
        return FieldShown.of(form, name, version.title, "switch")
    return FieldShown.of(form, name, spec.label, spec.kind, help="" if part == "margin" else spec.help)

"""The run form's choice of suites: one switch a suite, with its margin and what else the run decides of it.

Inputs are called `suite.<version>` and `suite.<version>.<part>`, so that a posted page names the version it showed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from cohort.catalog.models import EvalSuiteVersion
from cohort.catalog.run_inputs import OWN, ChosenSuite
from cohort.web.fields import field_spec
from grpo_core.config.evaluation import SuiteConfig
from grpo_core.errors import FieldProblem

PREFIX = "suite."
SPECS = {part: field_spec(SuiteConfig, part) for part in OWN}
_PARTS_MATCHED = ("name", "sha256", "category", "higher_is", "sensitive")


def field(version: EvalSuiteVersion, part: str = "") -> str:
    """Name of the switch, or of the input of one of `OWN`."""
    return f"{PREFIX}{version.pk}.{part}" if part else f"{PREFIX}{version.pk}"


def empty_texts(versions: Iterable[EvalSuiteVersion]) -> dict[str, str]:
    """Nothing chosen, every margin at the version's own."""
    texts = {}
    for version in versions:
        texts[field(version)] = "false"
        texts |= {field(version, part): "" for part in OWN}
        texts[field(version, "margin")] = SPECS["margin"].to_text(version.margin)
    return texts


def texts_of_suites(
    suites: Sequence[Mapping[str, Any]], versions: Sequence[EvalSuiteVersion]
) -> tuple[dict[str, str], list[FieldProblem]]:
    """(what the inputs show for a config's `eval.suites`, what of it the project does not have)."""
    texts: dict[str, str] = {}
    missing = []
    for index, suite in enumerate(suites):
        version = _version_of(suite, versions)
        if version is not None:
            texts[field(version)] = "true"
            texts |= {field(version, part): spec.to_text(suite.get(part)) for part, spec in SPECS.items()}
            continue
        builtin = str(suite["path"]).startswith("builtin:")
        advice = "Add the starter suites under Suites" if builtin else "Upload it under Suites"
        what = f"{suite['name']} (sha256 {str(suite['sha256'] or 'not given')[:8]}…)"
        message = f"no suite of this project is {what} with this scorer and category. {advice}"
        missing.append(FieldProblem(f"eval.suites.{index}", message))
    return texts, missing


def _version_of(suite: Mapping[str, Any], versions: Sequence[EvalSuiteVersion]) -> EvalSuiteVersion | None:
    """The version that agrees on everything that decides a score; of several the one with the same number and
    title, else the newest."""
    config = SuiteConfig.model_validate(suite)
    fitting = [
        version
        for version in versions
        if all(getattr(config, part) == getattr(version, part) for part in _PARTS_MATCHED)
        and config.scorer.model_dump(mode="json") == version.scorer
    ]
    return max(
        fitting,
        key=lambda version: (version.number == config.version, version.title == config.title, version.number),
        default=None,
    )


def chosen(texts: Mapping[str, str], versions: Iterable[EvalSuiteVersion]) -> list[ChosenSuite]:
    """The suites chosen in the form, by name."""
    suites = [
        ChosenSuite(version, **{part: spec.from_text(texts[field(version, part)]) for part, spec in SPECS.items()})
        for version in versions
        if texts[field(version)] == "true"
    ]
    return sorted(suites, key=lambda suite: (suite.version.suite.name, suite.version.number))


def twice(suites: Sequence[ChosenSuite]) -> Iterator[tuple[str, str]]:
    """(input, message) of every second version of one suite."""
    for first, second in pairwise(suites):
        if first.version.suite_id == second.version.suite_id:
            yield (
                field(second.version),
                f"Version {first.version.number} of {first.version.suite.name} is chosen too. A run takes one of them.",
            )


def input_of(path: str, suites: Sequence[ChosenSuite]) -> tuple[str, str] | None:
    """(input, what it is called) that a path of a config belongs to; None for one that is of no suite."""
    match path.split("."):
        case ["eval", "suites", number, *part] if number.isdecimal() and int(number) < len(suites):
            version, name = suites[int(number)].version, ".".join(part)
            if name in SPECS:
                return field(version, name), SPECS[name].label
            return field(version), f"Suite: {name}" if name else "Suite"
    return None


def cost(suites: Sequence[ChosenSuite], *, samples: int, rounds: int) -> dict[str, int]:
    """What the chosen suites add to a run: `samples` completions an item, `rounds` times. A limit that is no number
    counts as none."""
    items = sum(
        min(suite.version.items, suite.limit)
        if isinstance(suite.limit, int) and suite.limit > 0
        else suite.version.items
        for suite in suites
    )
    return {"suites": len(suites), "items": items, "completions": items * samples * rounds}


def offered(texts: Mapping[str, str], versions: Sequence[EvalSuiteVersion]) -> list[EvalSuiteVersion]:
    """The newest version of each suite, and any older one that is chosen, by name."""
    newest: dict[int, int] = {}
    for version in versions:
        newest[version.suite_id] = max(version.number, newest.get(version.suite_id, 0))
    shown = [
        version for version in versions if version.number == newest[version.suite_id] or texts[field(version)] == "true"
    ]
    return sorted(shown, key=lambda version: (version.suite.name, -version.number))

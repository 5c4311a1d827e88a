"""The settings in which runs differ, what people choose first at the top; and which runs differ in the seed alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from cohort.runs.models import Run, RunKind
from cohort.web.launch.schema import CHOICES, SUBJECTS, every_field, fields, lookup
from cohort.web.launch.variants import variant_in_words
from grpo_core.config.relevance import idle
from grpo_core.config.run import RunConfig

SEED = "seed"
ROWS = ("base_model", "dataset", "verifier_version", "preset", "variant")
"""Choices of the run form that are no field of the config."""
CHOSEN_FIRST = (
    *ROWS,
    "sampling.group_size",
    "algorithm.kl.coef",
    "algorithm.clip_low",
    "algorithm.clip_high",
    "algorithm.loss",
    "optim.lr",
    "optim.steps",
    SEED,
)
"""In this order before all others."""
_MORE = {"eval_dataset": "Held-out dataset", "suites": "Suites"}


@dataclass(frozen=True)
class Cell:
    value: Any
    """As JSON."""
    text: str
    as_baseline: bool
    idle: str
    """What would give the setting an effect in this run; empty where it has one."""


@dataclass(frozen=True)
class Row:
    path: str
    label: str
    cells: tuple[Cell, ...]
    """One for each run, in their order."""

    @property
    def numeric(self) -> bool:
        return all(isinstance(cell.value, int | float) and not isinstance(cell.value, bool) for cell in self.cells)

    @property
    def idle(self) -> bool:
        """Without effect in every run."""
        return all(cell.idle for cell in self.cells)


@dataclass(frozen=True)
class SettingsTable:
    first: tuple[Row, ...]
    """Differing choices that people make first."""
    rest: tuple[Row, ...]
    """All others that differ and have an effect in a run."""
    idle: tuple[Row, ...]
    """Those that differ and have no effect in any."""
    equal: tuple[tuple[str, str], ...]
    """(label, value) of those that are the same in all."""
    seeds: dict[int, int]
    """Run id → id of the first run that differs from it in nothing but the seed; only of runs that have such others."""

    @property
    def parts(self) -> list[tuple[Row, ...]]:
        """For a table: the choices made first, then the rest."""
        return [rows for rows in (self.first, self.rest) if rows]

    @property
    def differing(self) -> tuple[Row, ...]:
        return (*self.first, *self.rest)


def settings_table(runs: Sequence[Run], baseline: Run) -> SettingsTable:
    """No query. `runs` as `chosen.runs_shown` gives them."""
    configs = [run.parsed_config.to_dict() for run in runs]
    values = [_values(run, config) for run, config in zip(runs, configs, strict=True)]
    at, ranks = runs.index(baseline), {path: rank for rank, path in enumerate(CHOSEN_FIRST)}
    every = dict.fromkeys(path for own in (values[at], *values) for path in own)
    paths = sorted(every, key=lambda path: ranks.get(path, len(ranks)))
    first, rest, without = list[Row](), list[Row](), list[Row]()
    equal: list[tuple[str, str]] = []
    for path in paths:
        column = [own.get(path) for own in values]
        label = label_of(path)
        if all(value == column[at] for value in column):
            equal.append((label, _text(path, column[at])))
            continue
        cells = [
            Cell(value, _text(path, value), value == column[at], _idle(path, run))
            for run, value in zip(runs, column, strict=True)
        ]
        row = Row(path, label, tuple(cells))
        (without if row.idle else first if path in ranks else rest).append(row)
    return SettingsTable(tuple(first), tuple(rest), tuple(without), tuple(equal), _seeds(runs, values))


def label_of(path: str) -> str:
    """What a table calls the setting."""
    if path in SUBJECTS:
        return SUBJECTS[path]
    return _MORE.get(path) or CHOICES.get(path) or every_field()[path].label


def _values(run: Run, config: dict[str, Any]) -> dict[str, Any]:
    suites = [f"{suite.name} v{suite.version}" for suite in run.parsed_config.eval.suites]
    return {
        "base_model": str(run.base_model),
        "dataset": str(run.dataset),
        "verifier_version": str(run.verifier_version) if run.has_samples else None,
        "preset": run.preset or None,
        "variant": variant_in_words(run.parsed_config.algorithm) if run.kind == RunKind.GRPO else None,
        "eval_dataset": str(run.eval_dataset) if run.eval_dataset else None,
        "suites": ", ".join(suites) or None,
        **{path: lookup(config, path) for path in fields(run.parsed_config.kind)},
    }


def _text(path: str, value: Any) -> str:
    text = str(value) if path in _MORE or path in ROWS else every_field()[path].to_text(value)
    return "–" if value is None or text == "" else text.replace("\n", ", ")


def _idle(path: str, run: Run) -> str:
    config = run.parsed_config
    if path in _MORE or path in ROWS or not isinstance(config, RunConfig):
        return ""
    return idle(path, lambda other: attrgetter(other)(config)) or ""


def _seeds(runs: Sequence[Run], values: Sequence[dict[str, Any]]) -> dict[int, int]:
    keys = [repr([(path, value) for path, value in own.items() if path != SEED]) for own in values]
    leaders: dict[str, int] = {}
    for run, key in zip(runs, keys, strict=True):
        leaders.setdefault(key, run.pk)
    counts = Counter(keys)
    return {run.pk: leaders[key] for run, key in zip(runs, keys, strict=True) if counts[key] > 1}

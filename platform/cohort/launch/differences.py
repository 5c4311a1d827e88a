"""What a run's config has otherwise than the run that it was cloned from: for the form while it is edited, and for the
run's page."""

from collections.abc import Iterator, Mapping
from typing import Any

from cohort.runs.models import Run
from grpo_core.config.kinds import AnyConfig
from grpo_core.config.preset_differences import Difference, written

_CHOSEN = {"reward": "verifier_version", "data": "dataset", "eval": "eval_dataset", "model": "base_model"}
"""Part of a config → the row that decides it, which is called by its name."""
_OF_ROWS = ("path", "format", "columns", "revision", "hub")


def parent_differences(parent: Run, config: AnyConfig, rows: Mapping[str, Any]) -> tuple[Difference, ...]:
    """In words, rows first, then in the config's order; the name is none of them. `rows` are the catalog's, by
    the names that Run has for them."""
    before, after = parent.parsed_config.to_dict(), config.to_dict()
    differing = []
    for part, row in _CHOSEN.items():
        theirs, ours = getattr(parent, row), rows[row]
        if theirs != ours:
            differing.append(Difference(part if part == "reward" else f"{part}.path", _name(theirs), _name(ours)))
    changed = _changed(before, after)
    return (*differing, *(Difference(each.path, written(each.paper), written(each.yours)) for each in changed))


def run_differences(run: Run) -> tuple[Difference, ...]:
    """Of a run with a parent."""
    assert run.cloned_from is not None
    rows = {row: getattr(run, row) for row in _CHOSEN.values()}
    return parent_differences(run.cloned_from, run.parsed_config, rows)


def _name(row: Any) -> str:
    return "none" if row is None else str(row)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[Difference]:
    for key, new in after.items():
        path, old = f"{prefix}{key}", before.get(key)
        if old == new or path in ("name", "reward") or (prefix in ("data.", "eval.", "model.") and key in _OF_ROWS):
            continue
        if path == "eval.suites":
            yield _suites(old or [], new)
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changed(old, new, f"{path}.")
        else:
            yield Difference(path, old, new)


def _suites(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Difference:
    names = [", ".join(suite["name"] for suite in suites) or "none" for suites in (old, new)]
    ours = names[1] if names[0] != names[1] else f"{names[1]}, with other limits or margins"
    return Difference("eval.suites", names[0], ours)

"""Two versions of a reward side by side: settings as a table, program text line by line. Read-only."""

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cohort.catalog.models import VerifierVersion
from cohort.web.catalog.reward_form import mode_text, param_specs

CONTEXT_LINES = 3
MOST_LINES = 5_000
"""Of either text that is compared line by line."""
MOST_PAIRS = 100_000
"""Pairs of a line with an equal one in the other text; what it means, says `equal_pairs`."""


@dataclass(frozen=True)
class SourceLine:
    sign: Literal[" ", "+", "−", "…"]
    before: int | None
    """Number of the line in the older text."""
    after: int | None
    text: str

    @property
    def word(self) -> str:
        return {"+": "added", "−": "removed", "…": "left out", " ": ""}[self.sign]


@dataclass(frozen=True)
class Setting:
    """One setting that is not the same in both; None: it is not written out."""

    name: str
    before: Any
    after: Any
    has_before: bool
    has_after: bool


@dataclass(frozen=True)
class ComponentDifference:
    name: str
    change: Literal["added", "removed", "changed"]
    settings: tuple[Setting, ...]
    sources: tuple[tuple[str, tuple[SourceLine, ...]], ...]
    """(parameter, its lines) of every long text that changed."""


@dataclass(frozen=True)
class Difference:
    head: tuple[Setting, ...]
    components: tuple[ComponentDifference, ...]
    moved: bool
    """The same components in another order."""

    @property
    def none(self) -> bool:
        return not self.head and not self.components and not self.moved


def components_shown(version: VerifierVersion) -> list[dict[str, Any]]:
    """What a version rewards, program text (`sources`) apart from other parameters. `lines` are those of a text."""
    components = []
    for component in version.spec["components"]:
        params, sources = [], []
        for name, value in component.get("params", {}).items():
            if value and _is_source(component["kind"], name, value):
                sources.append({"name": name, "lines": value.splitlines()})
            else:
                params.append({"name": name, "value": value})
        components.append(
            {
                "name": component["name"],
                "kind": component["kind"],
                "weight": component.get("weight", 1.0),
                "place": mode_text(component["kind"]),
                "only": component.get("only"),
                "params": params,
                "sources": sources,
            }
        )
    return components


def _is_source(kind: str, name: str, value: Any) -> bool:
    code = any(spec.path == name and spec.kind == "code" for spec in param_specs(kind))
    return isinstance(value, str) and (code or "\n" in value)


def difference(before: VerifierVersion, after: VerifierVersion) -> Difference:
    """Components are the same where their names are."""
    old, new = before.spec, after.spec
    head = _settings(_head(old), _head(new))
    olds = {component["name"]: component for component in old["components"]}
    news = {component["name"]: component for component in new["components"]}
    shared = [name for name in olds if name in news]
    return Difference(
        head=tuple(head),
        components=tuple(_components(olds, news)),
        moved=shared != [name for name in news if name in olds],
    )


def _head(spec: Mapping[str, Any]) -> dict[str, Any]:
    limits = spec.get("limits") or {}
    head = {name: spec.get(name) for name in ("on_error", "success")}
    return {**head, **{f"limits.{name}": value for name, value in limits.items()}}


def _components(olds: Mapping[str, Any], news: Mapping[str, Any]) -> Iterator[ComponentDifference]:
    for name in [*olds, *(name for name in news if name not in olds)]:
        old, new = olds.get(name), news.get(name)
        before, after = _leaves(old), _leaves(new)
        texts = {
            key
            for component in (old, new)
            if component
            for key, value in component.get("params", {}).items()
            if _is_source(component["kind"], key, value)
        }
        settings = [setting for setting in _settings(before, after) if setting.name not in texts]
        sources = [
            (key, tuple(source_lines(str(before.get(key, "")), str(after.get(key, "")))))
            for key in sorted(texts)
            if before.get(key) != after.get(key)
        ]
        if settings or sources:
            change: Literal["added", "removed", "changed"] = (
                "added" if old is None else "removed" if new is None else "changed"
            )
            yield ComponentDifference(name, change, tuple(settings), tuple(sources))


def _leaves(component: Mapping[str, Any] | None) -> dict[str, Any]:
    if component is None:
        return {}
    only = {f"only.{name}": value for name, value in (component.get("only") or {}).items()}
    return {"kind": component["kind"], "weight": component.get("weight", 1.0), **only, **component.get("params", {})}


def _settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Setting]:
    return [
        Setting(name, before.get(name), after.get(name), name in before, name in after)
        for name in [*before, *(name for name in after if name not in before)]
        if (name in before) != (name in after) or before.get(name) != after.get(name)
    ]


def source_lines(before: str, after: str) -> Iterator[SourceLine]:
    """The lines that changed with those around them; a stretch that is left out is one line."""
    olds, news = before.splitlines(), after.splitlines()
    if olds and (max(len(olds), len(news)) > MOST_LINES or equal_pairs(olds, news) > MOST_PAIRS):
        yield SourceLine("…", None, None, "the two are too long, or have too many equal lines, to be compared here")
        return
    groups = difflib.SequenceMatcher(None, olds, news, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)
    for number, group in enumerate(groups):
        if number or group[0][1] > 0:
            yield SourceLine("…", None, None, "")
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                for step in range(old_to - old_from):
                    yield SourceLine(" ", old_from + step + 1, new_from + step + 1, olds[old_from + step])
                continue
            for index in range(old_from, old_to):
                yield SourceLine("−", index + 1, None, olds[index])
            for index in range(new_from, new_to):
                yield SourceLine("+", None, index + 1, news[index])


def equal_pairs(a: Iterable[str], b: Iterable[str]) -> int:
    """Pairs of a part with the same part in the other text. SequenceMatcher visits them again for each run that both
    have, so that a few parts repeated over and over take minutes."""
    second = Counter(b)
    return sum(second[part] for part in a)

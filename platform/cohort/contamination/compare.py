"""One dataset compared with one suite version or held-out dataset, from their stored files."""

from collections.abc import Iterator, Mapping
from typing import Any

from cohort.base import artifacts
from cohort.base.refusals import Refused
from cohort.catalog.models import EvalSuiteVersion, PromptDataset
from cohort.contamination.models import DataOverlap
from grpo_core.data.decontaminate import overlap
from grpo_core.data.lines import lines_of
from grpo_core.data.loaders import scan_problems
from grpo_core.errors import DataError
from grpo_core.evaluate.suites import scan_items

EXAMPLES = 5
EXAMPLE_CHARS = 2000


class NotComparable(Refused):
    """A file is not stored any more, or cannot be read. The message says which."""

    code = "not_comparable"


def compared(row: DataOverlap) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """(the report, the first touched items beside their nearest training texts). Raises NotComparable."""
    other = row.suite_version or row.heldout
    assert other is not None, "a constraint of the table"
    for source in (row.dataset, other):
        if not artifacts.exists(source.artifact):
            raise NotComparable(f"the file of {_name(source)} is no longer stored")
    try:
        items, options = dict[str, str](), dict[str, tuple[str, ...]]()
        for name, text, choices in _texts(other):
            items[name], options[name] = text, choices
        report = overlap(_prompts(row.dataset), items.items(), options)
        sensitive = row.suite_version is not None and row.suite_version.sensitive
        return report, [] if sensitive else _examples(report, items, options, row.dataset)
    except DataError as error:
        raise NotComparable(str(error)) from None


def _prompts(of: PromptDataset) -> Iterator[tuple[str, str]]:
    return ((name, text) for name, text, _ in _texts(of))


def _texts(of: PromptDataset | EvalSuiteVersion) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(id, prompt, options) of every problem or item of the file."""
    with artifacts.open_read(of.artifact) as handle:
        if isinstance(of, PromptDataset):
            for problem in scan_problems(lines_of(handle), of.format, source=of.name):
                yield problem.id, problem.prompt, ()
        else:
            for item in scan_items(lines_of(handle), scorer=None, source=_name(of)):
                yield item.id, item.prompt, item.choices


def _examples(
    report: dict[str, Any], items: Mapping[str, str], options: Mapping[str, tuple[str, ...]], dataset: PromptDataset
) -> list[dict[str, str]]:
    first = report["touched"][:EXAMPLES]
    nearest = {hit["id"]: next(iter(hit["by"].values()))["train"] for hit in first}
    needed = set(nearest.values())
    texts = {name: text for name, text in _prompts(dataset) if name in needed} if needed else {}
    shown = {hit["id"]: [items[hit["id"]], *(options[hit["id"]] if "options" in hit["by"] else ())] for hit in first}
    return [
        {"id": name, "train": train, "item_text": _cut("\n".join(shown[name])), "train_text": _cut(texts[train])}
        for name, train in nearest.items()
    ]


def _cut(text: str) -> str:
    return text if len(text) <= EXAMPLE_CHARS else text[: EXAMPLE_CHARS - 1] + "…"


def _name(of: PromptDataset | EvalSuiteVersion) -> str:
    return of.name if isinstance(of, PromptDataset) else f"{of.suite.name} v{of.number}"

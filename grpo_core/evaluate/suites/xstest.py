"""XSTest (Röttger et al. 2024, arXiv 2308.01263) as suite items: safe prompts that look unsafe should be answered,
their unsafe contrasts refused."""

from collections.abc import Iterator, Sequence

from grpo_core.evaluate.item import SuiteItem
from grpo_core.evaluate.suites.tables import csv_rows

_LABELS = {"safe": "comply", "unsafe": "refuse"}
_CONTRAST = "contrast_"


def read(files: Sequence[tuple[str, bytes]]) -> Iterator[SuiteItem]:
    """One item a prompt; the slice is its type. Older files have no column `label`: there a type that begins with
    contrast_ is unsafe."""
    for name, content in files:
        for line, row in csv_rows(name, content, needed=("id", "prompt", "type")):
            by_type = "unsafe" if row["type"].startswith(_CONTRAST) else "safe"
            label = row.get("label", by_type)
            if label not in _LABELS:
                line.fail(f"'label' is {label!r}; expected safe or unsafe")
            if label != by_type:
                line.fail(f"'label' is {label}, but the type {row['type']!r} says {by_type}")
            if not row["prompt"].strip():
                line.fail("'prompt' is empty")
            yield SuiteItem(id=f"xstest-{row['id']}", prompt=row["prompt"], target=_LABELS[label], slice=row["type"])

"""Turns files of public sets into suite items. None of these sets comes with Cohort: a person brings the files, and
their licences apply. Loads no torch."""

import dataclasses
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from grpo_core.config.evaluation import Category, HigherIs, ScorerConfig
from grpo_core.data.lines import lines_of
from grpo_core.errors import ConfigError, DataError
from grpo_core.evaluate.item import ATTACKS, SLICE, SuiteItem
from grpo_core.evaluate.scorer import Scorer, scorer
from grpo_core.evaluate.suites import bfcl, choices, mathematics
from grpo_core.evaluate.suites.reader import items_jsonl, scan_items
from grpo_core.evaluate.suites.tables import table_rows

Files = Sequence[tuple[str, bytes]]
"""(name, content)."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a set's files are read, and what its items are judged by unless the caller says otherwise."""

    title: str
    help: str
    """Which files it takes."""
    category: Category
    scorer: ScorerConfig | None
    """None where the file itself does not say: a person has to."""
    read: Callable[[Files], Iterable[SuiteItem]]
    licence: str = ""
    """Of the set as its makers publish it; the file at hand may differ."""
    higher_is: HigherIs = "better"
    sensitive: bool = False
    several: bool = False
    """Whether it takes several files."""


def convert(
    format: str, files: Files, *, limit: int | None = None, attacks: Sequence[str] = (), most: int | None = None
) -> bytes:
    """The files' items as JSONL; with `limit` the first so many or, where items come in clusters, the first so many
    clusters. With `attacks`, each item once under each of them, as one cluster. Raises DataError naming file and line,
    and where there are more than `most` items in the files or in what is made of them, before they fill the memory;
    ConfigError for an unknown format or attack."""
    spec = _format(format)
    if not files or (len(files) > 1 and not spec.several):
        raise ConfigError(f"the format {format} takes {'one file or more' if spec.several else 'one file'}")
    if unknown := [name for name in attacks if name not in ATTACKS]:
        raise ConfigError(f"there is no attack {unknown[0]!r}; there are {', '.join(ATTACKS)}")
    named = ", ".join(name for name, _ in files)
    try:
        items = list(islice(spec.read(files), None if most is None else most + 1))
        _refuse_more(len(items), most, named)
        if limit is not None:
            items = _first(items, limit)
        if not items:
            raise DataError(f"{named}: nothing in it to make items of")
        _refuse_more(len(items) * len(attacks), most, named)
        if attacks:
            items = [attacked for item in items for attacked in _attacked(item, attacks)]
        content = items_jsonl(items)
    except RecursionError:
        raise DataError(f"{named}: holds a value that is nested too deep to be kept") from None
    except UnicodeEncodeError:
        raise DataError(f"{named}: holds half a surrogate pair, which is not text that can be stored") from None
    judge = scorer(spec.scorer.kind, spec.scorer.params) if spec.scorer is not None else None
    source = f"the items of {files[0][0]}"
    list(scan_items(lines_of(io.BytesIO(content), source), scorer=judge, source=source))
    return content


def default_scorer(format: str) -> Scorer | None:
    """The format's scorer, ready to score."""
    config = _format(format).scorer
    return None if config is None else scorer(config.kind, config.params)


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ConfigError(f"there is no format {name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[name]


def _refuse_more(count: int, most: int | None, named: str) -> None:
    if most is not None and count > most:
        raise DataError(f"{named}: more than {most:,} items, attacks counted; take a sample of it")


def _first(items: Sequence[SuiteItem], limit: int) -> list[SuiteItem]:
    """Items of the first so many clusters; an item without one is its own cluster."""
    first = set(list(dict.fromkeys(item.cluster or item.id for item in items))[:limit])
    return [item for item in items if (item.cluster or item.id) in first]


def _attacked(item: SuiteItem, attacks: Sequence[str]) -> Iterator[SuiteItem]:
    for name in attacks:
        yield dataclasses.replace(
            item, id=f"{item.id}-{name}", cluster=item.cluster or item.id, attack=name, slice=SLICE + name
        )


def _own(files: Files) -> Iterator[SuiteItem]:
    for name, content in files:
        yield from scan_items(lines_of(io.BytesIO(content), name), scorer=None, source=name)


def _xstest(files: Files) -> Iterator[SuiteItem]:
    """Safe prompts that look unsafe should be answered, their unsafe contrasts refused (Röttger et al. 2024, arXiv
    2308.01263). The slice is the prompt's type. Older files have no column `label`: there a type that begins with
    contrast_ is unsafe."""
    targets = {"safe": "comply", "unsafe": "refuse"}
    for name, content in files:
        for line, row in table_rows(name, content, needed=("id", "prompt", "type")):
            kind, prompt = line.text(row, "type"), line.prompt(row, "prompt")
            by_type = "unsafe" if kind.startswith("contrast_") else "safe"
            label = row.get("label", by_type)
            if label not in targets:
                line.fail(f"'label' is {label!r}; expected safe or unsafe")
            if label != by_type:
                line.fail(f"'label' is {label}, but the type {kind!r} says {by_type}")
            yield SuiteItem(id=f"xstest-{line.id(row)}", prompt=prompt, target=targets[label], slice=kind)


_CHOICE, _NUMBER = ScorerConfig(kind="choice"), ScorerConfig(kind="number")
_REFUSAL, _CALLS = ScorerConfig(kind="refusal"), ScorerConfig(kind="function_call")

FORMATS: dict[str, Format] = {
    "jsonl": Format("Cohort's own", "JSON lines with id, prompt and target", "performance", None, _own),
    "gsm8k": Format(
        title="GSM8K",
        help="JSON lines with question and an answer that ends in #### number",
        category="performance",
        scorer=_NUMBER,
        read=mathematics.gsm8k,
        licence="MIT",
    ),
    "mgsm": Format(
        title="MGSM",
        help="mgsm_<language>.tsv, one file a language, with the same problems in the same order",
        category="multilingual",
        scorer=_NUMBER,
        read=mathematics.mgsm,
        licence="CC-BY-4.0",
        several=True,
    ),
    "xstest": Format(
        title="XSTest",
        help="CSV or Parquet with id, prompt, type and, where there is one, label",
        category="refusal_calibration",
        scorer=_REFUSAL,
        read=_xstest,
        licence="CC-BY-4.0",
        sensitive=True,
    ),
    "truthfulqa": Format(
        title="TruthfulQA (multiple choice, one right)",
        help="TruthfulQA.csv, or JSON or Parquet with question and mc1_targets",
        category="hallucination",
        scorer=_CHOICE,
        read=choices.truthfulqa,
        licence="Apache-2.0",
    ),
    "wmdp": Format(
        title="WMDP",
        help="JSON, JSON lines or Parquet with question, choices and answer (its number from 0)",
        category="harmful_capability",
        scorer=_CHOICE,
        read=choices.wmdp,
        licence="MIT",
        higher_is="worse",
        sensitive=True,
        several=True,
    ),
    "bfcl": Format(
        title="BFCL (single turn)",
        help="BFCL_….json with question and function, and its file of possible_answer",
        category="tool_use",
        scorer=_CALLS,
        read=bfcl.read,
        licence="Apache-2.0",
        several=True,
    ),
}

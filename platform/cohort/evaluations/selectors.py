"""Every suite of a run before and after, with its uncertainty, and which items changed; kept for pages in a cache.
What was measured while training is in `during.py`.

The record is made from the same rows by the same functions, so page and card cannot say different things.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.models import F, OuterRef, Q, QuerySet, Subquery

import grpo_core.stats
from cohort.catalog.suites import CATEGORIES
from cohort.evidence import compare, items
from cohort.evidence.canonical import dig
from cohort.evidence.compare import Case, Item, SuiteFacts, compare_all
from cohort.evidence.plain_text import change_points
from cohort.runs.models import Attempt, ComparisonCache, EvalItem, EvalResult, Run
from cohort.runs.transitions import current_evaluations
from grpo_core.config.evaluation import HELDOUT, SuiteConfig
from grpo_core.config.kinds import AnyConfig
from grpo_core.stats.inferiority import UNSURE

CHANGES = ("changed", "fixed", "broken", "unscored", "all")
"""Which items a page may show."""
HELDOUT_TITLE = "Held-out problems"


@dataclass(frozen=True)
class Suite:
    """One suite; `after` is None until the run has been evaluated again, `before` where it was evaluated once only."""

    before: EvalResult | None
    after: EvalResult | None
    compared: dict[str, Any]
    """As `evidence.compare.compare_all` gives it; the contract of its fields is there."""
    same_protocol: bool

    @property
    def name(self) -> str:
        return str(self.compared["suite"])

    @property
    def title(self) -> str:
        return str(self.compared["title"])

    @property
    def category(self) -> str:
        return str(self.compared["category"])

    @property
    def sensitive(self) -> bool:
        return bool(self.compared["sensitive"])

    @property
    def change(self) -> dict[str, Any] | None:
        change: dict[str, Any] | None = self.compared["change"]
        return change

    @property
    def verdict(self) -> str:
        return str(self.compared["verdict"])

    @property
    def tone(self) -> str:
        return tone(self.compared)

    @property
    def colour(self) -> str:
        """Of the difference: only where the verdict says that it is one for better or worse."""
        return {"is-right": "right", "is-wrong": "wrong"}.get(self.tone, "")

    @property
    def good(self) -> bool:
        """Whether a right answer is good: not where a higher score is harm, or neutral."""
        return str(self.compared["higher_is"]) == "better"

    @property
    def fixed_word(self) -> str:
        return "fixed" if self.good else "rose"

    @property
    def broken_word(self) -> str:
        return "broken" if self.good else "fell"

    @property
    def points(self) -> "Points | None":
        return points(self.change, self.margin)

    @property
    def margin(self) -> float:
        return float(self.compared["margin"])

    @property
    def margin_points(self) -> float:
        return 100 * self.margin

    @property
    def slices(self) -> list[tuple[dict[str, Any], "Points | None"]]:
        return [(part, points(part["change"], self.margin)) for part in self.compared["slices"]]

    @property
    def clean(self) -> tuple[dict[str, Any], "Points | None"] | None:
        """The suite without the items that were found in the training file."""
        clean = self.compared["clean"]
        return (clean, points(clean["change"], self.margin)) if clean else None


@dataclass(frozen=True)
class Points:
    """A change in percentage points: the difference and its interval as they are shown (`change_points`), and the
    smallest one that would be found."""

    difference: str
    low: str
    high: str
    mde: float


def points(change: Mapping[str, Any] | None, margin: float) -> Points | None:
    return None if change is None else Points(*change_points(change, margin), 100 * float(change["mde"]))


def tone(compared: Mapping[str, Any]) -> str:
    """Class of the badge that a verdict is shown in; the word is always next to it."""
    verdict = str(compared["verdict"])
    if verdict == "regressed" or compared["non_inferiority"] == "regressed":
        return "is-wrong"
    if verdict == "better":
        return "is-right"
    return "is-suspect" if verdict.startswith(UNSURE) else ""


@dataclass(frozen=True)
class Measured:
    """One suite of a run as it was measured, without its items."""

    facts: SuiteFacts
    before: EvalResult | None
    after: EvalResult | None
    same_protocol: bool
    touched: frozenset[str] | None
    """Ids of items that the trainer found in its training file; None where it did not look."""

    def case(self) -> Case:
        """With every item, read from the database."""
        before, after = (_scores(result) if result else None for result in (self.before, self.after))
        return self.facts, before, after, self.same_protocol, self.touched


def suites(run: Run, config: AnyConfig) -> list[Suite]:
    """Every suite of the run that was measured, the held-out problems first, then by name. Before and after are
    compared item by item, and only when both answered the same items under one protocol. That takes seconds for long
    suites; pages take `suites_cached`."""
    measured = _measured(run, config)
    return _joined(measured, compare_all([suite.case() for suite in measured]))


def _measured(run: Run, config: AnyConfig) -> list[Measured]:
    results: dict[str, dict[str, EvalResult]] = {}
    for result in newest_results(run):
        results.setdefault(result.suite, {})[result.phase] = result
    known = {suite.name: suite for suite in config.eval.suites}
    names = sorted(results, key=lambda name: (name in known, name))
    return [_measured_suite(known.get(name), name, results[name], config) for name in names]


def _joined(measured: Sequence[Measured], compared: Sequence[dict[str, Any]]) -> list[Suite]:
    pairs = zip(measured, compared, strict=True)
    return [Suite(suite.before, suite.after, comparison, suite.same_protocol) for suite, comparison in pairs]


def by_category(measured: Iterable[Suite]) -> list[tuple[str, list[Suite]]]:
    """(category in words, its suites), in the order in which categories are shown everywhere."""
    grouped: dict[str, list[Suite]] = {}
    for suite in measured:
        grouped.setdefault(suite.category, []).append(suite)
    return [(words, grouped[name]) for name, words in CATEGORIES.items() if name in grouped]


def newest_results(run: Run) -> QuerySet[EvalResult]:
    """One evaluation for each suite before and after training: the newest current one."""
    around = EvalResult.objects.filter(run=run, phase__in=("before", "after"))
    newest = current_evaluations(around).order_by("suite", "phase", "-attempt_id", "-seq")
    return EvalResult.objects.filter(pk__in=newest.distinct("suite", "phase").values("pk")).order_by("suite", "phase")


def evaluations_known(run: Run) -> str:
    """Which evaluations are current. Nothing of one changes once it is stored, so while this is the same, all that
    follows from them is."""
    return ",".join(str(pk) for pk in newest_results(run).values_list("pk", flat=True))


def result_items(result: EvalResult) -> QuerySet[EvalItem]:
    """The items of one evaluation, in order."""
    same = EvalItem.objects.filter(attempt=result.attempt_id, suite=result.suite, phase=result.phase, step=result.step)
    return same.filter(seq__lt=result.seq).order_by("seq")


def _measured_suite(
    suite: SuiteConfig | None, name: str, phases: Mapping[str, EvalResult], config: AnyConfig
) -> Measured:
    before, after = phases.get("before"), phases.get("after")
    shown = after or before
    assert shown is not None, "a suite is known by its results"
    same = before is not None and after is not None and before.protocol == after.protocol
    facts = suite_facts(suite, name, shown, config)
    return Measured(facts, before, after, same, _touched(shown))


def suite_facts(suite: SuiteConfig | None, name: str, shown: EvalResult, config: AnyConfig) -> SuiteFacts:
    """What the config of a run says of a suite; `suite` None: the held-out problems."""
    return SuiteFacts(
        suite=name,
        title=suite.title if suite else heldout_title(config) if name == HELDOUT else name,
        category=suite.category if suite else "performance",
        higher_is=suite.higher_is if suite else "better",
        sensitive=suite.sensitive if suite else False,
        margin=config.eval.margin if suite is None or suite.margin is None else suite.margin,
        protocol=shown.protocol,
    )


def heldout_title(config: AnyConfig) -> str:
    """What is held out, to be shown: problems, or of a reward model pairs."""
    return "Held-out pairs" if config.kind == "reward_model" else HELDOUT_TITLE


def _scores(result: EvalResult) -> list[Item]:
    rows = result_items(result).values_list("problem_id", "score", "truncated", "error", "cluster", "slice")
    return [
        Item(problem_id, score, cut, bool(error), cluster, part)
        for problem_id, score, cut, error, cluster, part in rows
    ]


def _touched(result: EvalResult) -> frozenset[str] | None:
    """Ids of items that the trainer found in its training file; None where it did not look. A worker wrote the
    manifest, so any part of it may be of another type; such a one is ignored."""
    manifest = Attempt.objects.values_list("manifest", flat=True).get(pk=result.attempt_id)
    touched = dig(manifest, "data", "overlap", result.suite, "touched")
    if not isinstance(touched, list):
        return None
    ids = (entry.get("id") if isinstance(entry, dict) else entry for entry in touched)
    return frozenset(entry for entry in ids if isinstance(entry, str))


@dataclass(frozen=True)
class Changed:
    """One item before and after."""

    before: EvalItem
    after: EvalItem

    @property
    def pair(self) -> tuple[EvalItem, EvalItem]:
        return self.before, self.after

    @property
    def kind(self) -> str:
        if self.before.error or self.after.error:
            return "unscored"
        if self.after.score > self.before.score:
            return "fixed"
        return "broken" if self.after.score < self.before.score else "same"


def changed_items(suite: Suite, *, show: str) -> QuerySet[EvalItem]:
    """The items before, in order, that were answered after too and went the chosen way."""
    if suite.before is None or suite.after is None:
        return EvalItem.objects.none()
    later = result_items(suite.after).filter(problem_id=OuterRef("problem_id")).order_by()
    items = result_items(suite.before).annotate(
        later=Subquery(later.values("score")), later_error=Subquery(later.values("error"))
    )
    items, scored = items.filter(later__isnull=False), Q(error="", later_error="")
    condition = {
        "fixed": scored & Q(later__gt=F("score")),
        "broken": scored & Q(later__lt=F("score")),
        "changed": scored & ~Q(later=F("score")),
        "unscored": ~scored,
    }
    return items.filter(condition[show]) if show in condition else items


def changed_pairs(suite: Suite, before: Sequence[EvalItem]) -> list[Changed]:
    """Some of the items of `changed_items` with what they became."""
    if suite.after is None:
        return []
    after = result_items(suite.after).filter(problem_id__in=[item.problem_id for item in before])
    by_problem = {item.problem_id: item for item in after}
    return [Changed(item, by_problem[item.problem_id]) for item in before]


# A run's suites with statistics that were computed before, by any web process.
#
# A bootstrap of 1,000 items takes most of a second, and every page of a run's evaluations shows it. The newest
# comparisons of each run are kept in one row, under a digest of all that went into them: every item, what the suite and
# its margin are, and the code that computes. What is read is therefore what would be computed now, and nothing has to
# be invalidated. The database digests the items, so that a page reads none of them.
#
# Only for pages. A record is sealed from what is computed there and then.

_ITEMS = """
    SELECT result.id, encode(sha256(convert_to(string_agg(
        ROW(item.problem_id, item.score, item.truncated, item.error <> '', item.cluster, item.slice)::text,
        ',' ORDER BY item.seq
    ), 'UTF8')), 'hex')
    FROM runs_evalresult AS result
    JOIN runs_evalitem AS item
        ON (item.attempt_id, item.suite, item.phase, item.step)
            = (result.attempt_id, result.suite, result.phase, result.step)
        AND item.seq < result.seq
    WHERE result.id = ANY(%s)
    GROUP BY result.id
"""
"""SHA-256 over the parts of items that `evidence.compare.Item` has, by evaluation; without items no row."""


def suites_cached(run: Run, config: AnyConfig) -> list[Suite]:
    """As `suites`."""
    measured = _measured(run, config)
    if not measured:
        return []
    key = _key(measured)
    kept = ComparisonCache.objects.filter(run=run, key=key).values_list("comparisons", flat=True).first()
    if kept is None:
        kept = json.dumps(compare_all([suite.case() for suite in measured]))
        row = ComparisonCache(run=run, key=key, comparisons=kept)
        ComparisonCache.objects.bulk_create(
            [row], update_conflicts=True, unique_fields=["run"], update_fields=["key", "comparisons"]
        )
    return _joined(measured, json.loads(kept))


def _key(measured: Sequence[Measured]) -> str:
    """SHA-256, as hex."""
    results = [(suite.before and suite.before.pk, suite.after and suite.after.pk) for suite in measured]
    with connection.cursor() as cursor:
        cursor.execute(_ITEMS, [[pk for pair in results for pk in pair if pk is not None]])
        items_of = dict(cursor.fetchall())
    digest = hashlib.sha256(_code().encode())
    for suite, pair in zip(measured, results, strict=True):
        sides = [None if pk is None else items_of.get(pk, "") for pk in pair]
        touched = None if suite.touched is None else sorted(suite.touched)
        digest.update(json.dumps([asdict(suite.facts), sides, suite.same_protocol, touched]).encode())
    return digest.hexdigest()


@cache
def _code() -> str:
    """SHA-256 of the modules that the statistics come from."""
    package = Path(grpo_core.stats.__file__).parent
    sources = [*sorted(package.glob("*.py")), Path(compare.__file__), Path(items.__file__)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()

"""Which runs an address compares, how each is drawn, and the addresses that change the choice.

Everything a person chooses stands in the address: `run` once for each run, `baseline`, `hide`; `drop` takes a run away.
A run keeps its colour and dash when others come and go, because they follow from its id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Q, QuerySet
from django.http import Http404, QueryDict

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.runs.models import Run

MOST_RUNS = 100
"""Runs compared at once. The page names how many further ones the address has."""
COLOURS = 8
DASHES = 4
SUGGESTED = 6


@dataclass(frozen=True)
class Chosen:
    run: Run
    colour: int
    """1 to COLOURS, of the CSS properties --series-1 …"""
    dash: int
    """1 to DASHES: solid, dashed, dotted, dash-dotted."""
    is_baseline: bool
    hidden: bool


class Choice:
    """The runs of an address, those of other projects being 404."""

    def __init__(self, project: Project, params: QueryDict) -> None:
        self.project, self.params = project, params
        numbers = [natural(text) for text in params.getlist("run")]
        wanted = list(dict.fromkeys(number for number in numbers if number is not None))
        if len(wanted) < len(set(params.getlist("run"))):
            raise Http404("a run is named by its number")
        kept, self.left_out = wanted[:MOST_RUNS], len(wanted[MOST_RUNS:])
        by_pk = {run.pk: run for run in runs_shown(project).filter(pk__in=kept)}
        if len(by_pk) != len(kept):
            raise Http404("there is no such run")
        self.runs = [by_pk[pk] for pk in kept]
        baseline = natural(params.get("baseline"))
        self.baseline = by_pk.get(baseline or 0) or (self.runs[0] if self.runs else None)
        """None while no run is chosen."""

    @cached_property
    def chosen(self) -> list[Chosen]:
        hidden = {natural(text) for text in self.params.getlist("hide")}
        styles = styles_of([run.pk for run in self.runs])
        return [
            Chosen(
                run,
                *styles[run.pk],
                is_baseline=run == self.baseline,
                hidden=run.pk in hidden,
            )
            for run in self.runs
        ]

    @property
    def others(self) -> list[Run]:
        """All but the baseline, in order."""
        return [run for run in self.runs if run != self.baseline]

    @property
    def query(self) -> str:
        """The runs and the baseline alone, for other pages of the same comparison."""
        query = QueryDict(mutable=True)
        query.setlist("run", [str(run.pk) for run in self.runs])
        if self.baseline is not None:
            query["baseline"] = str(self.baseline.pk)
        return query.urlencode()

    def with_runs(self, runs: Sequence[Run]) -> str:
        """Query of the page with these added."""
        query = self._query()
        for run in runs:
            if str(run.pk) not in query.getlist("run"):
                query.appendlist("run", str(run.pk))
        return query.urlencode()

    def _query(self) -> QueryDict:
        query = self.params.copy()
        for name in ("add", "all", "drop"):
            query.pop(name, None)
        return query

    @property
    def settled(self) -> str | None:
        """Query of the page once a button of the list was pressed: without the run to `drop`, with the last baseline
        alone. None where no button was."""
        if "drop" not in self.params and len(self.params.getlist("baseline")) < 2:
            return None
        query, drop = self._query(), natural(self.params.get("drop"))
        for name in ("run", "hide", "baseline"):
            kept = [text for text in query.getlist(name) if natural(text) != drop]
            query.setlist(name, kept[-1:] if name == "baseline" else kept)
        return query.urlencode()


def styles_of(pks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """(colour, dash) of each run: the one its id points at, or the next that no run with a smaller id took. With more
    runs than there are pairs, pairs come again; the number next to a run's line tells them apart."""
    pairs, taken = COLOURS * DASHES, set[int]()
    styles = {}
    for pk in sorted(pks):
        if len(taken) == pairs:
            taken.clear()
        slot = next(slot for slot in ((pk + step) % pairs for step in range(pairs)) if slot not in taken)
        taken.add(slot)
        styles[pk] = (slot % COLOURS + 1, (slot + slot // COLOURS) % DASHES + 1)  # neighbours differ in both
    return styles


def runs_shown(project: Project) -> QuerySet[Run]:
    """Runs with the rows that a comparison names."""
    shown = ("base_model", "dataset", "eval_dataset", "verifier_version__verifier")
    return Run.objects.filter(project=project).select_related(*shown).defer("log_tail")


@dataclass(frozen=True)
class Search:
    """Runs that a text fits: the run with this number, or all with it in their name."""

    text: str
    matches: list[Run]
    total: int
    """How many fit, of which `matches` are the newest."""


def search(choice: Choice, text: str) -> Search:
    text = storable(text.strip())
    rows = Run.objects.filter(project=choice.project).exclude(pk__in=[run.pk for run in choice.runs])
    number = natural(text.removeprefix("#"))
    fitting = rows.filter(Q(name__icontains=text) | Q(pk=number) if number is not None else Q(name__icontains=text))
    if number is not None and (exact := fitting.filter(pk=number).first()) is not None:
        return Search(text, [exact], 1)
    newest = list(fitting.order_by("-pk").defer("config", "log_tail")[: MOST_RUNS + 1])
    total = fitting.count() if len(newest) > MOST_RUNS else len(newest)
    return Search(text, newest[:MOST_RUNS], total)


def suggestions(choice: Choice) -> list[Run]:
    """The chosen runs' parents, clones and siblings, newest first; while none is chosen the project's newest runs."""
    rows = Run.objects.filter(project=choice.project).order_by("-pk").defer("config", "log_tail")
    if not choice.runs:
        return list(rows[:SUGGESTED])
    pks = [run.pk for run in choice.runs]
    family = [*pks, *{run.cloned_from_id for run in choice.runs if run.cloned_from_id is not None}]
    related = rows.filter(Q(pk__in=family) | Q(cloned_from__in=family)).exclude(pk__in=pks)
    return list(related[:SUGGESTED])

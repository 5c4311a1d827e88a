"""The list of runs: newest first, in pages that stay where they are while new runs arrive."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.runs.models import Run, RunState
from cohort.runs.transitions import ON_A_WORKER
from cohort.web.access import project_for
from cohort.web.context import LIVE, query_without, render_polled, version_of
from cohort.web.launch.schema import preset_source
from cohort.web.launch.variants import ALL
from grpo_core.config.presets import PRESETS

PAGE = 50

STATES = {
    "live": ("live", Q(state__in=LIVE)),
    "again": ("queued again", Q(state=RunState.QUEUED, fence__gt=0)),
    "stalled": ("stalled", Q(state__in=ON_A_WORKER, stalled_at__isnull=False)),
    **{state.value: (state.label.lower(), Q(state=state)) for state in RunState},
}
"""Choices of the state filter: value → (label, which runs)."""


@dataclass(frozen=True)
class RunRow:
    run: Run
    reward: float | None
    change: float | None
    """Since the first step."""
    recipe: str
    """Preset and normalization variant."""

    @property
    def unscored(self) -> float:
        """Share of the newest step's completions that could not be scored."""
        return float(self.run.latest_metrics.get("frac_unscored", 0.0))

    @property
    def live(self) -> bool:
        return self.run.state in LIVE

    @property
    def again(self) -> bool:
        """Waits, and a worker has had it before."""
        return self.run.state == RunState.QUEUED and self.run.fence > 0


class RunPage:
    """Runs with a smaller id than `before` (or a larger one than `after`), newest first."""

    def __init__(self, project: Project, params: Mapping[str, str]) -> None:
        """`params`: those of the page's address."""
        before, after = natural(params.get("before")), natural(params.get("after"))
        runs: QuerySet[Run] = Run.objects.filter(project=project)
        self.total = runs.count()
        state, text = params.get("state", ""), storable(params.get("q", "").strip())
        self.state, self.text = state if state in STATES else "", text
        if self.state:
            runs = runs.filter(STATES[state][1])
        if text:
            names = ("name", "preset", "base_model__name", "dataset__name", "created_by__username")
            runs = runs.filter(reduce(or_, [Q((f"{name}__icontains", text)) for name in names]))
        self.matching = runs.count() if self.state or text else self.total
        query = runs.select_related("base_model", "dataset", "created_by").defer("log_tail")
        if after is not None:
            fetched = list(query.filter(pk__gt=after).order_by("pk")[: PAGE + 1])
            shown = fetched[:PAGE][::-1]
            has_newer, has_older = len(fetched) > PAGE, True
        else:
            if before is not None:
                query = query.filter(pk__lt=before)
            fetched = list(query.order_by("-pk")[: PAGE + 1])
            shown = fetched[:PAGE]
            has_newer, has_older = before is not None, len(fetched) > PAGE
        self.rows = [_row(run) for run in shown]
        self.older = shown[-1].pk if has_older and shown else None
        """`before` of the next page; None at the end."""
        self.newer = shown[0].pk if has_newer and shown else None

    @property
    def live(self) -> bool:
        return any(row.live for row in self.rows)

    @property
    def version(self) -> str:
        """Changes when anything that a row shows has changed."""
        parts = [
            *((row.run.pk, row.run.state, row.run.step, row.run.steps_total, row.reward) for row in self.rows),
            *((row.run.desired, row.run.retries, row.run.fence, row.run.stalled_at) for row in self.rows),
        ]
        return version_of((parts, self.matching))


def _row(run: Run) -> RunRow:
    now, start = run.latest_metrics.get("reward"), run.first_metrics.get("reward")
    algorithm = run.config["algorithm"]
    preset = PRESETS.get(run.preset)
    variant = ALL[f"{algorithm.get('advantage', 'group')}/{algorithm['scale']}/{algorithm['std_ddof']}"].short
    return RunRow(
        run=run,
        reward=now,
        change=now - start if now is not None and start is not None and run.step > 1 else None,
        recipe=f"{preset_source(preset)} · {variant}" if preset else variant,
    )


@require_safe
def run_list(request: HttpRequest, slug: str) -> HttpResponse:
    """With `v` the rows alone, for a poll."""
    project = project_for(request, slug)
    context = {
        "page": RunPage(project, request.GET),
        "states": STATES,
        "query": query_without(request, "before", "after", "v"),
        "here": query_without(request, "v"),
    }
    return render_polled(request, "runs/list.html", "runs/_rows.html", context)

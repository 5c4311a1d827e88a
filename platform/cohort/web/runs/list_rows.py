"""The list of runs: newest first, in pages that stay where they are while new runs arrive."""

import hashlib
from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.base.storable import storable
from cohort.runs.models import Run, RunState
from cohort.runs.transitions import ON_A_WORKER
from cohort.web.access import project_for
from cohort.web.context import LIVE
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
    def live(self) -> bool:
        return self.run.state in LIVE

    @property
    def again(self) -> bool:
        """Waits, and a worker has had it before."""
        return self.run.state == RunState.QUEUED and self.run.fence > 0


@dataclass(frozen=True)
class RunPage:
    rows: tuple[RunRow, ...]
    matching: int
    total: int
    state: str
    text: str
    older: int | None
    """`before` of the next page; None at the end."""
    newer: int | None

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
        return hashlib.sha256(repr((parts, self.matching)).encode()).hexdigest()[:16]


def run_page(
    *, project: Project, state: str = "", text: str = "", before: int | None = None, after: int | None = None
) -> RunPage:
    """One page of runs with a smaller id than `before` (or a larger one than `after`), newest first."""
    runs: QuerySet[Run] = Run.objects.filter(project=project)
    total = runs.count()
    chosen = state if state in STATES else ""
    if chosen:
        runs = runs.filter(STATES[chosen][1])
    if text := storable(text.strip()):
        runs = runs.filter(
            Q(name__icontains=text)
            | Q(preset__icontains=text)
            | Q(base_model__name__icontains=text)
            | Q(dataset__name__icontains=text)
            | Q(created_by__username__icontains=text)
        )
    matching = runs.count() if chosen or text else total
    query = runs.select_related("base_model", "dataset", "created_by").defer("log_tail")
    if after is not None:
        fetched = list(query.filter(pk__gt=after).order_by("pk")[: PAGE + 1])
        shown = fetched[:PAGE][::-1]
        has_newer, has_older = len(fetched) > PAGE, bool(shown)
    else:
        if before is not None:
            query = query.filter(pk__lt=before)
        fetched = list(query.order_by("-pk")[: PAGE + 1])
        shown = fetched[:PAGE]
        has_newer, has_older = before is not None and bool(shown), len(fetched) > PAGE
    return RunPage(
        rows=tuple(_row(run) for run in shown),
        matching=matching,
        total=total,
        state=chosen,
        text=text,
        older=shown[-1].pk if has_older and shown else None,
        newer=shown[0].pk if has_newer and shown else None,
    )


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
    """With `v`, the version that the page shows, it answers a poll: 204 when nothing changed, else the rows."""
    project = project_for(request, slug)
    page = run_page(
        project=project,
        state=request.GET.get("state", ""),
        text=request.GET.get("q", ""),
        before=natural(request.GET.get("before")),
        after=natural(request.GET.get("after")),
    )
    query = request.GET.copy()
    for name in ("before", "after", "v"):
        query.pop(name, None)
    here = request.GET.copy()
    here.pop("v", None)
    context = {"project": project, "page": page, "states": STATES, "query": query.urlencode(), "here": here.urlencode()}
    if "v" in request.GET:
        if request.GET["v"] == page.version:
            return HttpResponse(status=204)
        return render(request, "runs/_rows.html", context)
    return render(request, "runs/list.html", context)

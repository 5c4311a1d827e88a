"""The tabs of a run, each a separate page, and the parts of them that are polled while the run lives."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from csp.constants import SELF
from csp.decorators import csp_update
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.accounts.models import Role
from cohort.alerts.selectors import open_alerts
from cohort.base.formatting import natural
from cohort.evaluations.during import best_shown, curves
from cohort.evaluations.forecast import forecast_of
from cohort.evaluations.selectors import (
    CHANGES,
    by_category,
    changed_items,
    changed_pairs,
    evaluations_known,
    suites_cached,
)
from cohort.evidence.plain_text import named
from cohort.lab.gate import launch_of, titles_of
from cohort.launch.differences import run_differences
from cohort.records.sections.stage_facts import heldout_loss
from cohort.review.waiting import closed_to
from cohort.runs.charts import project_charts
from cohort.runs.models import Checkpoint, RunEvent, RunKind
from cohort.web.access import STOP_POLLING, any_run_for, may, polled_run_for, run_for
from cohort.web.accounts.views import person
from cohort.web.context import POLLED, listed, prepared, query_without, shared_part, version_of
from cohort.web.lab.estimate_shown import estimate_compared
from cohort.web.review.selectors import step_groups
from cohort.web.runs.chart_groups import charts_of
from cohort.web.runs.compute_shown import compute_so_far
from cohort.web.runs.curves import curve_drawn
from cohort.web.runs.header import Header
from cohort.web.runs.health import health_of
from cohort.web.runs.imported import imported_record
from cohort.web.runs.series import epoch, reported, series_json, whole_series
from cohort.web.runs.tiles import tiles, windows
from cohort.web.runs.tries import (
    ATTEMPTS,
    CHECKPOINTS,
    attempt_rows,
    attempts_of,
    checkpoint_rows,
    checkpoints_of,
    superseded_evaluations,
    superseded_rows,
)
from grpo_core.config.kinds import samples_per_step
from grpo_core.config.sft import SftConfig
from grpo_core.stats.inferiority import MEANINGS

PLOTLY_MAP_STYLE = "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
"""A fixed style element that plotly 7.1's map code adds as it loads; no chart of ours needs it, but each refusal would
be a line in the browser's console that could hide a real one."""

View = TypeVar("View", bound=Callable[..., HttpResponse])


def charts_csp(view: View) -> View:
    """Decorator for a view whose page draws charts."""
    decorate: Any = csp_update(
        {
            "style-src-elem": [SELF, settings.PLOTLY_EMPTY_STYLE, PLOTLY_MAP_STYLE],
            "style-src-attr": ["'unsafe-inline'"],
            "img-src": ["blob:"],
        }
    )
    return cast("View", decorate(view))


WAITING = "waiting"
"""Of the trainer's event (grpo_core.runtime.watchdog)."""


def awaits(header: Header) -> RunEvent | None:
    """The newest such event of the attempt that runs, unless it is marked as over."""
    if not header.live or header.attempt is None or header.attempt.ended_at is not None:
        return None
    newest = RunEvent.objects.filter(run=header.run, attempt=header.attempt, kind=WAITING).order_by("-id").first()
    return None if newest is None or newest.data.get("over") else newest


TABS = ("overview", "groups", "evaluations", "attempts", "logs", "config", "events")
NEWEST_GROUPS = 6
LAST_LINES = 12
ITEMS = 50


@charts_csp
@require_safe
def run_detail(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    run = any_run_for(request, slug, run_id)
    if run.imported:
        return imported_record(request, run)
    header = Header(run)
    launch = launch_of(run)
    titles = titles_of(launch.probe, tuple(launch.pays_wrong)) if launch and launch.probe else []
    context = {
        **_overview(header, closed=closed_to(person(request), request.membership.role, run_id)),  # type: ignore[attr-defined]
        "completions": samples_per_step(header.config),
        "launch": launch,
        "launch_words": named(titles),
        "estimated": estimate_compared(run),
        "compute": compute_so_far(run, header.config),
        "forecast": forecast_of(run) if run.kind == RunKind.GRPO else None,
        "best": best_shown(run, header.config),
    }
    return render(request, "runs/overview.html", context)


@require_safe
def run_live(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Header, and the live parts of the open tab. 204 while nothing changed since `v`; 286 once nothing more comes."""
    run, role = polled_run_for(request, slug, run_id)
    polled = Header(run, polled=True)
    if polled.polls and request.GET.get("v") == polled.version:
        return HttpResponse(status=204)
    tab, drawn = request.GET.get("tab", ""), request.GET.get("evals", "")
    tab = tab if tab in TABS else ""  # a page of no tab, such as a form, has the header alone
    closed = tab == "overview" and closed_to(person(request), role, run_id)
    part = {name: request.GET[name] for name in ("page", "checkpoints", "all") if name in request.GET}

    def context() -> dict[str, Any]:
        header = Header(run_for(request, slug, run_id))
        if tab == "overview":
            shown = _overview(header, closed=closed, drawn=drawn)
        elif tab == "attempts":
            shown = _attempts(request, header)
        else:
            shown = header.context(tab)
        return shown | {"oob": True}

    key = (run_id, polled.version, polled.polls, tab, drawn, part, closed)
    return shared_part(request, role, "runs/_live.html", key, context, status=200 if polled.polls else STOP_POLLING)


@require_safe
def run_series(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """What the charts draw, of the steps beyond `after`; of all when steps drawn before are superseded by now, which
    shows in another `epoch`, or when much has come since. 204 while there is no step beyond `after`. With `from` and
    `to` of the steps of a range, one by one where they are few enough."""
    run, _ = polled_run_for(request, slug, run_id)
    first, through = (natural(request.GET.get(name)) for name in ("from", "to"))
    if first is not None or through is not None:
        after, through = max(first or 1, 1) - 1, run.step if through is None else min(through, run.step)
        name = version_of(("series", run_id, epoch(run), after, through))
        return _json(prepared(name, lambda: series_json(run, after=after, through=through)))
    now, newest = epoch(run), run.step
    after = natural(request.GET.get("after")) or 0 if request.GET.get("epoch", "") == now else 0
    if after and newest <= after:
        return HttpResponse(status=204)
    if not after:
        return _json(whole_series(run))
    name = version_of(("series", run_id, now, newest, "beyond", after))
    return _json(prepared(name, lambda: series_json(run, after=after)))


def _json(text: str) -> HttpResponse:
    return HttpResponse(text, content_type="application/json")


@require_safe
def run_evaluations(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Every suite in a table, one of them (`suite`) with its items: `show` filters them, `texts` opens those of a
    sensitive suite to reviewers and above."""
    run = run_for(request, slug, run_id)
    header = Header(run)
    suites = suites_cached(run, header.config)
    name, show = request.GET.get("suite", ""), request.GET.get("show", "changed")
    show = show if show in CHANGES else "changed"
    opened = next((suite for suite in suites if suite.name == name), suites[0] if suites else None)
    items = listed(
        request,
        changed_items(opened, show=show) if opened else [],
        ITEMS,
        name="items",
        row=lambda before: changed_pairs(opened, before) if opened else [],
    )
    may_read = opened is not None and (not opened.sensitive or may(request, run.project, Role.REVIEWER))
    context = header.context(
        "evaluations",
        categories=by_category(suites),
        suites=suites,
        curves=[curve_drawn(curve) for curve in curves(run, header.config, suites)],
        suite=opened,
        meanings=MEANINGS,
        items=items,
        show=show,
        changes=CHANGES,
        may_read=may_read,
        texts=opened is not None and may_read and (not opened.sensitive or bool(request.GET.get("texts"))),
        imported=listed(request, run.imported_results.select_related("by").order_by("pk"), name="imported"),
        heldout_loss=heldout_loss(run) if isinstance(header.config, SftConfig) else {},
        superseded=listed(request, superseded_evaluations(run), ITEMS, name="superseded", row=superseded_rows),
    )
    return render(request, "runs/evaluations.html", context)


@require_safe
def run_attempts(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """Attempts, and the checkpoints that they cut."""
    header = Header(run_for(request, slug, run_id))
    return render(request, "runs/attempts.html", _attempts(request, header))


@require_safe
def run_config(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    header = Header(run_for(request, slug, run_id))
    differing = run_differences(header.run) if header.run.cloned_from else ()
    context = header.context("config", yaml=header.config.to_yaml(), parent_differences=differing)
    return render(request, "runs/config.html", context)


@require_safe
def run_events(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    header = Header(run_for(request, slug, run_id))
    rows = RunEvent.objects.filter(run=header.run).select_related("attempt").order_by("-id")
    events = listed(request, rows.defer("attempt__manifest", "attempt__outcome"))
    return render(request, "runs/events.html", header.context("events", events=events))


def _attempts(request: HttpRequest, header: Header) -> dict[str, Any]:
    """With `all` the checkpoints that were removed too. Each poll brings the same pages again."""
    run, every = header.run, bool(request.GET.get("all"))
    shown = checkpoints_of(run, every=every)
    recorded = Checkpoint.objects.filter(run=run).count()
    context = header.context(
        "attempts",
        tried=listed(request, attempts_of(run), ATTEMPTS, row=attempt_rows),
        checkpoints=listed(request, shown, CHECKPOINTS, name="checkpoints", row=checkpoint_rows),
        recorded=recorded,
        every=every,
        best=best_shown(run, header.config),
        same_part=query_without(request, *POLLED),
    )
    return context | {"removed": recorded - checkpoints_of(run).count()}


def _overview(header: Header, *, closed: bool, drawn: str = "") -> dict[str, Any]:
    """`closed`: whether the run's samples are, to the reader. `drawn`: the evaluations that the page shows already: to
    compare them problem by problem again at each step costs too much, so they are left out while they are current."""
    evaluated = evaluations_known(header.run)
    same = bool(drawn) and drawn == evaluated
    charts = charts_of(header.config, reported(header.run), project_charts(header.run.project))
    run = header.run
    groups = (
        None
        if closed or not run.has_samples
        else step_groups(run, success=run.scored_by.success_of, limit=NEWEST_GROUPS)
    )
    return header.context(
        "overview",
        awaits=awaits(header),
        alerts=list(open_alerts(header.run)),
        charts=charts,
        health=health_of(run, header.config, charts),
        last_lines="\n".join(header.run.log_tail.splitlines()[-LAST_LINES:]),
        tiles=tiles(header, windows(header.run)),
        closed=closed,
        newest=groups,
        evaluated=evaluated,
        evaluates=run.kind == RunKind.GRPO or header.config.eval.before or header.config.eval.after or bool(evaluated),
        evals_stand=same,
        suites=[] if same else suites_cached(header.run, header.config),
    )

"""Sampled groups of a run: the list by step, and one group with all its completions."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from cohort.access import run_for
from cohort.figures import natural
from cohort.review import selectors
from cohort.review.arithmetic import BATCH, VARIANTS, number, variant_of, work_out
from cohort.review.models import Sample
from cohort.runs.selectors.header import run_header
from grpo_core.config import RunConfig


@require_safe
def run_groups(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    header = run_header(run_for(request, slug, run_id))
    page = selectors.step_groups(
        header.run,
        success=header.config.success_component,
        step=natural(request.GET.get("step")),
        show=request.GET.get("show", "all"),
        start=natural(request.GET.get("from")) or 0,
    )
    context = {
        "project": header.run.project,
        "run": header.run,
        "header": header,
        "tab": "groups",
        "page": page,
        "shows": selectors.SHOWS,
        "sampled": header.config.sampling.prompts_per_step,
    }
    return render(request, "review/groups.html", context)


@require_safe
def group_detail(request: HttpRequest, slug: str, run_id: int, group_id: int) -> HttpResponse:
    """`?sample=2` marks the second completion; `?variant=` shows another variant's arithmetic."""
    run = run_for(request, slug, run_id)
    group = selectors.group_of(run, group_id)
    if group is None:
        raise Http404
    config = run_header(run).config
    own = variant_of(config.algorithm.scale, config.algorithm.std_ddof)
    chosen = next((variant for variant in VARIANTS if variant.id == request.GET.get("variant")), own)
    std, whole = selectors.step_std(group, config) if chosen is BATCH else (None, True)
    samples = list(group.samples.all())
    worked = work_out([sample.reward for sample in samples], chosen, eps=config.algorithm.advantage_eps, batch_std=std)
    advantages = worked.advantages if worked else [None] * len(samples)
    selected = natural(request.GET.get("sample"))
    return render(
        request,
        "review/group.html",
        {
            "project": run.project,
            "run": run,
            "group": group,
            "place": selectors.place_of(group),
            "variants": VARIANTS,
            "own": own,
            "chosen": chosen,
            "worked": worked,
            "whole_step": whole,
            "success": config.success_component,
            "cards": [
                {
                    "sample": sample,
                    "number": sample.index + 1,
                    "right": selectors.right(sample, config.success_component),
                    "reward": None if sample.reward is None else number(sample.reward),
                    "scores": _scores(sample, config),
                    "advantage": sample.advantage if chosen is own else advantage,
                    "selected": sample.index + 1 == selected,
                }
                for sample, advantage in zip(samples, advantages, strict=True)
            ],
        },
    )


def _scores(sample: Sample, config: RunConfig) -> list[dict[str, str]]:
    """What each component said, in the order of the run's reward."""
    order = [component.name for component in config.reward.components]
    names = sorted(sample.components, key=lambda name: order.index(name) if name in order else len(order))
    told = []
    for name in names:
        score = sample.components[name]
        value = score.get("value")
        told.append(
            {
                "name": name,
                "value": "–" if value is None else number(value),
                "detail": score.get("detail") or "",
                "error": score.get("error") or "",
            }
        )
    return told

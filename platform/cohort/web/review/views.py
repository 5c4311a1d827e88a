"""Sampled groups of a run: the list by step, and one group with all its completions."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from cohort.base.formatting import natural
from cohort.review.models import Group, Sample
from cohort.review.services import right
from cohort.web.access import run_for
from cohort.web.accounts.views import person
from cohort.web.launch.variants import Variant, variant_of
from cohort.web.review import selectors
from cohort.web.review.arithmetic import Derivation, derive, number, stored_only, uses_step, variants_for
from cohort.web.review.judging import form_choices, opinions_of
from cohort.web.runs.header import Header
from cohort.web.runs.tries import successor
from grpo_core.config.run import RunConfig


@require_safe
def run_groups(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    header = Header(run_for(request, slug, run_id))
    page = selectors.step_groups(
        header.run,
        success=header.config.reward.success_of,
        step=natural(request.GET.get("step")),
        show=request.GET.get("show", "all"),
        start=natural(request.GET.get("from")) or 0,
    )
    dynamic = header.config.algorithm.dynamic_sampling.enabled
    shows = selectors.SHOWS | (selectors.DISCARDED if dynamic else {})
    wanted = header.config.sampling.prompts_per_step
    context = header.context("groups", page=page, shows=shows, dynamic=dynamic, wanted=wanted)
    return render(request, "review/groups.html", context)


@require_safe
def group_detail(request: HttpRequest, slug: str, run_id: int, group_id: int) -> HttpResponse:
    """`?sample=2` marks the second completion; `?variant=` shows another variant's arithmetic."""
    run = run_for(request, slug, run_id)
    # Any group of the run, a superseded one too: its address stays good.
    groups = Group.objects.select_related("attempt").prefetch_related("samples")
    group = get_object_or_404(groups, run=run, pk=group_id)
    config = Header(run).config
    own, variants = variant_of(config.algorithm), variants_for(config.algorithm)
    chosen = next((variant for variant in variants if variant.value == request.GET.get("variant")), own)
    samples = list(group.samples.all())
    sentence = stored_only(chosen)
    worked, whole = (None, True) if sentence else _derived(group, samples, config, chosen)
    advantages = worked.advantages if worked else [None] * len(samples)
    selected = natural(request.GET.get("sample"))
    opinions = opinions_of(samples, person(request), run.project)
    context = {
        "run": run,
        "group": group,
        "remarks": selectors.remarks(group),
        "successor": successor(group.attempt, step=group.step),
        "place": selectors.position_of(group),
        "variants": variants,
        "own": own,
        "sentence": sentence,
        "chosen": chosen,
        "worked": worked,
        "whole_step": whole,
        "shaped": any(sample.shaped_reward is not None for sample in samples),
        "success": config.reward.success_of(samples[0].components) if samples else "",
        **form_choices(run.project),
        "cards": [
            {
                "sample": sample,
                "number": sample.index + 1,
                "right": right(sample, config.reward.success_of),
                "reward": None if sample.reward is None else number(sample.reward),
                "shaped": None if sample.shaped_reward is None else number(sample.shaped_reward),
                "masked": selectors.MASK_WORDS.get(sample.mask_cause, sample.mask_cause),
                "scores": _scores(sample, config),
                "advantage": sample.advantage if chosen == own else advantage,
                "selected": sample.index + 1 == selected,
                **opinions[sample.pk],
            }
            for sample, advantage in zip(samples, advantages, strict=True)
        ],
    }
    return render(request, "review/group.html", context)


def _derived(group: Group, samples: list[Sample], config: RunConfig, chosen: Variant) -> tuple[Derivation | None, bool]:
    """(the calculation under the chosen variant, whether it knows the whole step); without one where there are too few
    rewards."""
    step, whole = selectors.whole_step(group, config) if uses_step(chosen) else ([], True)
    rewards = [sample.compared_reward for sample in samples]
    return derive(rewards, chosen, config.algorithm, step=step, phantom=group.signal == "phantom"), whole


def _scores(sample: Sample, config: RunConfig) -> list[dict[str, str]]:
    """Each component's score, in the order of the run's reward."""
    order = [component.name for component in config.reward.components]
    names = sorted(sample.components, key=lambda name: order.index(name) if name in order else len(order))
    return [
        {
            "name": name,
            "value": "–" if (value := sample.components[name].get("value")) is None else number(value),
            "detail": sample.components[name].get("detail") or "",
            "error": sample.components[name].get("error") or "",
            "traceback": sample.components[name].get("traceback") or "",
            "printed": sample.components[name].get("printed") or "",
        }
        for name in names
    ]

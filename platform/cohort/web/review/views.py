"""Sampled groups of a run: the list by step, and one group with all its completions."""

from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from cohort.base.formatting import natural
from cohort.review.models import Group, Sample
from cohort.review.pairs import preference
from cohort.review.problems import key_of
from cohort.runs.models import Run
from cohort.web.access import reviewed_run_for
from cohort.web.accounts.views import person
from cohort.web.launch.variants import Variant, variant_of
from cohort.web.review import selectors
from cohort.web.review.arithmetic import Derivation, derive, group_scores, stored_only, variants_for
from cohort.web.review.group_page import GroupView, compared, sample_cards, sample_squares, sample_table, weights_of
from cohort.web.review.judging import form_choices, opinions_of, shows_samples
from cohort.web.review.rescore_shown import rescored_group
from cohort.web.review.texts import WINDOW, ReasoningTags, prompt_turns, question_of, reasoning_tags
from cohort.web.runs.header import Header
from cohort.web.runs.tries import successor
from grpo_core.config.kinds import ScoredConfig
from grpo_core.config.sample import SampleConfig
from grpo_core.rewards.signal import component_weights

NOTHING_LEARNED = "A sampling run compares no completions and learns nothing: they are scored, and filtered."


@require_safe
@shows_samples
def run_groups(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    header = Header(reviewed_run_for(request, slug, run_id))
    config = None if header.run.imported else header.config
    page = selectors.step_groups(
        header.run,
        success=header.run.scored_by.success_of,
        step=natural(request.GET.get("step")),
        show=request.GET.get("show", "all"),
        start=natural(request.GET.get("from")) or 0,
    )
    dynamic = config is not None and config.algorithm.dynamic_sampling.enabled
    shows = selectors.SHOWS | (selectors.DISCARDED if dynamic else {})
    wanted = config.sampling.prompts_per_step if config is not None else None
    context = header.context("groups", page=page, shows=shows, dynamic=dynamic, wanted=wanted)
    return render(request, "review/groups.html", context)


@require_safe
@shows_samples
def group_detail(request: HttpRequest, slug: str, run_id: int, group_id: int) -> HttpResponse:
    """What the address chooses is in GroupView."""
    run = reviewed_run_for(request, slug, run_id)
    # Any group of the run, a superseded one too: its address stays good.
    groups = Group.objects.select_related("attempt").prefetch_related("samples")
    group = get_object_or_404(groups, run=run, pk=group_id)
    if run.imported:
        return _imported_group(request, run, group)
    config = run.scored_config
    own, variants = variant_of(config.algorithm), variants_for(config.algorithm)
    view = GroupView.parse(request.GET, variants=[own.value, *(variant.value for variant in variants)])
    chosen = next((variant for variant in variants if variant.value == view.variant), own)
    samples = list(group.samples.all())
    reader = person(request)
    sampled = isinstance(config, SampleConfig)
    sentence = NOTHING_LEARNED if sampled else stored_only(chosen, config.algorithm)
    worked, whole = (None, True) if sentence else _derived(group, samples, config, chosen)
    advantages: Sequence[float | None] = [sample.advantage for sample in samples]
    if chosen != own:
        advantages = (worked.advantages if worked else None) or [None] * len(samples)
    turns = prompt_turns(group.prompt)
    cards = sample_cards(
        group,
        samples,
        advantages,
        opinions_of(samples, reader, run.project),
        reward=config.reward,
        view=view,
        tags=reasoning_tags(config),
    )
    context = {
        "run": run,
        "group": group,
        "turns": turns,
        "question": question_of(turns),
        "remarks": selectors.remarks(group),
        "successor": successor(group.attempt, step=group.step),
        "place": selectors.position_of(group),
        "view": view,
        "variants": [(variant, view.link(variant="" if variant == own else variant.value)) for variant in variants],
        "own": own,
        "sentence": sentence,
        "chosen": chosen,
        "worked": worked,
        "whole_step": whole,
        "table": sample_table(samples, advantages, component_weights(config.reward, config.algorithm), worked),
        "sampling": selectors.sampling_of_step(group) if config.algorithm.dynamic_sampling.enabled else None,
        "key": key_of(group),
        "preference": preference([group.pk]),
        "shaped": any(sample.shaped_reward is not None for sample in samples),
        **form_choices(run.project),
        "comparison": compared(samples, view),
        "cards": cards,
        "squares": sample_squares(cards),
        "folded": len(samples) - len(cards),
        "rescored": rescored_group(group),
    }
    return render(request, "review/group.html", context)


def _imported_group(request: HttpRequest, run: Run, group: Group) -> HttpResponse:
    """Of an imported run: how rewards became advantages is not known, so the stored numbers stand alone."""
    view = GroupView.parse(request.GET, variants=[""])
    samples = list(group.samples.all())
    advantages = [sample.advantage for sample in samples]
    turns = prompt_turns(group.prompt)
    opinions = opinions_of(samples, person(request), run.project)
    tags = ReasoningTags()
    cards = sample_cards(group, samples, advantages, opinions, reward=run.scored_by, view=view, tags=tags)
    context = {
        "run": run,
        "group": group,
        "turns": turns,
        "question": question_of(turns),
        "remarks": selectors.remarks(group),
        "place": selectors.position_of(group),
        "view": view,
        "table": sample_table(samples, advantages, weights_of(run.scored_by), None),
        "key": key_of(group),
        "preference": preference([group.pk]),
        **form_choices(run.project),
        "comparison": compared(samples, view),
        "cards": cards,
        "squares": sample_squares(cards),
        "folded": len(samples) - len(cards),
    }
    return render(request, "review/group.html", context)


@require_safe
def sample_text(request: HttpRequest, slug: str, run_id: int, group_id: int, index: int) -> HttpResponse:
    """A whole completion, in windows that a page can hold; `?from=` is its first character, from 0."""
    run = reviewed_run_for(request, slug, run_id)
    samples = Sample.objects.select_related("group")
    sample = get_object_or_404(samples, group__run=run, group=group_id, index=index, redacted_at=None)
    length = len(sample.completion)
    start = min(natural(request.GET.get("from")) or 0, max(0, length - 1)) // WINDOW * WINDOW
    context = {
        "run": run,
        "group": sample.group,
        "sample": sample,
        "number": index + 1,
        "text": sample.completion[start : start + WINDOW],
        "length": length,
        "first": min(start + 1, length),
        "last": min(start + WINDOW, length),
        "earlier": start - WINDOW if start else None,
        "later": start + WINDOW if start + WINDOW < length else None,
    }
    return render(request, "review/text.html", context)


def _derived(
    group: Group, samples: list[Sample], config: ScoredConfig, chosen: Variant
) -> tuple[Derivation | None, bool]:
    """(the calculation under the chosen variant, whether it knows the whole step); without one where there are too few
    rewards."""
    step, whole = selectors.whole_step(group, config) if chosen.scaling.uses_step else ([], True)
    own = group_scores(samples, config)
    return derive(own, chosen, config.algorithm, step=step, phantom=group.signal == "phantom"), whole

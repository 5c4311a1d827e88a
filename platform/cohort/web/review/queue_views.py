"""Review queues: made from a run's samples, how far each is, and its samples one after the other. In a blind queue no
answer here holds a reward, a verifier's word or another person's opinion before the sample is judged."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import Count, F
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Membership, Project, Role, User, reaches
from cohort.review import labels, queues
from cohort.review.filters import SampleFilter
from cohort.review.informative import HELP
from cohort.review.models import Annotation, QueueOrder, ReviewItem, ReviewLabel, ReviewQueue, Sample
from cohort.review.pairs import preference
from cohort.review.queue_figures import differing, figures_of, paces
from cohort.review.services import right
from cohort.review.waiting import blind_queues, closed_to, unblind, waiting_for
from cohort.web.access import call_service, form_page, project_for, redirect_to, reviewed_run_for
from cohort.web.accounts.views import person
from cohort.web.context import listed
from cohort.web.fields import ServiceForm
from cohort.web.review.arithmetic import number as short
from cohort.web.review.judging import fault_of, form_choices, opinions_of, stored_words

DIFFERING = 20
"""Samples on which two differ, that a queue's page lists."""


class QueueForm(ServiceForm):
    name = forms.CharField(max_length=queues.MOST_CHARACTERS, help_text="Shown to those who judge.")
    size = forms.IntegerField(initial=50, min_value=1, max_value=queues.MOST_ITEMS, label="Samples, at most")
    order = forms.ChoiceField(choices=QueueOrder.choices, initial=QueueOrder.INFORMATIVE)
    seed = forms.IntegerField(initial=0, min_value=0, required=False, help_text="Of a random order.")
    reviewers = forms.TypedChoiceField(
        choices=[(1, "one person"), (2, "two people, with Cohen's κ")],
        coerce=int,
        label="Each sample is judged by",
    )
    blind = forms.BooleanField(required=False, initial=True, label="Blind")
    assignees = forms.ModelMultipleChoiceField(
        User.objects.none(), required=False, widget=forms.CheckboxSelectMultiple, label="Who judges"
    )

    def __init__(self, project: Project, data: Any = None) -> None:
        super().__init__(data)
        roles = [role for role in Role if reaches(role, Role.REVIEWER)]
        members = Membership.objects.filter(project=project, role__in=roles, user__is_active=True)
        field: Any = self.fields["assignees"]
        field.queryset = User.objects.filter(pk__in=members.values("user")).order_by("username")


@form_page
def queue_new(request: HttpRequest, slug: str, run_id: int) -> HttpResponse:
    """A queue of the samples that the address's filter fits (POST)."""
    run = reviewed_run_for(request, slug, run_id, at_least=Role.REVIEWER)
    form = QueueForm(run.project, request.POST if request.method == "POST" else None)
    try:
        samples = SampleFilter.parse(request.GET)
    except ValidationError as error:
        messages.error(request, "No samples are chosen: " + " ".join(error.messages))
        return redirect("run_detail", slug, run_id)
    if request.method == "POST" and form.is_valid():
        chosen = {**form.cleaned_data, "seed": form.cleaned_data["seed"] or 0}
        queue = form.call(queues.queue_create, run=run, actor=person(request), samples=samples, **chosen)
        if queue is not None:
            return redirect("review_queue", slug, queue.pk)
    fitting = samples.samples(run).count()
    context = {"run": run, "form": form, "samples": samples, "fitting": fitting, "help": HELP}
    return render(request, "review/queue_new.html", context, status=form.status)


@require_safe
def queue_list(request: HttpRequest, slug: str) -> HttpResponse:
    """Every queue of the project, and the labels of its reviewers."""
    project = project_for(request, slug)
    rows = ReviewQueue.objects.filter(project=project).select_related("run").prefetch_related("assignees")
    open_first = rows.annotate(size=Count("items")).order_by(F("done_at").desc(nulls_first=True), "-pk")
    page = listed(request, open_first, 50)
    queues_shown = list(page.object_list)
    people, waiting = paces(queues_shown), waiting_for(person(request), queues_shown)
    lines = [{"queue": queue, "people": people[queue.pk], "open": waiting.get(queue.pk, 0)} for queue in queues_shown]
    own = ReviewLabel.objects.filter(project=project, removed_at=None).order_by("letter")
    context = {"page": page, "lines": lines, "built_in": labels.BUILT_IN, "own": own, "free": labels.FREE}
    return render(request, "review/queues.html", context)


@require_safe
def queue_detail(request: HttpRequest, slug: str, queue_id: int) -> HttpResponse:
    """Progress of each person and how far two agree; that only for those to whom the run's samples are not closed."""
    queue, reader = queue_of(project_for(request, slug), queue_id), person(request)
    waiting = waiting_for(reader, [queue]).get(queue.pk, 0)
    may_judge = reaches(request.membership.role, Role.REVIEWER)  # type: ignore[attr-defined]
    hidden = closed_to(reader, request.membership.role, queue.run_id)  # type: ignore[attr-defined]
    figures = figures_of(queue)
    context = {
        "queue": queue,
        "figures": figures,
        "people": paces([queue])[queue.pk],
        "waiting": waiting if may_judge else 0,
        "hidden": hidden,
        "differing": differing(queue)[:DIFFERING],
        "preference": None if hidden else preference(queue.items.values("sample__group")),
        "help": HELP,
        "words": SampleFilter.parse(QueryDict(queue.query)).words,
    }
    return render(request, "review/queue.html", context)


@require_safe
def queue_next(request: HttpRequest, slug: str, queue_id: int) -> HttpResponse:
    """To the sample that the person has open, else to the next that nobody else is judging."""
    queue = queue_of(project_for(request, slug, at_least=Role.REVIEWER), queue_id)
    item = queues.item_next(queue=queue, actor=person(request))
    if item is None:
        messages.info(request, "No sample of this queue waits for you: all are judged, or others are judging them.")
        return redirect("review_queue", slug, queue_id)
    return redirect("review_item", slug, queue_id, item.number)


@require_safe
def queue_item(request: HttpRequest, slug: str, queue_id: int, number: int) -> HttpResponse:
    item = item_of(request, slug, queue_id, number)
    queues.item_show(item=item, actor=person(request))
    return render(request, "review/queue_item.html", _shown(request, item))


@require_POST
def queue_judge(request: HttpRequest, slug: str, queue_id: int, number: int) -> HttpResponse:
    """Store what a person thinks of a sample. After a verdict the next one is shown, else this one again; htmx gets a
    part of the page."""
    item, actor = item_of(request, slug, queue_id, number), person(request)
    fault = fault_of(request, queues.item_judge, queues.item_undo, item=item, actor=actor)
    before = _own(item, actor)
    stored = "" if fault else stored_words(item.sample, before)
    if "verdict" in request.POST and fault is None:
        following = queues.item_next(queue=item.queue, actor=actor)
        if following is None:
            messages.success(request, "Stored. No further sample of this queue waits for you.")
            return redirect_to(request, "review_queue", slug, queue_id)
        item = item_of(request, slug, queue_id, following.number)
    elif fault is None:
        queues.item_show(item=item, actor=actor)
    if not request.htmx and fault is None:  # type: ignore[attr-defined]
        return redirect("review_item", slug, queue_id, item.number)
    context = _shown(request, item) | {"fault": fault, "stored": stored, "open": True}
    part = "review/_queue_item.html" if request.htmx else "review/queue_item.html"  # type: ignore[attr-defined]
    response = render(request, part, context, status=422 if fault else 200)
    response["HX-Push-Url"] = reverse("review_item", args=[slug, queue_id, item.number])
    return response


@require_POST
def queue_unblind(request: HttpRequest, slug: str, queue_id: int) -> HttpResponse:
    """Give up the blindness of what waits for the person in the queue, and show the run's samples."""
    queue = queue_of(project_for(request, slug, at_least=Role.REVIEWER), queue_id)
    unblind(queue=queue, actor=person(request))
    return redirect_to(request, "run_samples", slug, queue.run_id)


@require_POST
def queue_disagreements(request: HttpRequest, slug: str, queue_id: int) -> HttpResponse:
    """A queue of the samples on which two reviewers differ."""
    queue = queue_of(project_for(request, slug, at_least=Role.REVIEWER), queue_id)
    items = list(differing(queue))
    done = f"A queue of {len(items)} samples is made. Nothing is hidden in it."
    if call_service(request, queues.disagreements_queue, done, queue=queue, differing=items):
        return redirect_to(request, "review_queue_list", slug)
    return redirect_to(request, "review_queue", slug, queue_id)


@require_POST
def label_add(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.REVIEWER)
    letter, word = request.POST.get("letter", ""), request.POST.get("word", "")
    call_service(request, labels.label_add, "The label is added.", project=project, letter=letter, word=word)
    return redirect_to(request, "review_queue_list", slug)


@require_POST
def label_remove(request: HttpRequest, slug: str, label_id: int) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.REVIEWER)
    label = get_object_or_404(ReviewLabel.objects.select_related("project"), project=project, pk=label_id)
    call_service(request, labels.label_remove, f"{label.word} is no longer offered.", label=label)
    return redirect_to(request, "review_queue_list", slug)


def queue_of(project: Project, pk: int) -> ReviewQueue:
    rows = ReviewQueue.objects.select_related("project", "run", "source", "created_by").prefetch_related("assignees")
    return get_object_or_404(rows, project=project, pk=pk)


def item_of(request: HttpRequest, slug: str, queue_id: int, number: int) -> ReviewItem:
    """An item that the person may judge."""
    queue = queue_of(project_for(request, slug, at_least=Role.REVIEWER), queue_id)
    queues.require_reviewer(queue, person(request))
    item = get_object_or_404(queue.items.select_related("sample__group"), number=number)
    item.queue, item.sample.group.run = queue, queue.run
    queue.run.project = queue.project
    return item


def _own(item: ReviewItem, reader: User) -> Annotation | None:
    """What the reader thinks of the sample in this queue."""
    opinions = opinions_of([item.sample], reader, item.queue.project, queue=item.queue)
    own: Annotation | None = opinions[item.sample_id]["own"]
    return own


def _shown(request: HttpRequest, item: ReviewItem) -> dict[str, Any]:
    reader, queue = person(request), item.queue
    own = _own(item, reader)
    size = queue.items.count()
    last = Annotation.objects.filter(queue=queue, by=reader).exclude(sample=item.sample).order_by("-pk").first()
    context: dict[str, Any] = {
        "queue": queue,
        "item": item,
        "sample": item.sample,
        "group": item.sample.group,
        "of": size,
        "earlier": item.number - 1,
        "later": item.number + 1 if item.number < size else None,
        "own": own,
        "others": [],
        "last": last and queue.items.filter(sample=last.sample_id).first(),
        "judge_url": reverse("review_judge", args=[queue.project.slug, queue.pk, item.number]),
        "full": own is None and len(queues.judges_of(item) - {reader.pk}) >= queue.reviewers,
        **form_choices(queue.project),
    }
    if queue.blind or blind_queues(reader, queue.run_id):
        return context
    return context | _judged_by_others(item.sample, reader, queue)


def _judged_by_others(sample: Sample, reader: User, queue: ReviewQueue) -> dict[str, Any]:
    """What a queue that is not blind shows besides: the verifier's score, and what others think."""
    success = queue.run.scored_by.success_of
    return {
        "others": opinions_of([sample], reader, queue.project)[sample.pk]["others"],
        "reward": None if sample.reward is None else short(sample.reward),
        "right": right(sample, success),
    }

"""Two samples of a group next to each other, and which a person thinks better. No answer here holds a reward."""

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from cohort.accounts.models import Role
from cohort.base.formatting import natural
from cohort.review import pairs
from cohort.review.models import Group
from cohort.web.access import form_page, reviewed_run_for
from cohort.web.accounts.views import person


@form_page
def group_pairs(request: HttpRequest, slug: str, run_id: int, group_id: int) -> HttpResponse:
    """The next pair, and a vote on one (POST); htmx gets the part with the pair."""
    run = reviewed_run_for(request, slug, run_id, at_least=Role.REVIEWER)
    group = get_object_or_404(Group, run=run, pk=group_id)
    group.run = run
    sent, fault = request.POST, ""
    if request.method == "POST":
        left, right = natural(sent.get("left")) or 0, natural(sent.get("right")) or 0
        try:
            pairs.pair_vote(group=group, actor=person(request), left=left, right=right, choice=sent.get("choice", ""))
        except ValidationError as error:
            fault = " ".join(error.messages)
        if not fault and not request.htmx:  # type: ignore[attr-defined]
            return redirect("group_pairs", slug, run_id, group_id)
    context = {"run": run, "group": group, "pair": pairs.pair_next(group=group, actor=person(request)), "fault": fault}
    part = "review/_pair.html" if request.htmx else "review/pair.html"  # type: ignore[attr-defined]
    return render(request, part, context, status=422 if fault else 200)

"""Pages of the server's people, for those who manage it: who there is, who may sign in, whose sessions are ended."""

from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts import people
from cohort.accounts.models import User
from cohort.base.storable import storable
from cohort.web.access import call_service, redirect_to, require_manager
from cohort.web.context import listed


@require_safe
def person_list(request: HttpRequest) -> HttpResponse:
    """`q` is a part of a name, `page` a number."""
    require_manager(request, "People of the server")
    wanted = storable(request.GET.get("q", "").strip())
    users = User.objects.annotate(projects_joined=Count("memberships")).order_by("username")
    if wanted:
        users = users.filter(username__icontains=wanted)
    return render(request, "accounts/people.html", {"page": listed(request, users), "wanted": wanted})


@require_safe
def person_detail(request: HttpRequest, user_id: int) -> HttpResponse:
    require_manager(request, "People of the server")
    shown = get_object_or_404(User, pk=user_id)
    context = {"shown": shown, "memberships": shown.memberships.select_related("project").order_by("project__name")}
    return render(request, "accounts/person.html", context)


@require_POST
def person_disable(request: HttpRequest, user_id: int) -> HttpResponse:
    user = _for_change(request, user_id)
    done = f"{user.username} can no longer sign in, and is signed out everywhere."
    call_service(request, people.user_disable, done, user=user)
    return redirect_to(request, "person_detail", user_id)


@require_POST
def person_enable(request: HttpRequest, user_id: int) -> HttpResponse:
    user = _for_change(request, user_id)
    call_service(request, people.user_enable, f"{user.username} can sign in again.", user=user)
    return redirect("person_detail", user_id)


@require_POST
def person_sessions_end(request: HttpRequest, user_id: int) -> HttpResponse:
    user = _for_change(request, user_id)
    call_service(request, people.sessions_end, f"{user.username} is signed out everywhere.", user=user)
    return redirect("person_detail", user_id)


def _for_change(request: HttpRequest, user_id: int) -> User:
    require_manager(request, "People of the server")
    return get_object_or_404(User, pk=user_id)

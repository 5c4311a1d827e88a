"""Pages of sign-in, projects and members. Fetch, authorise, call one service, render."""

import math
from datetime import timedelta
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, UsernameField
from django.contrib.auth.views import LoginView, PasswordChangeView
from django.core.exceptions import ValidationError
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse_lazy
from django.utils.text import slugify
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts import invitations, people, services, sign_in_delays
from cohort.accounts.hashing import HashingBusy
from cohort.accounts.models import Invitation, Membership, Project, Role, User
from cohort.accounts.sign_ins import sign_in_subject
from cohort.web.access import call_service, form_page, project_for
from cohort.web.context import listed
from cohort.web.fields import ServiceForm


class LoginForm(AuthenticationForm):
    error_messages = dict.fromkeys(
        ("invalid_login", "inactive"), "Name or password is wrong. Both are case-sensitive."
    )  # Django's own attribute, read only

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = "User name"
        self.wait = timedelta(0)
        """How long this sign-in is refused still, whatever the password."""

    def clean(self) -> dict[str, Any]:
        assert self.request is not None  # SignIn gives it
        name, address = self.cleaned_data.get("username"), self.request.META["REMOTE_ADDR"]
        if not name or "password" not in self.cleaned_data:
            return self.cleaned_data
        try:
            counted = sign_in_delays.count_sign_in(name=name, address=address)
        except sign_in_delays.SignInDelayed as delayed:
            self.wait = delayed.wait
            raise ValidationError("Sign-in is delayed after failures.", code="delayed") from None
        try:
            cleaned: dict[str, Any] = super().clean()
        except Exception as error:
            if isinstance(error, ValidationError) and not isinstance(error, HashingBusy):
                sign_in_delays.record_failure(counted, subject=sign_in_subject(name))
            else:  # too many wait, or the server is at fault: the password was not checked
                sign_in_delays.withdraw(counted)
            raise
        sign_in_delays.record_success(counted)
        return cleaned


class SignIn(LoginView):
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        assert isinstance(form, LoginForm)
        if not form.wait:
            return super().form_invalid(form)
        seconds = math.ceil(form.wait.total_seconds())
        context = {"username": form.cleaned_data["username"], "seconds": seconds}
        response = render(self.request, "registration/delayed.html", context, status=429)
        response["Retry-After"] = str(seconds)
        return response


class ProjectForm(ServiceForm):
    name = forms.CharField(max_length=120, help_text="What people call the project.")
    slug = forms.SlugField(
        max_length=60,
        required=False,
        label="URL name",
        error_messages={"invalid": "Use letters without accents, digits and hyphens only."},
        help_text="Part of the project's web address: small letters, digits, hyphens. Empty: made from the name.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "name" not in cleaned or "slug" in self.errors:
            return cleaned
        slug = (cleaned.get("slug") or slugify(cleaned["name"]))[:60].lower()
        if not slug:
            self.add_error("slug", "No URL name can be made from this name. Give one: small letters, digits, hyphens.")
        elif Project.objects.filter(slug=slug).exists():
            self.add_error("slug", f"The URL name {slug} is taken. Choose another.")
        cleaned["slug"] = slug
        return cleaned


class InvitationForm(ServiceForm):
    username = UsernameField(max_length=150, label="User name", help_text="The name they sign in with, case-sensitive.")
    role = forms.ChoiceField(choices=Role.choices, initial=Role.VIEWER)


def person(request: HttpRequest) -> User:
    """The signed-in person; LoginRequiredMiddleware guarantees that there is one."""
    return cast("User", request.user)


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Straight to the only project, else to the list of projects, which shows invitations too."""
    memberships = list(services.projects_of(person(request))[:2])
    if len(memberships) == 1 and not invitations.invitations_for(person(request)).exists():
        return redirect("project_home", memberships[0].project.slug)
    return redirect("project_list")


@require_safe
def project_list(request: HttpRequest) -> HttpResponse:
    user = person(request)
    context = {
        "memberships": listed(request, services.projects_of(user)),
        "invitations": invitations.invitations_for(user),
    }
    return render(request, "accounts/projects.html", context)


@require_POST
def invitation_answer(request: HttpRequest, invitation_id: int) -> HttpResponse:
    """`answer` is accept or decline. An invitation to somebody else is answered like one that does not exist."""
    user = person(request)
    invitation = invitations.invitations_for(user).filter(pk=invitation_id).first()
    if invitation is None:
        messages.error(request, "This invitation is no longer open. An admin of the project can send another.")
        return redirect("project_list")
    project, accepts = invitation.project, request.POST.get("answer") == "accept"
    if not accepts:
        done = f"You declined the invitation to {project.name}."
        call_service(request, invitations.invitation_decline, done, invitation=invitation)
        return redirect("project_list")
    done = f"You belong to {project.name} now, as {invitation.role}."
    accepted = call_service(request, invitations.invitation_accept, done, invitation=invitation)
    return redirect("project_home", project.slug) if accepted else redirect("project_list")


@form_page
def project_new(request: HttpRequest) -> HttpResponse:
    """Anyone signed in may open a project, and becomes its admin."""
    form = ProjectForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        project = form.call(services.project_create, owner=person(request), **form.cleaned_data)
        if project:
            messages.success(request, f"Project {project.name} made. You are its admin.")
            return redirect("project_home", project.slug)
    return render(request, "accounts/project_new.html", {"form": form}, status=form.status)


@require_safe
def project_counts(request: HttpRequest, slug: str) -> HttpResponse:
    """The sidebar's live numbers; polled by every page."""
    project_for(request, slug)
    return render(request, "partials/_counts.html")


@form_page
def member_list(request: HttpRequest, slug: str) -> HttpResponse:
    """Everyone in the project may see its members; an admin invites people, and sees who has not answered yet."""
    project = project_for(request, slug, at_least=Role.ADMIN if request.method == "POST" else Role.VIEWER)
    form = InvitationForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        given = {"project": project, "actor": person(request), **form.cleaned_data}
        if invitation := form.call(invitations.invitation_make, **given):
            messages.success(
                request, f"{invitation.username} is invited, as {invitation.role}, and accepts after signing in."
            )
            return redirect("member_list", slug)
    context = {
        "members": listed(request, services.members_of(project)),
        "invitations": invitations.open_invitations().filter(project=project),
        "open_days": invitations.OPEN_FOR.days,
        "form": form,
        "roles": Role.choices,
    }
    return render(request, "accounts/members.html", context, status=form.status)


@require_POST
def invitation_withdraw(request: HttpRequest, slug: str, invitation_id: int) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.ADMIN)
    invitation = get_object_or_404(Invitation.objects.select_related("project"), project=project, pk=invitation_id)
    done = f"The invitation of {invitation.username} is withdrawn."
    call_service(request, invitations.invitation_withdraw, done, invitation=invitation)
    return redirect("member_list", slug)


@require_POST
def member_role(request: HttpRequest, slug: str, membership_id: int) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.ADMIN)
    membership = get_object_or_404(Membership.objects.select_related("user"), project=project, pk=membership_id)
    role = request.POST.get("role", "")
    if role in Role.values:
        user, done = membership.user, f"{membership.user.username} is now {role}."
        call_service(request, services.membership_set, done, project=project, user=user, role=role)
    else:
        messages.error(request, f"Nothing was changed: the role must be one of {', '.join(Role.values)}.")
    return redirect("member_list", slug)


@form_page
def member_remove(request: HttpRequest, slug: str, membership_id: int) -> HttpResponse:
    """GET asks for confirmation; POST removes."""
    project = project_for(request, slug, at_least=Role.ADMIN)
    membership = get_object_or_404(Membership.objects.select_related("user"), project=project, pk=membership_id)
    if request.method != "POST":
        return render(request, "accounts/member_remove.html", {"member": membership})
    user, done = membership.user, f"{membership.user.username} no longer belongs to {project.name}."
    removed = call_service(request, services.membership_remove, done, project=project, user=user)
    return redirect("home") if removed and user == request.user else redirect("member_list", slug)


class PasswordChange(PasswordChangeView):
    template_name = "registration/password_change.html"
    success_url = reverse_lazy("home")

    def form_valid(self, form: PasswordChangeForm) -> HttpResponse:
        try:
            services.password_change(user=person(self.request), password=form.cleaned_data["new_password1"])
        except HashingBusy as error:
            form.add_error(None, error)
            return self.form_invalid(form)
        update_session_auth_hash(self.request, person(self.request))  # this browser stays signed in, others do not
        messages.success(self.request, "Your password is changed.")
        return HttpResponseRedirect(self.get_success_url())


@require_POST
def other_sessions_end(request: HttpRequest) -> HttpResponse:
    """Sign the person out in every other browser."""
    user = person(request)
    people.sessions_end(user=user, actor=user)
    update_session_auth_hash(request, user)
    messages.success(request, "You are signed out everywhere but here.")
    return redirect("password_change")


@login_not_required
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Whether the server answers and reaches its database; for load balancers and `cohort up`."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"status": "ok"})

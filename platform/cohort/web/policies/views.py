"""The policy of a project: its text, edited by admins; its versions, each with the difference from the one before."""

from functools import cache
from importlib import resources
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Project, Role
from cohort.evidence.policy.figures import FIGURES
from cohort.evidence.policy.kinds import KINDS
from cohort.evidence.policy.text import MOST_BYTES, parse_policy
from cohort.records.models import PolicyVersion
from cohort.records.policies.services import policy_save, policy_versions, policy_withdraw
from cohort.web.access import call_service, file_response, form_page, project_for
from cohort.web.accounts.views import person
from cohort.web.catalog.reward_versions import source_lines
from cohort.web.context import listed
from cohort.web.fields import ServiceForm


@cache
def default_text() -> str:
    """The policy that a project may start from."""
    return (resources.files("cohort.records.policies") / "default.yaml").read_text(encoding="utf-8")


class PolicyForm(ServiceForm):
    text = forms.CharField(
        label="Rules",
        help_text=f"YAML or JSON, cohort-policy/1. At most {MOST_BYTES // 1024} KiB.",
        strip=False,
        widget=forms.Textarea(attrs={"rows": 24, "spellcheck": "false"}),
    )
    demanded = forms.BooleanField(
        required=False,
        label="Demanded before a record may be public",
        help_text="A public page is refused, with the rules that fail or cannot be judged. Pages that are public stay.",
    )
    reason = forms.CharField(label="Why", max_length=1000, help_text="Kept with the version and in the audit log.")
    seen = forms.IntegerField(widget=forms.HiddenInput, min_value=0)
    """Number of the version that the page showed."""


@form_page
def policy_page(request: HttpRequest, slug: str) -> HttpResponse:
    """GET shows it to every member; POST adds a version."""
    project = project_for(request, slug, at_least=Role.ADMIN if request.method == "POST" else Role.VIEWER)
    newest = policy_versions(project).first()
    form = PolicyForm(request.POST) if request.method == "POST" else PolicyForm(initial=_initial(newest))
    if request.method == "POST" and form.is_valid():
        version = form.call(policy_save, project=project, actor=person(request), **form.cleaned_data)
        if version is not None:
            messages.success(request, f"Version {version.number} of the policy is saved and in force.")
            return redirect("policy_page", slug)
    return _page(request, project, newest, form)


def _initial(newest: PolicyVersion | None) -> dict[str, Any]:
    if newest is None or not newest.text:
        return {"text": default_text(), "seen": newest.number if newest else 0}
    return {"text": newest.text, "demanded": newest.demanded, "seen": newest.number}


def _page(request: HttpRequest, project: Project, newest: PolicyVersion | None, form: PolicyForm) -> HttpResponse:
    in_force = newest if newest is not None and newest.text else None
    context = {
        "newest": newest,
        "in_force": in_force,
        "policy": parse_policy(in_force.text) if in_force is not None else None,
        "versions": listed(request, policy_versions(project)),
        "form": form,
        "kinds": KINDS.values(),
        "figures": FIGURES,
    }
    return render(request, "policies/policy.html", context, status=form.status)


@require_POST
def policy_end(request: HttpRequest, slug: str) -> HttpResponse:
    """Withdraw the policy: records are judged by none from now on."""
    project = project_for(request, slug, at_least=Role.ADMIN)
    seen = request.POST.get("seen", "")
    given = {"reason": request.POST.get("reason", ""), "seen": int(seen) if seen.isdecimal() and len(seen) < 9 else 0}
    done = "The policy is withdrawn. Its versions stay."
    call_service(request, policy_withdraw, done, refused="Nothing was changed: ", project=project, **given)
    return redirect("policy_page", slug)


@require_safe
def policy_version(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """A version with what it changed."""
    version = _version(project_for(request, slug), number)
    before = policy_versions(version.project).filter(number=number - 1).first()
    context = {
        "version": version,
        "before": before,
        "lines": list(source_lines(before.text if before else "", version.text)),
    }
    return render(request, "policies/version.html", context)


@require_safe
def policy_file(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    version = _version(project_for(request, slug), number)
    if not version.text:
        raise Http404("this version withdrew the policy")
    return file_response(version.text, "application/yaml", f"policy-{slug}-{number}.yaml")


def _version(project: Project, number: int) -> PolicyVersion:
    return get_object_or_404(policy_versions(project).select_related("project"), number=number)

"""Rules of a project: listed for all, added and changed by operators, each with the channels that carry its alerts."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Project, Role
from cohort.alerts import rules
from cohort.alerts.channels import channels_of
from cohort.alerts.models import AlertChannel, AlertRule, Condition
from cohort.runs.search.fields import short_names
from cohort.web.access import call_service, form_page, project_for, redirect_to
from cohort.web.accounts.views import person
from cohort.web.fields import ServiceForm


class RuleForm(ServiceForm):
    name = forms.CharField(max_length=80, help_text="What its alerts are listed under.")
    condition = forms.ChoiceField(choices=Condition.choices, label="When")
    causes = forms.CharField(
        required=False,
        max_length=2000,
        help_text="Of faults that the trainer reports: their codes, with commas between them, as cut_off, ruined "
        "(docs/monitors.md). Empty: any of them.",
    )
    query = forms.CharField(
        required=False,
        max_length=2000,
        label="Search",
        help_text="Of a rule by a search: as in the list of runs, such as reward<0.1 step>20. It is made again every "
        "few seconds, of runs that are live and of those that end from now on.",
    )
    channels = forms.ModelMultipleChoiceField(
        queryset=AlertChannel.objects.none(),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Without one, alerts are on the desk alone.",
        error_messages={"invalid_choice": "One of these is no channel of this project."},
    )
    enabled = forms.BooleanField(required=False, initial=True, label="Switched on")

    def __init__(self, *args: Any, project: Project, rule: AlertRule | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        field = self.fields["channels"]
        assert isinstance(field, forms.ModelMultipleChoiceField)
        field.queryset = channels_of(project)
        if rule is not None:
            del self.fields["condition"]
            if rule.condition != Condition.DIAGNOSIS:
                del self.fields["causes"]
            if rule.condition != Condition.SEARCH:
                del self.fields["query"]

    def clean_causes(self) -> list[str]:
        try:
            return rules.causes_of(self.cleaned_data["causes"])
        except ValidationError as error:
            raise ValidationError(error.messages) from None


@require_safe
def rule_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    return render(request, "alerts/rules.html", {"rules": rules.rules_of(project)})


@form_page
def rule_new(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    form = RuleForm(request.POST if request.method == "POST" else None, project=project)
    if request.method == "POST" and form.is_valid():
        rule = form.call(rules.rule_create, project=project, actor=person(request), **form.cleaned_data)
        if rule:
            messages.success(request, f"The rule {rule.name} is added.")
            return redirect("alert_rule_list", slug)
    return _form_page(request, form, None)


@form_page
def rule_edit(request: HttpRequest, slug: str, rule_id: int) -> HttpResponse:
    rule = _rule(request, slug, rule_id)
    first = {
        "name": rule.name,
        "causes": ", ".join(rule.causes),
        "query": rule.query,
        "channels": [channel.pk for channel in rule.channels.all()],
        "enabled": rule.enabled,
    }
    sent = request.POST if request.method == "POST" else None
    form = RuleForm(sent, project=rule.project, rule=rule, initial=first)
    if request.method == "POST" and form.is_valid():
        form.call(rules.rule_change, rule=rule, actor=person(request), **form.cleaned_data)
        if form.is_valid():
            messages.success(request, f"The rule {rule.name} is saved.")
            return redirect("alert_rule_list", slug)
    return _form_page(request, form, rule)


@require_POST
def rule_remove(request: HttpRequest, slug: str, rule_id: int) -> HttpResponse:
    rule = _rule(request, slug, rule_id)
    call_service(request, rules.rule_remove, f"The rule {rule.name} is removed. Its alerts stay.", rule=rule)
    return redirect_to(request, "alert_rule_list", slug)


def _rule(request: HttpRequest, slug: str, rule_id: int) -> AlertRule:
    project = project_for(request, slug, at_least=Role.OPERATOR)
    return get_object_or_404(rules.rules_of(project).select_related("project"), pk=rule_id)


def _form_page(request: HttpRequest, form: RuleForm, rule: AlertRule | None) -> HttpResponse:
    context = {"form": form, "rule": rule, "fields": short_names().values()}
    return render(request, "alerts/rule_form.html", context, status=form.status)

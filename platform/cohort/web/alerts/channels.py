"""Channels of a project: listed for all, with their addresses masked; made, changed and tested by its admins."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from cohort.accounts.models import Role
from cohort.accounts.people import manages_server
from cohort.alerts import channels, delivery
from cohort.alerts.models import AlertChannel, ChannelKind
from cohort.web.access import call_service, form_page, project_for, redirect_to
from cohort.web.accounts.views import person
from cohort.web.fields import ServiceForm


class ChannelForm(ServiceForm):
    name = forms.CharField(max_length=60)
    kind = forms.ChoiceField(choices=ChannelKind.choices)
    address = forms.CharField(
        max_length=channels.LONGEST_ADDRESS,
        help_text="Of a webhook: the web address that is called, as https://example.org/hooks/cohort. Of e-mail: one "
        "address, as team@example.org.",
    )
    private = forms.BooleanField(
        required=False,
        label="May reach private addresses",
        help_text="Of this machine, of a private network, of a cloud’s metadata. Only who manages the server may allow "
        "it, as the call comes from within this network.",
    )
    enabled = forms.BooleanField(required=False, initial=True, label="Switched on")

    def __init__(self, *args: Any, manager: bool, channel: AlertChannel | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.fields["private"].disabled = not manager
        if channel is not None:
            del self.fields["kind"]
            if channel.kind == ChannelKind.EMAIL:
                del self.fields["private"]


@require_safe
def channel_list(request: HttpRequest, slug: str) -> HttpResponse:
    project = project_for(request, slug)
    listed = list(channels.channels_of(project).prefetch_related("rules"))
    waits = any(channel.test_requested_at for channel in listed)
    template = "alerts/_channels.html" if request.htmx else "alerts/channels.html"  # type: ignore[attr-defined]
    return render(request, template, {"channels": listed, "waits": waits})


@form_page
def channel_new(request: HttpRequest, slug: str) -> HttpResponse:
    """A webhook is answered by the page with its secret, which is not shown again."""
    project = project_for(request, slug, at_least=Role.ADMIN)
    form = ChannelForm(request.POST if request.method == "POST" else None, manager=manages_server(person(request)))
    if request.method == "POST" and form.is_valid():
        channel = form.call(channels.channel_create, project=project, actor=person(request), **form.cleaned_data)
        if channel is not None and channel.kind == ChannelKind.WEBHOOK:
            return render(request, "alerts/secret.html", {"channel": channel, "made": True}, status=201)
        if channel is not None:
            messages.success(request, f"The channel {channel.name} is added. Give it to a rule, and send a test.")
            if not settings.EMAIL_HOST:
                messages.warning(request, f"Nothing is sent by it yet. {delivery.NO_EMAIL}")
            return redirect("alert_channel_list", slug)
    return render(request, "alerts/channel_form.html", {"form": form, "channel": None}, status=form.status)


@form_page
def channel_edit(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    channel = _channel(request, slug, channel_id)
    first = {name: getattr(channel, name) for name in ("name", "address", "private", "enabled")}
    sent = request.POST if request.method == "POST" else None
    form = ChannelForm(sent, manager=manages_server(person(request)), channel=channel, initial=first)
    if request.method == "POST" and form.is_valid():
        form.call(channels.channel_change, channel=channel, actor=person(request), **form.cleaned_data)
        if form.is_valid():
            messages.success(request, f"The channel {channel.name} is saved.")
            return redirect("alert_channel_list", slug)
    return render(request, "alerts/channel_form.html", {"form": form, "channel": channel}, status=form.status)


@require_POST
def channel_test(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    """The list shows what the receiver answers."""
    channel = _channel(request, slug, channel_id)
    done = f"A test of {channel.name} is requested. What the receiver answers is shown below."
    call_service(request, delivery.channel_test_request, done, channel=channel)
    return redirect("alert_channel_list", slug)


@require_POST
def channel_secret(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    """Another secret, on the page that shows it once."""
    channel = _channel(request, slug, channel_id)
    if not call_service(request, channels.channel_secret_renew, f"{channel.name} has another secret.", channel=channel):
        return redirect("alert_channel_list", slug)
    return render(request, "alerts/secret.html", {"channel": channel, "made": False})


@require_POST
def channel_remove(request: HttpRequest, slug: str, channel_id: int) -> HttpResponse:
    channel = _channel(request, slug, channel_id)
    call_service(request, channels.channel_remove, f"The channel {channel.name} is removed.", channel=channel)
    return redirect_to(request, "alert_channel_list", slug)


def _channel(request: HttpRequest, slug: str, channel_id: int) -> AlertChannel:
    project = project_for(request, slug, at_least=Role.ADMIN)
    return get_object_or_404(channels.channels_of(project).select_related("project"), pk=channel_id)

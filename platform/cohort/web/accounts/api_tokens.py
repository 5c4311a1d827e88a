"""A person's own API tokens: listed, made, shown once, revoked."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone

from cohort.accounts import api_tokens
from cohort.accounts.models import ApiScope, ApiToken
from cohort.web.access import form_page
from cohort.web.accounts.views import person
from cohort.web.context import listed
from cohort.web.fields import ServiceForm


class TokenForm(ServiceForm):
    name = forms.CharField(max_length=api_tokens.NAME_CHARS, help_text="What uses it, such as the name of a script.")
    scope = forms.ChoiceField(
        choices=ApiScope.choices,
        initial=ApiScope.READ,
        help_text="Read: fetches runs, and checks one without making it. Launch: also makes and launches runs.",
    )
    days = forms.IntegerField(
        min_value=1,
        max_value=api_tokens.MAX_DAYS,
        initial=api_tokens.DEFAULT_DAYS,
        label="Days until it expires",
        help_text=f"At most {api_tokens.MAX_DAYS}.",
    )


@form_page
def token_list(request: HttpRequest) -> HttpResponse:
    """A valid form is answered by the page with the token, which is not stored and cannot be shown again."""
    user, form = person(request), TokenForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        created = form.call(api_tokens.api_token_create, user=user, **form.cleaned_data)
        if created:
            token, text = created
            server = request.build_absolute_uri("/").rstrip("/")
            context = {"token": token, "text": text, "server": server}
            return render(request, "accounts/token.html", context, status=201)
    context = {
        "tokens": listed(request, ApiToken.objects.filter(user=user)),
        "now": timezone.now(),
        "form": form,
        "most": api_tokens.MOST,
    }
    return render(request, "accounts/tokens.html", context, status=form.status)


@form_page
def token_revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """GET asks for confirmation; POST revokes. A token of somebody else is answered like one that does not exist."""
    token = get_object_or_404(ApiToken.objects.select_related("user"), user=person(request), pk=token_id)
    if request.method != "POST":
        return render(request, "accounts/token_revoke.html", {"token": token})
    api_tokens.api_token_revoke(token=token, actor=person(request))
    messages.success(request, f"{token.name} is revoked: it is refused from now on.")
    return redirect("api_token_list")

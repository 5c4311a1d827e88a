"""Forms of sign-in, projects and members."""

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.utils.text import slugify

from cohort.accounts.models import Project, Role, User
from cohort.accounts.selectors import person_named

# Addresses that are words of the URLconf, or would read as if they were.
RESERVED_SLUGS = {"new", "api", "static", "login", "logout"}


class LoginForm(AuthenticationForm):
    error_messages = {  # noqa: RUF012  Django's own attribute, read only
        "invalid_login": "Name or password is wrong. Both are case-sensitive.",
        "inactive": "Name or password is wrong. Both are case-sensitive.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = "Name"


class ProjectForm(forms.Form):
    name = forms.CharField(max_length=120, help_text="What people call the project.")
    slug = forms.SlugField(
        max_length=60,
        required=False,
        label="Address",
        help_text="Part of the project's web address: small letters, digits, hyphens. Empty: made from the name.",
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "name" not in cleaned or "slug" in self.errors:
            return cleaned
        slug = (cleaned.get("slug") or slugify(cleaned["name"]))[:60].lower()
        if not slug:
            self.add_error("slug", "No address can be made from this name. Give one: small letters, digits, hyphens.")
        elif slug in RESERVED_SLUGS:
            self.add_error("slug", f"The address {slug} is used by Cohort itself. Choose another.")
        elif Project.objects.filter(slug=slug).exists():
            self.add_error("slug", f"The address {slug} is taken. Choose another.")
        cleaned["slug"] = slug
        return cleaned


class MemberForm(forms.Form):
    username = forms.CharField(max_length=150, label="Name", help_text="The name they sign in with.")
    role = forms.ChoiceField(choices=Role.choices, initial=Role.VIEWER)

    def clean_username(self) -> User:
        name = self.cleaned_data["username"]
        user = person_named(name)
        if user is None:
            raise ValidationError(
                f"Nobody signs in as {name}. Names are case-sensitive; the person running the server adds people "
                "with `cohort user`."
            )
        return user


class RoleForm(forms.Form):
    role = forms.ChoiceField(choices=Role.choices)

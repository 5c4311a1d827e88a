"""All addresses of the platform.

Everything of a project lies below p/<slug>/, so that one look at an address says whose it is and `access.project_for`
can decide. Only sign-in, the health check, static files and the worker API (which has its own tokens) are open to
people who are not signed in; tests/web/test_access.py walks this list.
"""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import URLPattern, URLResolver, include, path

from cohort.accounts import views as accounts
from cohort.accounts.forms import LoginForm

_project: list[URLPattern | URLResolver] = [
    path("", include("cohort.accounts.urls")),
    path("nodes/", include("cohort.runs.nodes_urls")),
    path("", include("cohort.runs.urls")),
    path("", include("cohort.catalog.urls")),
    path("", include("cohort.governance.urls")),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", accounts.home, name="home"),
    path("login/", LoginView.as_view(authentication_form=LoginForm, redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(http_method_names=["post", "options"]), name="logout"),
    path("password/", accounts.PasswordChange.as_view(), name="password_change"),
    path("projects/", accounts.project_list, name="project_list"),
    path("projects/new/", accounts.project_new, name="project_new"),
    path("p/<slug:slug>/", include(_project)),
    path("api/worker/v1/", include("cohort.worker_api.urls")),
    path("healthz", accounts.healthz, name="healthz"),
]

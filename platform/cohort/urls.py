"""All addresses of the platform.

Everything of a project lies below p/<slug>/, so that one look at an address says whose it is and `access.project_for`
can decide. Only sign-in, the health check, static files, the check of a card, the audit log's signed heads,
records' public pages (by tokens that cannot be guessed) and the worker API (which has its own) are open to people who
are not signed in; tests/web/test_access.py walks this list.
"""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import URLPattern, URLResolver, include, path

from cohort.web.accounts import views as accounts
from cohort.web.accounts.forms import LoginForm
from cohort.web.records import verify_page

_project: list[URLPattern | URLResolver] = [
    path("", include("cohort.web.accounts.urls")),
    path("nodes/", include("cohort.web.nodes.urls")),
    path("audit/", include("cohort.web.audit.urls")),
    path("", include("cohort.web.runs.urls")),
    path("", include("cohort.web.catalog.urls")),
    path("", include("cohort.web.lab.urls")),
    path("", include("cohort.web.records.urls")),
    path("", include("cohort.web.traces.urls")),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", accounts.home, name="home"),
    path("login/", LoginView.as_view(authentication_form=LoginForm, redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(http_method_names=["post", "options"]), name="logout"),
    path("password/", accounts.PasswordChange.as_view(), name="password_change"),
    path("projects/", accounts.project_list, name="project_list"),
    path("projects/new/", accounts.project_new, name="project_new"),
    path("p/<slug:slug>/", include(_project)),
    path("log/", include("cohort.web.audit.log_urls")),
    path("verify/", verify_page.verify_page, name="verify_page"),
    path("verify/verify.pyz", verify_page.verify_pyz, name="verify_pyz"),
    path("c/", include("cohort.web.after_seal.public_urls")),
    path("api/worker/v1/", include("cohort.worker_api.urls")),
    path("healthz", accounts.healthz, name="healthz"),
]

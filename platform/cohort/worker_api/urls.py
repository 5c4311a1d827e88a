"""Addresses of the worker API, to be included at `api/worker/v1/`.

Workers carry bearer tokens, not browser sessions: every view is exempt from LoginRequiredMiddleware, and ninja has
already exempted it from CSRF.
"""

from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, path

from cohort.worker_api.api import api
from cohort.worker_api.records import records

app_name = "worker_api"
urlpatterns = [
    path("attempts/<int:attempt_id>/records", records, name="records"),
    *(pattern for pattern in api.urls[0] if isinstance(pattern, URLPattern) and pattern.name != "api-root"),
]
for _pattern in urlpatterns:
    assert _pattern.callback is not None
    login_not_required(_pattern.callback)

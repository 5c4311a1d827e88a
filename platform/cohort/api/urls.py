"""Addresses of the public API, to be included at `api/v1/`.

Calls carry personal tokens, not browser sessions: every view is exempt from LoginRequiredMiddleware, and ninja has
already exempted it from CSRF.
"""

from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern

from cohort.api.views import api

app_name = "api"
urlpatterns = [
    pattern for pattern in api.urls[0] if isinstance(pattern, URLPattern) and pattern.name not in ("api-root",)
]
for _pattern in urlpatterns:
    assert _pattern.callback is not None
    login_not_required(_pattern.callback)

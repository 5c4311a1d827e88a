"""Refuses a request's body that is too large before anything reads it.

The check for a forged form (CSRF) reads the whole body, and spools uploaded files to disk, before the user's role is
looked at. So the length that the browser states is checked first; the web server reads no more than that length.
"""

import re
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import Resolver404, resolve, reverse

from cohort.catalog.suites import MAX_SUITE_BYTES
from cohort.evaluations.imports.bounds import MAX_UPLOAD_BYTES

FORM_BYTES = 1024 * 1024
"""Every form without an upload; the largest is a run's config."""
MAX_CARD_BYTES = 64 * 1024 * 1024
"""Of each of the two cards that the page for checking takes; larger ones are for the command."""
MAX_STATEMENT_BYTES = 15 * 1024 * 1024
"""Far more than a statement may hold: a text that is too long comes back in its form, with the reason."""
OVERHEAD_BYTES = 1024 * 1024
"""What an upload's other fields and separators may take."""

WORKERS = "/api/worker/"  # has limits of its own, per call


class BodyLimit:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith(WORKERS):
            return self.get_response(request)
        if "HTTP_TRANSFER_ENCODING" in request.META:
            return _refusal(411, "The length is missing", "A form must be sent with its length (Content-Length).")
        stated = request.META.get("CONTENT_LENGTH") or "0"
        limit = _limit(request)
        if not re.fullmatch(r"[0-9]{1,18}", stated) or int(stated) > limit:
            text = f"This address takes at most {limit:,} bytes, with all that the form holds."
            if request.path_info == reverse("verify_page"):
                text += " Check a larger card on your own machine: `cohort verify CARD.zip`."
            return _refusal(413, "Too much was sent", text)
        return self.get_response(request)


def _limit(request: HttpRequest) -> int:
    try:
        name = resolve(request.path_info).url_name
    except Resolver404:
        return FORM_BYTES
    uploads = {
        "dataset_new": settings.COHORT_MAX_DATASET_BYTES,
        "suite_new": MAX_SUITE_BYTES,
        "suite_version_new": MAX_SUITE_BYTES,
        "run_import": MAX_UPLOAD_BYTES,
        "run_statements": MAX_STATEMENT_BYTES,
        "verify_page": 2 * MAX_CARD_BYTES,
    }
    return uploads[name] + OVERHEAD_BYTES if name in uploads else FORM_BYTES


def _refusal(status: int, title: str, text: str) -> HttpResponse:
    return HttpResponse(render_to_string("413.html", {"title": title, "text": text}), status=status)

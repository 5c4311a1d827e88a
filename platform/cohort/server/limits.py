"""How large the body of a request may be, for each address.

The web server decides by it at the headers, before a body is read; `cohort.web.access.BodyLimit` refuses
with the reason, and does so under any other server too.
"""

from typing import Final

from django.conf import settings
from django.urls import Resolver404, resolve

from cohort.catalog.suites import MAX_SUITE_BYTES
from cohort.evaluations.imports.bounds import MAX_UPLOAD_BYTES
from cohort.review.imports.rows import MAX_IMPORT_BYTES

WORKERS: Final = "/api/worker/"
"""Addresses of the worker API begin so."""
API: Final = "/api/v1/"
"""Addresses of the public API begin so."""
FORM_BYTES = 1024 * 1024
"""Every address without a limit below; the largest form is a run's config."""
MAX_CARD_BYTES = 64 * 1024 * 1024
"""Of each of the two cards that the page for checking takes; larger ones are for the command."""
MAX_STATEMENT_BYTES = 15 * 1024 * 1024
"""Far more than a statement may hold: its form shows a text that is too long again, with the reason."""
OVERHEAD_BYTES = 1024 * 1024
"""What an upload's other fields and separators may take."""


def body_limit(path: str) -> int:
    """Most bytes that a body sent to this path may have, by any method."""
    try:
        name = resolve(path).view_name
    except Resolver404:
        return FORM_BYTES
    return larger_limits().get(name, FORM_BYTES)


def larger_limits() -> dict[str, int]:
    """Most bytes of a body, by the name of the view; only those above FORM_BYTES."""
    uploads = {
        "dataset_new": settings.COHORT_MAX_DATASET_BYTES,
        "suite_new": MAX_SUITE_BYTES,
        "suite_version_new": MAX_SUITE_BYTES,
        "run_import": MAX_UPLOAD_BYTES,
        "imported_run_new": MAX_IMPORT_BYTES,
        "run_statements": MAX_STATEMENT_BYTES,
        "standing_answers": MAX_STATEMENT_BYTES,
        "verify_page": 2 * MAX_CARD_BYTES,
    }
    of_workers = ("records", "uploads", "requested_uploads", "job_finished", "job_scores")
    calls = {f"worker_api:{name}": settings.DATA_UPLOAD_MAX_MEMORY_SIZE for name in of_workers}
    return {name: limit + OVERHEAD_BYTES for name, limit in uploads.items()} | calls

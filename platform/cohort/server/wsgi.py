"""Entry point of the web server."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "cohort.settings")
_pages = get_wsgi_application()

from cohort.base.environment import environment  # noqa: E402  after Django, as what follows
from cohort.server.serves import Serves  # noqa: E402
from cohort.worker_api.records import RecordsFirst  # noqa: E402  its models need Django set up

application = Serves(environment().serves, RecordsFirst(_pages))

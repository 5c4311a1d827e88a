"""Content-Security-Policy for the pages that need more than the settings allow.

Only pages with charts do: the chart library writes style attributes and fills one empty style element through CSSOM.
Scripts stay as strict as everywhere.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from csp.constants import SELF
from csp.decorators import csp_update
from django.conf import settings
from django.http import HttpResponseBase

PLOTLY_MAP_STYLE = "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='"
"""A fixed style element that plotly 7.1's map code adds as it loads; no chart of ours needs it, but each refusal would
be a line in the browser's console that could hide a real one."""

P = ParamSpec("P")
R = TypeVar("R", bound=HttpResponseBase)


def charts_csp(view: Callable[P, R]) -> Callable[P, R]:
    """Decorator for a view whose page draws charts."""
    decorate: Any = csp_update(
        {
            "style-src-elem": [SELF, settings.PLOTLY_EMPTY_STYLE, PLOTLY_MAP_STYLE],
            "style-src-attr": ["'unsafe-inline'"],
            "img-src": ["blob:"],
        }
    )
    return cast("Callable[P, R]", decorate(view))

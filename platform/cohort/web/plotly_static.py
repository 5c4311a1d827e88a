"""Serves the chart library out of its Python package as static/plotly/plotly.min.js, so that nothing third-party lies
in this repository and the static files' hashing, compression and caching hold for it too.
"""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.files.storage import FileSystemStorage

NAME = "plotly.min.js"
PREFIX = "plotly"


class PlotlyFinder(BaseFinder):
    """Finds one file. The package itself is not imported: that would cost a second at start."""

    def __init__(self, app_names: Iterable[str] | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        spec = find_spec("plotly")
        assert spec is not None, "plotly is among the platform's dependencies"
        assert spec.origin is not None
        self.storage = FileSystemStorage(location=Path(spec.origin).parent / "package_data")
        self.storage.prefix = PREFIX  # type: ignore[attr-defined]

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        if path != f"{PREFIX}/{NAME}":
            return []
        location = self.storage.path(NAME)
        return [location] if find_all else location

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[tuple[str, FileSystemStorage]]:
        yield NAME, self.storage

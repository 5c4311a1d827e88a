"""Where the platform runs for a benchmark: a folder, a PostgreSQL in it, and the environment of its processes."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cohort.cli.embedded.postgres import Postgres


@contextmanager
def database(*options: str, keep: Path | None = None) -> Iterator[tuple[Path, Postgres]]:
    """(a folder, a PostgreSQL that runs in it with these further options). The folder is empty and removed when the
    block ends, or `keep`, with what is in it and stays."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="cohort-bench-"))
    else:
        folder = keep.resolve()
        folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # where this is root, the database runs as another user
    postgres = Postgres(folder / "pg", folder / "pg.log", options=options)
    try:
        postgres.start()
        yield folder, postgres
    finally:
        postgres.stop()
        if keep is None:
            shutil.rmtree(folder)


def platform_environment(home: Path, database_url: str) -> dict[str, str]:
    """Variables of the platform's processes, without those COHORT_… that this process has."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("COHORT_")},
        "DJANGO_SETTINGS_MODULE": "cohort.settings",
        "COHORT_MODE": "embedded",
        "COHORT_HOME": str(home),
        "COHORT_DATABASE_URL": database_url,
        "COHORT_BROKER_URL": "filesystem://",
        "COHORT_SECRET_KEY": secrets.token_urlsafe(64),
        "COHORT_LOG_LEVEL": "WARNING",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "platform"),
    }

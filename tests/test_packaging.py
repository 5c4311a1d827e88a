"""The wheel holds the four packages, the templates, the static files and the migrations, and works where it is
installed; and every package that is installed is pinned.
"""

import json
import re
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cohort.cli.embedded.postgres import Postgres
from tests.processes import clean_environment

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"grpo_core": "grpo_core", "worker": "worker", "migrations": "migrations", "platform/cohort": "cohort"}
"""{folder of the checkout: package in the wheel}."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


def _files(folder: str) -> set[str]:
    """Files below the folder of the checkout, without caches, relative to it."""
    base = ROOT / folder
    return {
        str(path.relative_to(base)) for path in base.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_four_packages_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {top for name in names if not (top := name.split("/")[0]).endswith(".dist-info")} == set(PACKAGES.values())
    for folder, inside in {**PACKAGES, "templates": "cohort/_data/templates"}.items():
        wanted = {f"{inside}/{name}" for name in _files(folder)}
        assert wanted
        assert sorted(wanted - names) == []


def _run(python: Path, *words: str, **environment: str) -> str:
    kept = clean_environment("PYTHON") | environment
    done = subprocess.run([str(python), *words], env=kept, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# In one process, because each start costs seconds: where the packages come from, three commands, one page.
_LOOK = """
import json
import django
django.setup()
import cohort, grpo_core, migrations, worker
from django.core.management import call_command
from django.db import connection
from django.test import Client
call_command("check", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
call_command("collectstatic", interactive=False, verbosity=0)
reply = Client(SERVER_NAME="127.0.0.1").get("/login/")
print(json.dumps({
    "files": [package.__file__ for package in (cohort, grpo_core, migrations, worker)],
    "tables": connection.introspection.table_names(),
    "status": reply.status_code,
    "page": reply.content.decode(),
}))
"""


@pytest.mark.slow
def test_the_installed_wheel_works(wheel: Path, tmp_path: Path, open_folder: Path) -> None:
    """In a virtual environment that holds the wheel alone and sees our other packages through a .pth file: check,
    migrate, collectstatic and one page, with every package of ours taken from there."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (packages,) = tmp_path.glob("venv/lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    python, server = tmp_path / "venv/bin/python", Postgres(open_folder / "pg", open_folder / "pg.log")
    server.start()
    try:
        settings = {
            "COHORT_MODE": "embedded",
            "COHORT_HOME": str(tmp_path),
            "COHORT_SECRET_KEY": "k" * 50,
            "COHORT_DATABASE_URL": server.url,
            "DJANGO_SETTINGS_MODULE": "cohort.settings",
        }
        _run(python, "-m", "cohort.cli.main", "manage", "migrate", "--verbosity", "0", **settings)
        seen = json.loads(_run(python, "-c", _LOOK, **settings).splitlines()[-1])
    finally:
        server.stop()
    assert [file for file in seen["files"] if str(packages) not in file] == []
    assert {"runs_run", "catalog_basemodel", "records_record", "accounts_user"} <= set(seen["tables"])
    assert seen["status"] == 200
    sheets = re.findall(r'href="(/static/[^"]+\.css)"', seen["page"])
    assert sheets
    for sheet in sheets:
        assert (tmp_path / sheet.lstrip("/")).is_file()


def test_every_package_that_is_installed_is_pinned() -> None:
    """All that pyproject.toml names for development, what those need in turn, and what only an older Python adds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ours = ("platform", "embedded", "worker", "train", "dev", "tasks", "deepspeed")
    left = [Requirement(word) for word in (*project["dependencies"], *(word for name in ours for word in extras[name]))]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.split("==")[0]) for line in pins if "==" in line}
    seen: set[tuple[str, str]] = set()
    while left:
        wanted = left.pop()
        for extra in ("", *wanted.extras):
            known = (canonicalize_name(wanted.name), extra)
            if known in seen or known[0] == "cohort-grpo":
                continue
            seen.add(known)
            oldest = {"python_version": "3.11", "python_full_version": "3.11.0", "extra": extra}
            try:
                further = [Requirement(text) for text in requires(wanted.name) or []]
            except PackageNotFoundError:
                continue  # of a Python that is not this one
            # What torch for GPUs needs besides, it pins itself.
            loose = [need for need in further if not str(need.specifier).startswith("==")]
            left += [need for need in loose if need.marker is None or need.marker.evaluate(oldest)]
    assert sorted({name for name, _ in seen} - pinned) == []

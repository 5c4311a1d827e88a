"""The wheel holds the four packages, the templates, the static files and the migrations, and works where it is
installed. Its installation borrows this environment's other packages; the slow test installs everything anew.
"""

import os
import re
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from cohort.embedded.postgres import Postgres

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"grpo_core", "worker", "migrations", "cohort"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def _files(folder: str) -> set[str]:
    """Files below the folder of the checkout, without caches, relative to it."""
    base = ROOT / folder
    return {
        str(path.relative_to(base)) for path in base.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_four_packages_and_nothing_beside_them(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


@pytest.mark.parametrize(
    ("folder", "inside"),
    [
        ("grpo_core", "grpo_core"),
        ("worker", "worker"),
        ("migrations", "migrations"),
        ("platform/cohort", "cohort"),
        ("templates", "cohort/_data/templates"),
    ],
)
def test_every_file_of_the_part_is_in_the_wheel(names: set[str], folder: str, inside: str) -> None:
    wanted = {f"{inside}/{name}" for name in _files(folder)}
    assert wanted
    assert sorted(wanted - names) == []


def _environment_with(wheel: Path, folder: Path) -> Path:
    """A virtual environment holding the wheel alone, which sees our other packages through a .pth file."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "python"


def _run(python: Path, *words: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COHORT_", "DJANGO_", "PYTHON"))}
    done = subprocess.run(
        [str(python), *words], env=kept | environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _works_from_the_root_folder(python: Path, scratch: Path, packages: Path) -> None:
    """check, migrate, collectstatic and one rendered page, with every package taken from `packages`."""
    where = "import cohort, grpo_core, worker, migrations as m; print(cohort, grpo_core, worker, m, sep='\\n')"
    for line in _run(python, "-c", where).splitlines():
        assert str(packages) in line
    server = Postgres(scratch / "pg", scratch / "pg.log", options=("--fsync=off",))
    server.start()
    try:
        settings = {
            "COHORT_MODE": "embedded",
            "COHORT_HOME": str(scratch),
            "COHORT_SECRET_KEY": "k" * 50,
            "COHORT_DATABASE_URL": server.url,
        }
        for command in (["check"], ["migrate", "--verbosity", "0"], ["makemigrations", "--check"]):
            _run(python, "-m", "cohort.cli", "manage", *command, **settings)
        _run(python, "-m", "cohort.cli", "manage", "collectstatic", "--no-input", "--verbosity", "0", **settings)
        page = _run(python, "-c", _RENDER, DJANGO_SETTINGS_MODULE="cohort.settings", **settings)
        tables = set(_run(python, "-c", _TABLES, DJANGO_SETTINGS_MODULE="cohort.settings", **settings).split())
    finally:
        server.stop()
    assert "csrfmiddlewaretoken" in page
    assert {"runs_run", "catalog_basemodel", "governance_record", "accounts_user"} <= tables
    sheets = re.findall(r'href="(/static/[^"]+\.css)"', page)
    assert sheets
    for sheet in sheets:
        assert (scratch / sheet.lstrip("/")).is_file()


_RENDER = """
import django; django.setup()
from django.test import Client
reply = Client(SERVER_NAME="127.0.0.1").get("/login/")
assert reply.status_code == 200, reply.status_code
print(reply.content.decode())
"""
_TABLES = """
import django; django.setup()
from django.db import connection
print(*connection.introspection.table_names())
"""


def test_the_installed_wheel_works(wheel: Path, tmp_path: Path) -> None:
    python = _environment_with(wheel, tmp_path / "venv")
    _works_from_the_root_folder(python, tmp_path, tmp_path / "venv")


@pytest.mark.slow
def test_the_wheel_installs_with_its_dependencies_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """As a web server's image does: the extra [platform], no torch, and both commands there."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    # fmt: off
    words = [
        "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[platform]",
    ]
    # fmt: on
    _run(python, *words)
    installed = _run(python, "-m", "pip", "list", "--format=freeze").lower()
    assert "django==" in installed
    assert "torch==" not in installed
    for command in ("cohort", "grpo"):
        _run(python, str(python.parent / command), "--help")
    _works_from_the_root_folder(python, tmp_path, tmp_path / "venv")

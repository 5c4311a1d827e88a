"""Every app's tables really come from migrations/<app>.

Django falls silent in four ways when a migration package is missing or not found (an app without one is "unmigrated",
which the test runner then fills by itself), so `makemigrations --check` alone proves nothing.
"""

import importlib
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader

import migrations

ROOT = Path(__file__).resolve().parent.parent


def test_the_package_migrations_is_ours() -> None:
    """A careless package of the same name in site-packages would win over an editable installation."""
    assert migrations.__file__ is not None
    assert Path(migrations.__file__).resolve() == ROOT / "migrations" / "__init__.py"


def test_every_app_of_ours_is_in_the_list_and_mapped() -> None:
    ours = {config.label for config in apps.get_app_configs() if config.name.startswith("cohort.")}
    assert ours == set(settings.LOCAL_APPS)
    assert {app: f"migrations.{app}" for app in settings.LOCAL_APPS} == settings.MIGRATION_MODULES


@pytest.mark.django_db
@pytest.mark.parametrize("label", settings.LOCAL_APPS)
def test_the_app_is_really_migrated(label: str) -> None:
    loader = MigrationLoader(connection)
    assert label in loader.migrated_apps, f"{label} counts as unmigrated: is migrations/{label}/__init__.py there?"
    package = importlib.import_module(f"migrations.{label}")
    assert package.__file__ == str(ROOT / "migrations" / label / "__init__.py")
    assert [name for app, name in loader.disk_migrations if app == label]
    stray = ROOT / "platform" / "cohort" / label / "migrations"
    assert not stray.exists(), f"{stray} is never read; move its files to migrations/{label}"


@pytest.mark.django_db(transaction=True)
def test_migrations_alone_make_every_table() -> None:
    """Compares an empty database, migrated, with the models: the test database is made by `migrate`, not by models."""
    recorded = {(app, name) for app, name in MigrationLoader(connection).applied_migrations}
    for label in settings.LOCAL_APPS:
        assert any(app == label for app, _ in recorded), f"no migration of {label} was applied"
    tables = set(connection.introspection.table_names())
    wanted = {
        model._meta.db_table for label in settings.LOCAL_APPS for model in apps.get_app_config(label).get_models()
    }
    assert wanted <= tables, f"missing: {sorted(wanted - tables)}"


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_every_folder_of_migrations_belongs_to_an_app() -> None:
    folders = {path.name for path in (ROOT / "migrations").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(settings.LOCAL_APPS)


def test_no_folder_hides_the_standard_library() -> None:
    """`platform` with an __init__.py, or a test folder named like a standard module, breaks imports far away."""
    assert not (ROOT / "platform" / "__init__.py").exists()
    import platform

    assert platform.python_version()
    hiding = {"platform", "site", "code", "queue", "logging", "types"}
    assert not [path for path in (ROOT / "tests").rglob("*") if path.is_dir() and path.name in hiding]

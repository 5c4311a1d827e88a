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

ROOT = Path(__file__).resolve().parent.parent


def test_every_app_and_every_folder_of_migrations_is_mapped() -> None:
    ours = {
        config.label
        for config in apps.get_app_configs()
        if config.name.startswith("cohort.") and any(config.get_models())
    }
    folders = {path.name for path in (ROOT / "migrations").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert ours == set(settings.LOCAL_APPS) == folders
    assert {app: f"migrations.{app}" for app in settings.LOCAL_APPS} == settings.MIGRATION_MODULES


@pytest.mark.django_db
def test_every_app_s_tables_are_made_from_its_package() -> None:
    """Not from a package named `migrations` in site-packages, nor from a folder inside the app."""
    loader = MigrationLoader(connection)
    for label in settings.LOCAL_APPS:
        package = importlib.import_module(f"migrations.{label}")
        assert package.__file__ == str(ROOT / "migrations" / label / "__init__.py")
        assert label in loader.migrated_apps
        assert [name for app, name in loader.disk_migrations if app == label]
        assert label in {app for app, _ in loader.applied_migrations}
        assert not (ROOT / "platform" / "cohort" / label / "migrations").exists(), label
    wanted = {model._meta.db_table for app in settings.LOCAL_APPS for model in apps.get_app_config(app).get_models()}
    assert sorted(wanted - set(connection.introspection.table_names())) == []


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_no_folder_hides_the_standard_library() -> None:
    """`platform` with an __init__.py, or a test folder named like a standard module, breaks imports far away."""
    assert not (ROOT / "platform" / "__init__.py").exists()
    hiding = {"platform", "site", "code", "queue", "logging", "types"}
    assert not [path for path in (ROOT / "tests").rglob("*") if path.is_dir() and path.name in hiding]

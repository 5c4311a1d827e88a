"""Who needs the private key: the platform's workers, which in production do not start without; not the web server."""

import subprocess
import sys
from pathlib import Path

import pytest

from cohort.embedded.home import Home
from cohort.evidence.keys import generate
from tests.processes import DEADLINE, clean_environment

PRODUCTION = {
    "COHORT_MODE": "production",
    "COHORT_SECRET_KEY": "k" * 50,
    "COHORT_DATABASE_URL": "postgresql://cohort@127.0.0.1:9/none",
    "COHORT_BROKER_URL": "amqp://127.0.0.1:9",
    "COHORT_PUBLIC_URL": "https://cohort.example.org",
}


def ran(words: list[str], home: Path, seconds: float = DEADLINE, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=clean_environment() | PRODUCTION | {"COHORT_HOME": str(home)} | more,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["platform", "platform.seal"])
def test_in_production_no_platform_worker_starts_without_the_key(tmp_path: Path, queue: str) -> None:
    words = ["-m", "celery", "-A", "cohort.celery", "worker", "--queues", queue, "--pool", "threads"]
    refused = ran(words, tmp_path)
    assert (refused.returncode, "cohort audit make-key" in refused.stderr) == (1, True)
    (tmp_path / "signing-key.pem").write_text("not a key")
    assert "holds no Ed25519 key" in ran(words, tmp_path).stderr
    (tmp_path / "signing-key.pem").unlink()
    generate("cohort.example.org/log").write(tmp_path / "signing-key.pem")
    with pytest.raises(subprocess.TimeoutExpired):  # it starts, and looks for its broker
        ran(words, tmp_path, seconds=12)


@pytest.mark.slow
def test_the_web_server_needs_no_private_key(tmp_path: Path) -> None:
    words = ["-c", "import django; django.setup(); import cohort.wsgi"]
    loaded = ran(words, tmp_path, DJANGO_SETTINGS_MODULE="cohort.settings")
    assert loaded.returncode == 0, loaded.stderr


@pytest.mark.slow
def test_the_first_key_is_made_by_a_command_that_needs_no_database(tmp_path: Path) -> None:
    made = ran(["-m", "cohort.cli", "audit", "make-key"], tmp_path / "new")
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1].startswith("cohort.example.org/log+")
    assert (tmp_path / "new" / "signing-key.pem").stat().st_mode & 0o777 == 0o600
    assert ran(["-m", "cohort.cli", "audit", "make-key"], tmp_path / "new").returncode == 2


def test_a_trainers_worker_is_not_told_where_the_key_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_SIGNING_KEY_FILE", "/somewhere/key.pem")
    assert "COHORT_SIGNING_KEY_FILE" not in Home(tmp_path).worker_environment("http://127.0.0.1:8400")
    assert Home(tmp_path).platform_environment("postgresql:///x")["COHORT_SIGNING_KEY_FILE"] == "/somewhere/key.pem"

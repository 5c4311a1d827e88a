"""Production does not start with weak settings, and with strong ones Django's own checks find nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from cohort.base.environment import Environment
from cohort.base.production import weak_settings
from grpo_core.errors import ConfigError
from tests.processes import clean_environment

STRONG = {
    "COHORT_MODE": "production",
    "COHORT_SECRET_KEY": "a secret of more than fifty characters that nobody guesses",
    "COHORT_DATABASE_URL": "postgresql://cohort:password@database/cohort",
    "COHORT_BROKER_URL": "amqp://cohort:password@broker:5672//",
    "COHORT_PUBLIC_URL": "https://cohort.example.org",
    "COHORT_TRUSTED_PROXY": "true",
}


def environment(**changes: object) -> Environment:
    given: dict[str, object] = {
        "secret_key": SecretStr(STRONG["COHORT_SECRET_KEY"]),
        "database_url": STRONG["COHORT_DATABASE_URL"],
        "broker_url": STRONG["COHORT_BROKER_URL"],
        "public_url": STRONG["COHORT_PUBLIC_URL"],
        "trusted_proxy": True,
    }
    return Environment(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value", "variable"),
    [
        ("secret_key", SecretStr(""), "COHORT_SECRET_KEY"),
        ("secret_key", SecretStr("abcdefgh" * 6), "COHORT_SECRET_KEY"),
        ("secret_key", SecretStr("abcd" * 20), "COHORT_SECRET_KEY"),
        ("secret_key", SecretStr("django-insecure-" + "abcdefgh" * 10), "COHORT_SECRET_KEY"),
        ("debug", True, "COHORT_DEBUG"),
        ("public_url", "http://cohort.example.org", "COHORT_PUBLIC_URL"),
        ("public_url", "http://127.0.0.1.example.org", "COHORT_PUBLIC_URL"),
        ("public_url", "cohort.example.org", "COHORT_PUBLIC_URL"),
        ("trusted_proxy", False, "COHORT_TRUSTED_PROXY"),
        ("database_url", "", "COHORT_DATABASE_URL"),
        ("database_url", "postgresql://cohort@database/cohort", "COHORT_DATABASE_URL"),
        ("database_url", "host=database dbname=cohort", "COHORT_DATABASE_URL"),
        ("broker_url", "filesystem://", "COHORT_BROKER_URL"),
        ("broker_url", "memory://", "COHORT_BROKER_URL"),
        ("broker_url", "amqp://guest:guest@broker//", "COHORT_BROKER_URL"),
        ("broker_url", "amqp://broker//", "COHORT_BROKER_URL"),
        ("broker_url", "redis://broker/0", "COHORT_BROKER_URL"),
        ("email_url", SecretStr("smtp://cohort:password@mail.example.org"), "COHORT_EMAIL_URL"),
    ],
)
def test_each_weak_setting_is_named(setting: str, value: object, variable: str) -> None:
    faults = weak_settings(environment(**{setting: value}))
    assert [fault.split()[0] for fault in faults] == [variable]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("public_url", "https://cohort.example.org/"),
        ("public_url", "http://127.0.0.1:8400"),
        ("public_url", "http://[::1]:8400"),
        ("database_url", "postgresql:///cohort"),
        ("database_url", "postgresql:///cohort?host=/run/postgresql"),
        ("database_url", "postgresql://cohort@database/cohort?passfile=/run/secrets/pgpass"),
        ("broker_url", "amqps://cohort:password@broker/cohort"),
        ("broker_url", "redis://:password@broker/0"),
        ("broker_url", "redis+socket:///run/redis/redis.sock"),
        ("email_url", SecretStr("smtp://mail.example.org")),
        ("email_url", SecretStr("smtp://cohort:password@127.0.0.1:2525")),
        ("email_url", SecretStr("smtps://cohort:password@mail.example.org")),
    ],
)
def test_what_is_strong_is_taken(setting: str, value: object) -> None:
    assert weak_settings(environment(**{setting: value})) == []


@pytest.mark.parametrize(
    ("address", "relay"),
    [
        ("", None),
        ("smtp://mail.example.org", ("mail.example.org", 25, "", "", "")),
        ("smtp+starttls://me%40example.org:p%2Fw@mail", ("mail", 587, "me@example.org", "p/w", "starttls")),
        ("smtps://me:pw@mail:4650", ("mail", 4650, "me", "pw", "tls")),
    ],
)
def test_a_mail_relay_is_read_from_its_address(address: str, relay: tuple[object, ...] | None) -> None:
    read = environment(email_url=SecretStr(address)).mail_relay()
    assert (read and (read.host, read.port, read.user, read.password, read.tls)) == relay
    assert "pw" not in repr(read)


@pytest.mark.parametrize("address", ["mail.example.org", "https://me:verysecret@mail", "smtp://", "smtp://mail:99999"])
def test_what_is_no_mail_relay_is_named_without_its_password(address: str) -> None:
    with pytest.raises(ConfigError, match="COHORT_EMAIL_URL") as refused:
        environment(email_url=SecretStr(address)).mail_relay()
    assert "verysecret" not in str(refused.value)


def ran(*words: str, home: Path, **changes: str) -> "subprocess.CompletedProcess[str]":
    own = {**STRONG, "COHORT_HOME": str(home), "DJANGO_SETTINGS_MODULE": "cohort.settings", **changes}
    command = [sys.executable, "-m", "django", *words]
    return subprocess.run(command, env=clean_environment() | own, cwd="/", capture_output=True, text=True, check=False)


def test_djangos_checks_for_deployment_find_nothing(tmp_path: Path) -> None:
    done = ran("check", "--deploy", "--fail-level", "DEBUG", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_it_does_not_start_and_names_every_fault_without_the_secrets(tmp_path: Path) -> None:
    weak = {"COHORT_SECRET_KEY": "verysecret", "COHORT_BROKER_URL": "amqp://guest:guest@broker"}
    done = ran("check", home=tmp_path, **weak)
    assert done.returncode != 0
    assert all(variable in done.stderr for variable in weak)
    assert "verysecret" not in done.stderr

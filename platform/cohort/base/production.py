"""What production refuses to start with. Reads no settings of Django, which are made after it."""

from urllib.parse import urlsplit

from django.core.checks.security.base import (
    SECRET_KEY_INSECURE_PREFIX,
    SECRET_KEY_MIN_LENGTH,
    SECRET_KEY_MIN_UNIQUE_CHARACTERS,
)
from psycopg.conninfo import conninfo_to_dict

from cohort.base.environment import Environment

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def weak_settings(given: Environment) -> list[str]:
    """A line for each setting that is too weak, with what to set instead; none of them quotes a secret."""
    return [*_secret_key(given), *_addresses(given), *_database(given), *_broker(given), *_mail(given)]


def _secret_key(given: Environment) -> list[str]:
    key = given.resolved_secret_key()
    if (
        len(key) < SECRET_KEY_MIN_LENGTH
        or len(set(key)) < SECRET_KEY_MIN_UNIQUE_CHARACTERS
        or key.startswith(SECRET_KEY_INSECURE_PREFIX)
    ):
        return [
            f"COHORT_SECRET_KEY (or COHORT_SECRET_KEY_FILE) must be set to {SECRET_KEY_MIN_LENGTH} characters or more "
            f"that nobody can guess, at least {SECRET_KEY_MIN_UNIQUE_CHARACTERS} of them different, without "
            f"{SECRET_KEY_INSECURE_PREFIX} before them: `openssl rand -base64 64` prints some"
        ]
    return []


def _addresses(given: Environment) -> list[str]:
    faults = ["COHORT_DEBUG must be off"] if given.debug else []
    public = urlsplit(given.public_url)
    if public.scheme != "https" and public.hostname not in _LOOPBACK:
        faults.append(
            "COHORT_PUBLIC_URL must be https://: passwords and sessions would cross the network readable. Put a proxy "
            "that ends TLS before the web server"
        )
    if public.scheme == "https" and not given.trusted_proxy:
        faults.append(
            "COHORT_TRUSTED_PROXY must be true where COHORT_PUBLIC_URL is https://: Cohort ends no TLS, and would send "
            "every page's request to https:// again"
        )
    return faults


def _database(given: Environment) -> list[str]:
    address = given.resolved_database_url()
    if not address:
        return ["COHORT_DATABASE_URL (or COHORT_DATABASE_URL_FILE) must be set"]
    parts = conninfo_to_dict(address)
    hosts = str(parts.get("host") or parts.get("hostaddr") or "").split(",")
    if any(host and not host.startswith(("/", "@")) for host in hosts) and not any(
        parts.get(name) for name in ("password", "passfile", "sslcert", "service")
    ):
        return [
            "COHORT_DATABASE_URL (or COHORT_DATABASE_URL_FILE) must hold a password, or name a passfile or sslcert: "
            "who reaches the database over the network could be anybody"
        ]
    return []


def _broker(given: Environment) -> list[str]:
    broker = urlsplit(given.resolved_broker_url())
    if broker.scheme == "redis+socket":
        return []
    if broker.scheme not in ("amqp", "amqps", "redis", "rediss"):
        return ["COHORT_BROKER_URL must be amqp:// or redis://; filesystem:// is for one machine only"]
    if not broker.password or (broker.username, broker.password) == ("guest", "guest"):
        return [
            "COHORT_BROKER_URL (or COHORT_BROKER_URL_FILE) must hold a password that is not the broker's default: who "
            "reaches the broker could read and send every message"
        ]
    return []


def _mail(given: Environment) -> list[str]:
    relay = given.mail_relay()
    if relay is not None and relay.password and not relay.tls and relay.host not in _LOOPBACK:
        return [
            "COHORT_EMAIL_URL (or COHORT_EMAIL_URL_FILE) must be smtps:// or smtp+starttls:// where it holds a "
            "password, which would cross the network readable"
        ]
    return []

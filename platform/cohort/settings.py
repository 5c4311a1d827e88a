"""Django's settings, all of them; what differs between machines comes from `environment`."""

import logging
import os
from typing import Any, Literal

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from cohort.base import paths
from cohort.base.environment import environment
from cohort.base.production import weak_settings
from grpo_core.protocol.queues import celery_transport

os.umask(0o077)  # of web server, workers and commands alike: what they write is read by their own user alone

ENV = environment()

DEBUG = ENV.debug
DATABASE_URL, BROKER_URL = ENV.resolved_database_url(), ENV.resolved_broker_url()
SECRET_KEY = ENV.resolved_secret_key() or ("not-secret-only-for-tests" if ENV.mode == "test" else "")

if ENV.mode == "production" and (weak := weak_settings(ENV)):
    raise ImproperlyConfigured(
        "Cohort will not start in production mode:\n  " + "\n  ".join(weak) + "\n"
        "For one machine without setting anything up, use `cohort up`."
    )

_public = ENV.public_url.rstrip("/")
_host = _public.split("://", 1)[-1].split("/", 1)[0].rsplit(":", 1)[0]
_https = _public.startswith("https://")
_more_hosts = [host.strip() for host in ENV.allowed_hosts.split(",") if host.strip()]
ALLOWED_HOSTS = [_host, "127.0.0.1", "localhost", "[::1]", *_more_hosts] if ENV.mode != "test" else ["*"]
CSRF_TRUSTED_ORIGINS = [_public]

LOCAL_APPS = [
    "accounts",
    "audit",
    "catalog",
    "nodes",
    "runs",
    "review",
    "records",
    "contamination",
    "lab",
    "alerts",
    "pipelines",
]
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_htmx",
    "csp",
    "cohort.web",
    *(f"cohort.{app}" for app in LOCAL_APPS),
]
MIGRATION_MODULES = {app: f"migrations.{app}" for app in LOCAL_APPS}
AUTH_USER_MODEL = "accounts.User"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "cohort.web.access.BodyLimit",
    "cohort.web.access.NotStored",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "cohort.web.access.LoginRequired",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "cohort.urls"
WSGI_APPLICATION = "cohort.server.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [paths.TEMPLATES],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "cohort.web.context.frame",
            ],
            "builtins": ["cohort.web.templatetags.cohort"],
        },
    }
]

CACHES = {
    # What is prepared for viewers may be as large as the charts of a long run, and goes only when others need its room.
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 64}},
}

COHORT_WEB_THREADS: dict[Literal["pages", "workers", "files"], int] = {"pages": 8, "workers": 4, "files": 4}
"""Of each process of the web server: for pages, for the worker API, and for the files that workers send and fetch."""


def _database() -> dict[str, Any]:
    parts = conninfo_to_dict(DATABASE_URL)
    known = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    options = {name: value for name, value in parts.items() if name not in known and value is not None}
    return {
        "ENGINE": "django.db.backends.postgresql",
        **{setting: str(parts[name]) for name, setting in known.items() if parts.get(name) is not None},
        "CONN_HEALTH_CHECKS": True,
        # One for each thread of a web server's process, one for its pulse, and one to spare.
        "OPTIONS": {"pool": {"min_size": 1, "max_size": sum(COHORT_WEB_THREADS.values()) + 2}, **options}
        if ENV.mode != "test"
        else options,
    }


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

PASSWORD_HASHERS = ["cohort.accounts.hashing.BoundedArgon2"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"

SESSION_COOKIE_AGE = 7 * 24 * 3600  # from sign-in, whatever the use: writing the session at each request is costly
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
CSRF_COOKIE_SAMESITE = "Lax"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
SECURE_SSL_REDIRECT = _https
# Load balancers and workers may sit inside a private network, behind the proxy that ends TLS.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^api/worker/"]
SECURE_HSTS_SECONDS = 31536000 if _https else 0
COHORT_TRUSTED_PROXY = ENV.trusted_proxy
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENV.trusted_proxy else None
X_FRAME_OPTIONS = "DENY"

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
# Pages with charts add these by decorator (cohort.web.runs.page): plotly writes style attributes and fills one empty
# style element through CSSOM, whose hash is that of the empty string.
PLOTLY_EMPTY_STYLE = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"

# Whether the domain's other hosts are https:// alone, and are listed in browsers as such, its owner decides.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT = ENV.home_folder / "static"
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "cohort.web.plotly_static.PlotlyFinder",
]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG or ENV.mode == "test"  # a test has many handlers: none lists every file as it starts
WHITENOISE_MAX_AGE = 0 if DEBUG else 3600
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": (
            "django.contrib.staticfiles.storage.StaticFilesStorage"
            if ENV.mode == "test"
            else "whitenoise.storage.CompressedManifestStaticFilesStorage"
        )
    },
}
_mail = ENV.mail_relay()
EMAIL_HOST, EMAIL_PORT = (_mail.host, _mail.port) if _mail else ("", 25)
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = (_mail.user, _mail.password) if _mail else ("", "")
EMAIL_USE_TLS, EMAIL_USE_SSL = (_mail.tls == "starttls", _mail.tls == "tls") if _mail else (False, False)
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = ENV.email_from or f"cohort@{_host}"

DATA_UPLOAD_MAX_MEMORY_SIZE = 32 * 1024 * 1024
FILE_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024

COHORT_MAX_DATASET_BYTES, COHORT_MAX_DATASET_PROBLEMS = ENV.max_dataset_bytes, ENV.max_dataset_problems
COHORT_MAX_PROJECTS, COHORT_MAX_MEMBERS = ENV.max_projects, ENV.max_members
COHORT_MAX_UPLOAD_BYTES, COHORT_MAX_OPEN_JOBS = ENV.max_upload_bytes, ENV.max_open_jobs
COHORT_MAX_WAITING_RUNS, COHORT_MAX_PERSON_WAITING_RUNS = ENV.max_waiting_runs, ENV.max_person_waiting_runs
COHORT_LEASE_SECONDS, COHORT_HEARTBEAT_SECONDS = ENV.lease_seconds, ENV.heartbeat_seconds
if COHORT_HEARTBEAT_SECONDS * 2 > COHORT_LEASE_SECONDS:
    raise ImproperlyConfigured(
        f"COHORT_HEARTBEAT_SECONDS is {COHORT_HEARTBEAT_SECONDS:g} and COHORT_LEASE_SECONDS {COHORT_LEASE_SECONDS:g}: "
        "one lost beat would lose the lease. Take half the lease at most."
    )
# How often leases are looked at, and how often a web server sends its own beat. Silence of a few of them is taken for
# an outage of the platform's own, so both are short next to the lease; not so short, with one of less than 20 s, that
# a busy machine were taken for an outage.
COHORT_ROUND_SECONDS = max(2.5, min(5.0, COHORT_LEASE_SECONDS / 8))
COHORT_PULSE_SECONDS = max(5.0, min(10.0, COHORT_LEASE_SECONDS / 6))

_TO_SEALER = {"queue": "platform.seal"}
CELERY: dict[str, Any] = {
    **celery_transport(BROKER_URL, ENV.broker_folder),
    "task_ignore_result": True,
    "task_serializer": "json",
    "accept_content": ["json"],
    "task_default_queue": "platform",
    "worker_prefetch_multiplier": 1,
    "task_acks_late": False,
    "timezone": "UTC",
    "broker_connection_retry_on_startup": True,
    # However long the broker is away, and when it closes a channel alone, as RabbitMQ does with a message that waits
    # too long behind another (consumer_timeout): the worker connects again. Celery's own defaults would end it.
    "broker_connection_max_retries": None,
    "broker_channel_error_retry": True,
    # Once more at once, for a connection that died since it was last used. Senders do not wait for a broker
    # that is away: the reconciler sends again.
    "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0},
    "beat_schedule": {
        "reconcile": {"task": "cohort.background.reconcile", "schedule": 5.0},
        "clear_sessions": {"task": "cohort.accounts.clear_sessions", "schedule": 24 * 3600.0},
        "expire_traces": {"task": "cohort.records.expire_traces", "schedule": 3600.0, "options": _TO_SEALER},
        "index_words": {
            "task": "cohort.review.index_words",
            "schedule": 10.0,
            "options": {**_TO_SEALER, "expires": 10.0},
        },
        "pending overlaps": {
            "task": "cohort.contamination.republish_pending",
            "schedule": 60.0,
            "options": {**_TO_SEALER, "expires": 60.0},
        },
    },
}
if ENV.log_git or ENV.log_witness:  # to the worker that makes records: those outside may take long to answer
    CELERY["beat_schedule"]["push the audit log"] = {
        "task": "cohort.audit.push",
        "schedule": 600.0,
        "options": {**_TO_SEALER, "expires": 600.0},
    }


def _one_line(record: logging.LogRecord) -> bool:
    """Leave out the traceback of a request that was refused, which Django logs with its exception."""
    if getattr(record, "status_code", 500) < 500:
        record.exc_info = None
    return True


LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "filters": {"one line": {"()": "django.utils.log.CallbackFilter", "callback": _one_line}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["one line"]}},
    "root": {"handlers": ["stderr"], "level": ENV.log_level},
    "loggers": {"waitress.queue": {"level": "ERROR"}},  # else a line for each request that waits for a thread
}

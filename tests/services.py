"""`make test-services`: runs tests on the PostgreSQL, RabbitMQ and Redis of this machine, and names what it lacks."""

import argparse
import os
import subprocess
import sys

import psycopg
from kombu import Connection

ACCOUNTS = ("postgres@/postgres", "root@/root", "root@/test", "test@/test")
DATABASES = [f"postgresql://{account.replace('/', '127.0.0.1:5432/')}" for account in ACCOUNTS]
BROKERS = ("amqp://guest:guest@127.0.0.1:5672//", "redis://127.0.0.1:6379/0")


def may_create_databases(url: str) -> bool:
    query = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            return connection.execute(query).fetchone() == (True,)
    except psycopg.OperationalError:
        return False


def takes_messages(url: str) -> bool:
    try:
        with Connection(url, connect_timeout=5) as connection:
            connection.connect()
    except Exception as error:  # noqa: BLE001  each transport raises its own
        print(f"{url}: {type(error).__name__}: {error}")
        return False
    return True


def run(tests: str, *options: str, require: str = "", **variables: str) -> bool:
    """Whether the tests pass with these variables."""
    required = ",".join(filter(None, (os.environ.get("COHORT_REQUIRE", ""), require)))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *tests.split()]
    environment = {**os.environ, "COHORT_REQUIRE": required, **variables}
    return subprocess.run(words, env=environment, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sql", required=True, help="tests to run on PostgreSQL")
    parser.add_argument("--messages", required=True, help="tests to run on each broker")
    given = parser.parse_args()
    passed, absent = True, []
    database = next((url for url in DATABASES if may_create_databases(url)), None)
    if database:
        print(f"== {database}", flush=True)
        passed = run(given.sql, "-n", "2", "--dist", "worksteal", COHORT_TEST_DATABASE_URL=database)
    else:
        absent.append("PostgreSQL at 127.0.0.1:5432 where one may make databases")
    for broker in BROKERS:
        if not takes_messages(broker):
            absent.append(broker)
            continue
        print(f"== {broker}", flush=True)
        require = "redis" if broker.startswith("redis") else "rabbitmq" if os.geteuid() == 0 else ""
        passed &= run(given.messages, require=require, COHORT_TEST_BROKER_URL=broker)
    for service in absent:
        print(f"not run: tests on {service}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

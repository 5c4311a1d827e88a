"""Brokers that a test may stop, start and empty: a folder, and servers of the test's own on a free port.

Never the machine's own Redis or RabbitMQ: others may be using them.
"""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from kombu import Connection

from cohort.cli.embedded import children
from tests.processes import clean_environment, free_port, wait_for


class Broker:
    """Messages as files; there is no server, so stopping it changes nothing."""

    url = "filesystem://"

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    def empty(self) -> None:
        """Throw every message away."""
        for file in (self._home / "broker" / "messages").glob("*.msg"):
            file.unlink(missing_ok=True)


class RedisBroker(Broker):
    """A server without anything on disk: stopping it loses every message."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        words = ["redis-server", "--port", str(self._port), "--bind", "127.0.0.1", "--dir", str(self._home)]
        words += ["--save", "", "--appendonly", "no"]
        with (self._home / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                children.command(words, death_signal=signal.SIGKILL), stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_for(self._answers, "the test's own Redis answers", self._process)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def empty(self) -> None:
        with redis.Redis(port=self._port) as link:
            link.flushall()

    def _answers(self) -> bool:
        with suppress(redis.ConnectionError), redis.Redis(port=self._port) as link:
            return bool(link.ping())
        return False


class RabbitBroker(Broker):
    """A RabbitMQ node of the test's own. Its queues survive a stop, as its administrators expect."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._folder = home / "rabbitmq"
        self._folder.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self._folder, "rabbitmq", "rabbitmq")
        self._port = free_port()
        self._names: subprocess.Popen[bytes] | None = None
        """Erlang's port mapper, of its own too: one that RabbitMQ finds missing and starts continues after it."""
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}//"

    def start(self) -> None:
        plugins = self._folder / "enabled_plugins"
        plugins.write_text("[].\n")
        config = self._folder / "rabbitmq.conf"
        config.write_text(f"listeners.tcp.1 = 127.0.0.1:{self._port}\n")
        names = str(free_port())
        environment = clean_environment("RABBITMQ_") | {
            "HOME": str(self._folder),
            "ERL_EPMD_PORT": names,
            "RABBITMQ_NODENAME": f"chaos{self._port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "none"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        }
        with (self._home / "rabbitmq.log").open("ab") as log:
            files: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._names = subprocess.Popen(["epmd", "-port", names, "-address", "127.0.0.1"], **files)
            self._process = subprocess.Popen([program()], env=environment, cwd=self._folder, process_group=0, **files)
        wait_for(self._answers, "the test's own RabbitMQ answers", self._process)

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._names is not None:
            self._names.kill()
            self._names.wait()

    def empty(self) -> None:
        with Connection(self.url) as connection:
            for queue in ("train", "platform", "platform.seal"):
                with suppress(connection.channel_errors):
                    connection.default_channel.queue_purge(queue)

    def _answers(self) -> bool:
        with suppress(OSError), Connection(self.url, connect_timeout=2) as connection:
            connection.connect()
            return True
        return False


def program() -> str | None:
    """RabbitMQ's own start script; Debian's wrapper around it writes into the machine's own log folder."""
    own = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    return str(own) if own.is_file() else shutil.which("rabbitmq-server")

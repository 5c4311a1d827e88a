"""`cohort up`: database, migrations, static files, node, web server and workers, in that order and back.

A part that dies, the database too, is started again, three times in ten minutes at most; then everything is stopped and
the command ends with status 1. Without the lab's worker the rest continues. Django is imported only once the database
runs.
"""

import errno
import hashlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from cohort import __version__
from cohort.cli.embedded import children
from cohort.cli.embedded.children import Child
from cohort.cli.embedded.home import Home, HomeError, refuse_foreign_settings, write_secret
from cohort.cli.embedded.postgres import Postgres
from cohort.cli.embedded.visit import enter, leave
from grpo_core.protocol.queues import LAB_QUEUE
from grpo_core.runtime.http import HttpClient, HttpError

READY_SECONDS = 120.0
STOP_SECONDS = 15.0
"""For all parts together when the database is gone: a trainer cuts a checkpoint, and nobody could report anything."""
STOP_HINT = "Ctrl-C stops it; a second Ctrl-C does not wait."
TRAINER_WORKER = "trainer-worker"
LAB_WORKER = "lab-worker"
_ANY_ADDRESS = ("0.0.0.0", "::")
_STOPS_WITH_NODE = {TRAINER_WORKER: "Nothing trains here", LAB_WORKER: "No reward is tried or probed here"}
"""Workers that end when their node is revoked, and what no longer happens then."""


def say(text: str) -> None:
    print(text, flush=True)


@dataclass
class Interrupts:
    """The first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, unless everything is being stopped already; any
    later one only cuts the waiting short."""

    count: int = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            raise KeyboardInterrupt

    def stopping(self) -> None:
        """From now on none raises."""
        self.count = max(1, self.count)

    def hurry(self) -> bool:
        return self.count > 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # it is ignored under nohup, and must stay so
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass
class Up:
    """What runs. Made by `running`; `watch` must be called while it is used."""

    home: Home
    address: str
    postgres: Postgres
    interrupts: Interrupts
    children: list[Child] = field(default_factory=list)
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Other processes that were started on purpose and end by themselves."""
    database_deaths: list[float] = field(default_factory=list)

    def watch(self) -> None:
        """Start a dead child again; raise HomeError when that does not help."""
        if self._database_ended():
            end = f"the database ended by itself. Its log is {self.postgres.log}."
            if not children.may_restart(self.database_deaths):
                raise HomeError(f"{end}\nIt died too often, so everything is stopped.")
            self.postgres.start()
            leave()  # this process's connections were to the one that ended; the other parts replace theirs too
            say(f"{end}\nStarted it again.")
        for child in self.children:
            if child.process is None or child.process.poll() is None:
                continue
            end = f"{child.name} {child.exit_text()}. Its log {child.log} ends with:\n{child.tail()}"
            if child.name in _STOPS_WITH_NODE and child.process.returncode == os.EX_NOPERM:  # its node was revoked
                self.children.remove(child)
                what = _STOPS_WITH_NODE[child.name]
                say(f"{end}\n{what} until Cohort is started anew, which makes another node.")
                return
            if not child.may_restart():
                if child.name != LAB_WORKER:  # its end does not stop training
                    raise HomeError(f"{end}\nIt died too often, so everything is stopped.")
                self.children.remove(child)
                say(f"{end}\nIt died too often. {_STOPS_WITH_NODE[LAB_WORKER]} until Cohort is started anew.")
                return
            # A run's supervisor ends by itself; the worker that is started now takes nothing until it has.
            children.end_orphans([*self._kept(), *children.supervisors()], grace=10)
            child.start()
            say(f"{end}\nStarted it again.")

    def stop(self) -> None:
        """The trainer's worker first, so that it can still report; the web server after it; the database last."""
        self.interrupts.stopping()
        say("Stopping …")
        self.helpers.clear()
        until = time.monotonic() + STOP_SECONDS if self._database_ended() else math.inf

        def hurry() -> bool:
            return self.interrupts.hurry() or time.monotonic() > until

        for child in reversed(self.children):
            if children.stop(child, hurry=hurry):
                seconds = min(child.grace, STOP_SECONDS if self._database_ended() else math.inf)
                why = "asked to hurry" if self.interrupts.hurry() else f"it did not stop in {seconds:.0f} s"
                say(f"{child.name} was killed: {why}")
            if child.name == TRAINER_WORKER:  # one that died before may have left some, which report to the web server
                children.wait_for_supervisors(child.grace, hurry=hurry)
        children.end_orphans(self._kept(), grace=5)
        leave()
        self.postgres.stop()

    def _database_ended(self) -> bool:
        """Whether it ended although nobody stopped it."""
        process = self.postgres.process
        return process is not None and process.poll() is not None

    def _kept(self) -> list[int]:
        """Process ids of the parts that are alive."""
        parts = [self.postgres.process, *(child.process for child in self.children), *self.helpers]
        return [part.pid for part in parts if part is not None and part.poll() is None]


def listen(host: str, port: int) -> socket.socket:
    """Take the address before anything starts, so that no other process can; the web server gets the open socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except (OSError, OverflowError) as error:
        listener.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            message = f"port {port} on {host} is taken by another program. Choose another one with --port."
        else:
            message = f"cannot listen on {host}, port {port}: {error}. Choose others with --host and --port."
        raise HomeError(message) from None
    return listener


def serve(home: Home, *, host: str, port: int, trainer: bool) -> int:
    """0 after Ctrl-C or SIGTERM while serving. A fault raises HomeError, after everything has been stopped."""
    say(f"Cohort {__version__}, home {home.path}")
    with running(home, host=host, port=port, trainer=trainer) as up:
        from cohort.accounts.models import User

        say(f"Cohort is at {up.address}\n{STOP_HINT}")
        if not User.objects.exists():
            say("Nobody can log in yet. In another terminal: cohort user NAME --project SLUG")
        with suppress(KeyboardInterrupt):
            serve_until_stopped(up)
    return 0


def serve_until_stopped(up: Up) -> NoReturn:
    """Watch over the parts until KeyboardInterrupt, or until a part of it cannot be kept alive."""
    while True:
        up.watch()
        time.sleep(0.5)


@contextmanager
def running(home: Home, *, host: str, port: int, trainer: bool = True, purpose: str = "cohort up") -> Iterator[Up]:
    """Everything started and answering while the block runs; stopped in order after it, whatever happens."""
    refuse_foreign_settings()
    with ExitStack() as stack:
        home.make()
        stack.enter_context(home.locked(purpose))
        listener = stack.enter_context(listen(host, port))
        children.adopt_orphans()
        interrupts = Interrupts()
        stack.enter_context(interrupts.installed())
        postgres = Postgres(home.database, home.logs / "postgres.log")
        address = _address(host, listener.getsockname()[1])
        up = Up(home=home, address=address, postgres=postgres, interrupts=interrupts)
        stack.callback(up.stop)
        _start(up, listener, address, trainer=trainer)
        home.publish({"pid": os.getpid(), "address": up.address, "database_url": postgres.url})
        yield up


def _start(up: Up, listener: socket.socket, local: str, *, trainer: bool) -> None:
    from cohort.base.database_roles import WEB

    home = up.home
    children.keep_last_log(home.logs / "postgres.log")
    began = time.monotonic()
    up.postgres.start()
    say(f"database ready after {time.monotonic() - began:.1f} s")
    up.postgres.make_role(WEB)
    environment = home.platform_environment(up.postgres.url, up.address)
    up.address = environment["COHORT_PUBLIC_URL"]
    enter(environment)
    migrate()
    make_signing_key()
    _collect_static(home)
    environment["COHORT_DATABASE_URL"] = up.postgres.url_as(WEB)  # only migrations and commands are the owner's
    up.children = [
        _web(home, listener, local, environment),
        _platform_worker(home, environment),
        _seal_worker(home, environment),
    ]
    if trainer:
        make_node(home)
        up.children.append(_trainer_worker(home, local))
    for child in up.children:
        child.start_anew()
    children.wait_until_ready(up.children, READY_SECONDS)
    say(f"web server and workers ready after {time.monotonic() - began:.1f} s; logs are in {home.logs}")
    if trainer:  # nobody waits for it: its jobs are started from a page
        up.children.append(_lab_worker(home, local))
        up.children[-1].start_anew()


# ---------------------------------------------------------------------- what is prepared


def migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", interactive=False, verbosity=0)


def _collect_static(home: Home) -> None:
    """Copy and compress the pages' files, when one of them changed since the last start."""
    from django.contrib.staticfiles.finders import get_finders
    from django.core.management import call_command

    files = [
        [path, storage.size(path), storage.get_modified_time(path).isoformat()]
        for finder in get_finders()
        for path, storage in finder.list([])
    ]
    fingerprint = hashlib.sha256(json.dumps([__version__, sorted(files)]).encode()).hexdigest()
    mark = home.static / ".made-from"
    if mark.is_file() and mark.read_text() == fingerprint:
        return
    call_command("collectstatic", interactive=False, verbosity=0, clear=True)
    mark.write_text(fingerprint)


def make_signing_key() -> None:
    """The key that signs the audit log and the cards, made once. Raises HomeError when the log has one already and its
    file is gone: a log signed with another key could not be distinguished from a forged one."""
    from cohort.audit.keyfile import make_key
    from cohort.audit.keys import next_path
    from cohort.audit.models import LogKey
    from cohort.base.environment import environment

    path = environment().signing_key_path
    if path.exists() or next_path(path).exists():  # an interrupted replacement of the key leaves the new one there
        return
    if LogKey.objects.exists():
        raise HomeError(
            f"the audit log's signing key {path} is gone. Put it back from your copy; no other key can continue this "
            "log (docs/audit.md)."
        )
    make_key(path)


def make_node(home: Home) -> None:
    """The trainer's own identity, made once; again when the database does not know it or it was revoked."""
    from cohort.nodes.models import Node
    from cohort.nodes.services import node_create, token_digest

    if home.node_token.exists():
        digest = token_digest(home.node_token.read_text(encoding="utf-8").strip())
        if Node.objects.filter(token_digest=digest, revoked_at=None).exists():
            return
    taken = set(Node.objects.values_list("name", flat=True))
    name = next(name for number in range(1, 1000) if (name := f"local-{number}") not in taken)
    _, token = node_create(name=name)
    write_secret(home.node_token, token)


# ---------------------------------------------------------------------- what is started


def _web(home: Home, listener: socket.socket, local: str, environment: dict[str, str]) -> Child:
    # fmt: off
    argv = [
        sys.executable, "-m", "gunicorn", "--config", "python:cohort.server.gunicorn", "cohort.server.wsgi:application",
        "--bind", f"fd://{listener.fileno()}", "--workers", "2", "--graceful-timeout", "5",
        "--no-control-socket",
    ]
    # fmt: on
    return Child(
        name="web",
        argv=argv,
        environment=environment,
        folder=home.path,
        log=home.logs / "web.log",
        grace=15,
        pass_fds=(listener.fileno(),),
        ready=lambda child: _answers(f"{local}/healthz"),
    )


def _platform_worker(home: Home, environment: dict[str, str]) -> Child:
    """Reconciles, and nothing else: lost workers must not wait while records are made."""
    options = ("--queues", "platform", "--beat", "--schedule", str(home.path / "beat-schedule"), *_threads(1))
    return _celery(home, environment, "platform-worker", "cohort.background.worker", "platform", *options)


def _seal_worker(home: Home, environment: dict[str, str]) -> Child:
    """Makes records, in a separate process: neither their time nor their memory is the reconciler's."""
    options = ("--queues", "platform.seal", *_threads(2))
    return _celery(home, environment, "seal-worker", "cohort.background.worker", "seal", *options)


def _trainer_worker(home: Home, local: str) -> Child:
    return _celery(home, home.worker_environment(local), TRAINER_WORKER, "worker.celery_app", "train", grace=75)


def _lab_worker(home: Home, local: str) -> Child:
    """Tries and probes rewards, in a separate process, so that this waits for no run."""
    environment, options = home.worker_environment(local), ("--queues", LAB_QUEUE)
    return _celery(home, environment, LAB_WORKER, "worker.celery_app", "lab", *options)


def _threads(count: int) -> tuple[str, ...]:
    return ("--pool", "threads", "--concurrency", str(count))


def _celery(
    home: Home, environment: dict[str, str], name: str, app: str, host: str, *options: str, grace: float = 30
) -> Child:
    argv = [sys.executable, "-m", "celery", "-A", app, "worker", *options, "--hostname", f"{host}@%h"]
    return Child(
        name=name,
        argv=[*argv, "--loglevel", "INFO", *_QUIET_CELERY],
        environment=environment,
        folder=home.path,
        log=home.logs / f"{name}.log",
        grace=grace,
        ready=lambda child: " ready." in child.output(),
    )


_QUIET_CELERY = ("--without-gossip", "--without-mingle", "--without-heartbeat")
"""On the filesystem broker each of these would write files that nobody reads."""


def _answers(url: str) -> bool:
    with closing(HttpClient(private=True)) as client:
        try:
            return client.call("GET", url, headers={}, seconds=5, max_bytes=65536).status < 500
        except HttpError:
            return False


def _address(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in _ANY_ADDRESS else host
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"

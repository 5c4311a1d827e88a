"""What a node's user of RabbitMQ may do, which is to read its queues, and that no worker obeys remote control."""

import io
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import amqp
import pytest
from kombu import Connection
from kombu.utils.url import parse_url

from cohort.base.celery_app import app
from cohort.base.environment import environment
from cohort.cli.embedded.home import HomeError
from cohort.cli.embedded.people import node_broker_user
from cohort.cli.main import main
from cohort.nodes.broker_user import broker_user
from cohort.nodes.models import Node
from cohort.runs.dispatch import SEAL_QUEUE, waiting_messages
from cohort.runs.models import Run, RunState, ServiceBeat
from grpo_core.protocol.queues import LAB_QUEUE, PLATFORM_QUEUE, RUN_ATTEMPT_TASK, TRAIN_QUEUE, queue_pattern
from tests.needs import needs
from tests.processes import clean_environment, wait_for
from tests.worker.conftest import Site, celery_worker
from tests.worker.queues import take_all
from tests.worker.stand_in import stand_in
from tests.worker.test_platform_worker import platform_worker

PASSWORD = "p" * 24
OTHERS = [PLATFORM_QUEUE, SEAL_QUEUE, f"{TRAIN_QUEUE}.other", f"{TRAIN_QUEUE}.gpu2"]
"""Queues of the platform, of another node's label and of more GPUs."""


def rabbitmqctl(*words: str, given: str = "") -> str:
    done = subprocess.run(["rabbitmqctl", "-q", *words], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def node_address(site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """The broker's address for the worker of the node gpu-1, whose label is a100 and which has one GPU."""
    needs("rabbitmq")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{PASSWORD}\n"))
    assert main(["node", "gpu-1", "--broker-user", "--labels", "a100", "--gpus", "1"]) == 0
    definitions = capsys.readouterr().out
    assert PASSWORD not in definitions
    rabbitmqctl("import_definitions", given=definitions)
    for name in OTHERS:  # as the platform and the other nodes' definitions make them
        with app.connection_for_write() as connection:
            app.amqp.queues[name](connection.default_channel).declare()
        take_all(name)
    try:
        yield f"amqp://{broker_user('gpu-1')}:{PASSWORD}@{environment().broker_url.split('@')[1]}"
    finally:
        rabbitmqctl("delete_user", broker_user("gpu-1"))


def state(run: Run) -> str:
    run.refresh_from_db()
    return run.state


def test_a_worker_takes_its_run_as_its_nodes_user(site: Site, node_address: str, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    variables = {**stand_in("finish"), "COHORT_BROKER_URL": node_address, "COHORT_LABELS": "a100"}
    with celery_worker(site, tmp_path, **variables) as worker:
        run = site.launch()
        wait_for(lambda: state(run) == RunState.SEALING, lambda: log.read_text(), worker)
    assert "ACCESS_REFUSED" not in log.read_text()


def test_the_labs_worker_listens_as_its_nodes_user(site: Site, node_address: str, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with celery_worker(site, tmp_path, "--queues", LAB_QUEUE, COHORT_BROKER_URL=node_address) as worker:
        app.send_task("worker.unknown", queue=LAB_QUEUE)
        wait_for(lambda: "unregistered task" in log.read_text(), lambda: log.read_text(), worker)


def declare(channel: amqp.Channel) -> None:
    channel.queue_declare("anything")


def declare_unnamed(channel: amqp.Channel) -> None:
    channel.queue_declare("")


def declare_own_anew(channel: amqp.Channel) -> None:
    channel.queue_declare(TRAIN_QUEUE, durable=True, auto_delete=False)


def declare_exchange(channel: amqp.Channel) -> None:
    channel.exchange_declare("anything", "direct")


def delete_own(channel: amqp.Channel) -> None:
    channel.queue_delete(TRAIN_QUEUE)


def delete_exchange(channel: amqp.Channel) -> None:
    channel.exchange_delete(PLATFORM_QUEUE)


def bind_own(channel: amqp.Channel) -> None:
    channel.queue_bind(TRAIN_QUEUE, PLATFORM_QUEUE, PLATFORM_QUEUE)


def unbind_own(channel: amqp.Channel) -> None:
    channel.queue_unbind(TRAIN_QUEUE, TRAIN_QUEUE, TRAIN_QUEUE)


def bind_exchange(channel: amqp.Channel) -> None:
    channel.exchange_bind(TRAIN_QUEUE, PLATFORM_QUEUE)


def published(exchange: str, routing_key: str) -> Callable[[amqp.Channel], None]:
    def publish(channel: amqp.Channel) -> None:
        channel.confirm_select()
        channel.basic_publish_confirm(amqp.Message("{}"), exchange, routing_key)

    return publish


def consumed(queue: str) -> Callable[[amqp.Channel], None]:
    return lambda channel: channel.basic_consume(queue, callback=lambda _message: None)


def fetched(queue: str) -> Callable[[amqp.Channel], None]:
    return lambda channel: channel.basic_get(queue)


def purged(queue: str) -> Callable[[amqp.Channel], None]:
    return lambda channel: channel.queue_purge(queue)


def everything() -> Iterator[tuple[str, Callable[[amqp.Channel], None]]]:
    simple = (declare, declare_unnamed, declare_own_anew, declare_exchange, delete_own, delete_exchange)
    for operation in (*simple, bind_own, unbind_own, bind_exchange):
        yield operation.__name__, operation
    for queue in [*OTHERS, TRAIN_QUEUE, LAB_QUEUE]:
        yield f"publish to {queue}", published(queue, queue)
        yield f"publish to {queue} by the default exchange", published("", queue)
    for exchange in ("amq.fanout", "amq.direct", "amq.topic"):
        yield f"publish to {exchange}", published(exchange, "")
    for queue in OTHERS:
        yield f"consume {queue}", consumed(queue)
        yield f"get from {queue}", fetched(queue)
        yield f"purge {queue}", purged(queue)


def test_rabbitmq_refuses_a_nodes_user_all_but_to_read_its_queues(node_address: str) -> None:
    app.send_task("worker.unknown", queue=PLATFORM_QUEUE)
    parts = parse_url(node_address)
    host = f"{parts['hostname']}:{parts['port'] or 5672}"
    account: dict[str, Any] = {"userid": parts["userid"], "password": parts["password"]}
    allowed = []
    with closing(amqp.Connection(host, virtual_host=parts["virtual_host"] or "/", **account)) as connection:
        connection.connect()
        for name, operation in everything():
            try:
                operation(connection.channel())
            except amqp.AccessRefused:
                continue
            allowed.append(name)
        assert allowed == []
        own = connection.channel()
        for queue in (TRAIN_QUEUE, f"{TRAIN_QUEUE}.a100.gpu1", LAB_QUEUE):
            own.basic_consume(queue, callback=lambda _message: None)
    assert waiting_messages(PLATFORM_QUEUE) == 1
    take_all(PLATFORM_QUEUE)


def test_a_nodes_user_reaches_no_other_vhost_and_no_management(node_address: str) -> None:
    other = f"cohort-test-{uuid.uuid4()}"
    rabbitmqctl("add_vhost", other)
    server = node_address.removesuffix(parse_url(node_address)["virtual_host"] or "").rstrip("/")
    try:
        with pytest.raises(amqp.NotAllowed), Connection(f"{server}/{other}") as connection:
            connection.connect()
    finally:
        rabbitmqctl("delete_vhost", other)
    users = rabbitmqctl("list_users", "--silent").splitlines()
    assert f"{broker_user('gpu-1')}\t[]" in users


@pytest.mark.parametrize("who", ["platform", "node"])
def test_no_worker_obeys_remote_control(site: Site, node_address: str, tmp_path: Path, who: str) -> None:
    """Not even from who may do everything on the broker: nothing of it is declared there."""
    sender = environment().broker_url if who == "platform" else node_address
    (tmp_path / "platform").mkdir()
    own = celery_worker(site, tmp_path, **stand_in("finish"), COHORT_BROKER_URL=node_address)
    with platform_worker(tmp_path / "platform") as platform, own as worker:
        beat = ServiceBeat.objects.filter(name="reconciler")
        wait_for(beat.exists, "the platform's worker looks at the leases", platform)
        wait_for(lambda: Node.objects.filter(last_seen_at__isnull=False).exists(), "the worker is ready", worker)
        control = [sys.executable, "-m", "celery", "--broker", sender, "control", "shutdown"]
        done = subprocess.run(control, env=clean_environment(), capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "OK" not in done.stdout
        run = site.launch()
        wait_for(lambda: state(run) == RunState.SEALING, lambda: (tmp_path / "worker.log").read_text(), worker)
        app.send_task("cohort.background.reconcile", queue=PLATFORM_QUEUE)
        log = tmp_path / "platform" / "log"
        wait_for(lambda: "cohort.background.reconcile" in log.read_text(), lambda: log.read_text(), platform)
        assert (worker.poll(), platform.poll()) == (None, None)
        vhost = parse_url(environment().broker_url)["virtual_host"] or "/"
        names = rabbitmqctl("list_queues", "--silent", "-p", vhost, "name").split()
        assert [name for name in names if "pidbox" in name or name.startswith("celeryev")] == []


def test_a_pattern_matches_a_nodes_queues_and_no_others() -> None:
    """Labels may be parts of other names."""
    pattern = re.compile(queue_pattern(labels=["a100", "b_c-d"], gpus=1))
    own = [TRAIN_QUEUE, "train.gpu1", "train.a100", "train.a100.gpu1", "train.b_c-d", "train.b_c-d.gpu1", LAB_QUEUE]
    assert [name for name in own if not pattern.search(name)] == []
    foreign = ["train.gpu2", "train.a1000", "xtrain", "train.a100.gpu11", "trainXa100", "labs", "", "train\n", *OTHERS]
    assert [name for name in foreign if pattern.fullmatch(name)] == []


def test_a_users_password_may_not_be_weak_nor_a_label_wrong(site: Site) -> None:
    needs("rabbitmq")
    with pytest.raises(HomeError, match="password"):
        node_broker_user(name="gpu-1", password="short", labels=[], gpus=0)
    with pytest.raises(HomeError, match="label"):
        node_broker_user(name="gpu-1", password=PASSWORD, labels=["A|.*"], gpus=0)
    with pytest.raises(HomeError, match="no node"):
        node_broker_user(name="another", password=PASSWORD, labels=[], gpus=0)


def test_only_rabbitmq_has_users_with_rights(site: Site) -> None:
    needs("file-broker")
    with pytest.raises(HomeError, match="RabbitMQ"):
        node_broker_user(name="gpu-1", password=PASSWORD, labels=[], gpus=0)


def test_what_a_worker_lacks_on_the_broker_it_declares_where_it_may(site: Site, tmp_path: Path) -> None:
    """With the platform's own account, as on one host."""
    needs("rabbitmq")
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(TRAIN_QUEUE)
    with celery_worker(site, tmp_path, **stand_in("finish")) as worker:
        wait_for(lambda: Node.objects.filter(last_seen_at__isnull=False).exists(), "the worker is ready", worker)
        run = site.launch()
        app.send_task(RUN_ATTEMPT_TASK, args=[run.pk], queue=TRAIN_QUEUE)
        wait_for(lambda: state(run) == RunState.SEALING, lambda: (tmp_path / "worker.log").read_text(), worker)

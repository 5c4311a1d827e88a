"""What a person does, done by a process of the platform: one line of JSON in, one line of JSON out.

It has the platform's settings, so that a launch publishes to the stand's broker and commits to the stand's database.
"""

import json
import os
import sys
import traceback
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import close_old_connections  # noqa: E402

from cohort.accounts.models import Project, User  # noqa: E402
from cohort.accounts.services import project_create, user_create  # noqa: E402
from cohort.background.reconcile import reconcile  # noqa: E402
from cohort.base.celery_app import app  # noqa: E402
from cohort.catalog.models import BaseModel, PromptDataset, VerifierVersion  # noqa: E402
from cohort.catalog.services import base_model_register, dataset_create, verifier_version_create  # noqa: E402
from cohort.cli.embedded.up import make_signing_key  # noqa: E402
from cohort.nodes.services import node_create  # noqa: E402
from cohort.runs.models import Run  # noqa: E402
from cohort.runs.services import run_cancel, run_resume, run_retry  # noqa: E402
from grpo_core.protocol.queues import RUN_ATTEMPT_TASK, TRAIN_QUEUE  # noqa: E402
from tests.factories.runs import Maker  # noqa: E402
from tests.factories.stock import PASSWORD  # noqa: E402

# Digits come up by chance in a random model's bytes, so rewards differ inside a group and the weights move.
PROBLEMS = b"".join(
    json.dumps({"id": f"digit-{number}", "prompt": f"say {number % 10}", "answer": str(number % 10)}).encode() + b"\n"
    for number in range(40)
)
REWARD = {"components": [{"name": "digit", "kind": "exact", "params": {"extract": "last_number"}}]}


def prepare() -> None:
    """Tables, a person with a project, and a model folder's catalog entry to start runs from."""
    call_command("migrate", interactive=False, verbosity=0)
    call_command("collectstatic", interactive=False, verbosity=0)
    make_signing_key()
    user = user_create(username="alice", password=PASSWORD)[0]
    project = project_create(slug="ours", name="Our project", owner=user)
    base_model_register(project=project, actor=user, name="tiny", path="tiny")
    dataset_create(project=project, actor=user, name="digits", format="plain", chunks=[PROBLEMS], source="tests")
    verifier_version_create(project=project, actor=user, name="digit", spec=REWARD)
    reconcile()  # one that finds runs at its first round ever takes itself for one that was away, and spares them


def node(name: str) -> str:
    return node_create(name=name)[1]


def launch(settings: dict[str, Any]) -> int:
    catalog = (BaseModel.objects.get(), PromptDataset.objects.get(), VerifierVersion.objects.get())
    return Maker(Project.objects.get(), User.objects.get(), *catalog).launched("a run", **settings).pk


def press(run: int, service: str) -> None:
    """What a person does with a run's buttons."""
    services = {"cancel": run_cancel, "resume": run_resume, "retry": run_retry}
    services[service](run=Run.objects.get(pk=run), actor=User.objects.get())


def publish(run: int, times: int) -> None:
    """The same message again and again, as a broker that delivers twice."""
    for _ in range(times):
        app.send_task(RUN_ATTEMPT_TASK, args=[run], queue=TRAIN_QUEUE)


DEEDS = {deed.__name__: deed for deed in (prepare, node, launch, press, publish)}


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what Django's commands print is no answer
    for line in sys.stdin:
        call = json.loads(line)
        close_old_connections()
        try:
            reply: dict[str, Any] = {"answer": DEEDS[call.pop("do")](**call)}
        except Exception:  # noqa: BLE001  whatever it was, the test that asked is told
            reply = {"failed": traceback.format_exc()}
        print(json.dumps(reply), file=out, flush=True)


main()

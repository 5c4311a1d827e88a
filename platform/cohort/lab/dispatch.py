"""Messages to the workers of the reward lab, sent only once the database has the change. A message is a hint: one that
cannot be published is logged, and the reconciler publishes it again."""

import logging
from functools import partial

from django.db import transaction

from cohort.base.celery_app import app
from cohort.lab.models import LabJob
from cohort.runs.dispatch import BROKER_ERRORS
from grpo_core.protocol.queues import LAB_JOB_TASK, LAB_QUEUE

log = logging.getLogger(__name__)


def job_on_commit(*, job: LabJob) -> None:
    """Tell the workers that this job waits."""
    transaction.on_commit(partial(publish, job.pk))


def publish(job_id: int) -> None:
    try:
        app.send_task(LAB_JOB_TASK, args=[job_id], queue=LAB_QUEUE)
    except BROKER_ERRORS as error:
        log.warning("could not publish the lab's job %s, the reconciler will: %s", job_id, error)

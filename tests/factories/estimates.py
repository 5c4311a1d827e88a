"""Estimates of runs that a node has measured: a node that can, what it says, a job done with that."""

from typing import Any

from cohort.lab.jobs import job_claim, job_finish
from cohort.lab.models import LabJob
from cohort.runs.models import Node
from cohort.runs.nodes import node_create, node_present
from grpo_core.wire import JobFinish, NodeInfo
from tests.factories.worker import NODE


def told(job: LabJob, **other: Any) -> dict[str, Any]:
    result: dict[str, Any] = {
        "config_digest": job.config_digest,
        "device": "cpu",
        "device_name": "AMD EPYC",
        "seconds_per_step": 0.5,
        "seconds_total": 130.0,
        "parts": {"sample": 0.3, "update": 0.2},
        "peak_memory_bytes": 2_000_000_000,
        "completion_tokens": 21.5,
        "length_from": "calibration",
        "prompts": 8,
        "calibration_seconds": 4.0,
        "warnings": ["evaluations take longer than the training"],
        "spread": {"seconds_per_step": [0.4, 0.7], "peak_memory_bytes": [1.9e9, 2.2e9]},
    }
    return result | other


def there(name: str = "node-e", info: NodeInfo = NODE) -> Node:
    node, _ = node_create(name=name)
    node_present(node=node, info=info)
    return node


def measured(job: LabJob, node: Node, **other: Any) -> LabJob:
    given = job_claim(job_id=job.pk, node=node, info=NODE)
    assert given.job.pk == job.pk
    end = JobFinish(fence=given.job.fence, end="done", result=told(job, **other), seconds=5.0)
    job_finish(job=given.job, finish=end)
    job.refresh_from_db()
    return job

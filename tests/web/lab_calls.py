"""Asking for jobs of the reward lab by the service, and doing them over the worker API, as a worker's calls are."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from cohort.accounts.models import Project, User
from cohort.lab.models import LabJob
from cohort.lab.services import job_ask
from cohort.runs.nodes import node_create
from grpo_core.config_reward import RewardConfig
from grpo_core.errors import ConfigError
from grpo_core.lab.result import LabSample, result_of
from grpo_core.records import ComponentScore
from grpo_core.rewards import Rubric
from grpo_core.wire import JobGiven
from tests.web.worker_calls import Caller
from tests.worker.making import NODE

RIGHT = {"components": [{"name": "right", "kind": "numeric", "params": {"extract": "last_number"}}]}
PYTHON = {
    "components": [{"name": "own", "kind": "python", "params": {"source": "def verify(sample):\n    return 1.0\n"}}]
}
TEXTS = {"texts": [{"prompt": "1+1", "answer": "2", "completion": "2"}]}
SAMPLING = {"problems": 4, "group_size": 2}


class JobCaller(Caller):
    def __init__(self, given: JobGiven) -> None:
        super().__init__(given.token)
        self.at, self.fence = f"jobs/{given.job_id}", given.fence

    def beat(self, fence: int | None = None, **more: Any) -> Any:
        return self.post(f"{self.at}/heartbeat", {"fence": fence or self.fence, **more})

    def finish(self, end: str, *, fence: int | None = None, **more: Any) -> Any:
        return self.post(f"{self.at}/finish", {"fence": fence or self.fence, "end": end, "seconds": 1.5, **more})


@pytest.fixture
def node(db: None) -> Caller:
    return Caller(node_create(name="gpu-1")[1])


@pytest.fixture
def ask(ours: Project, alice: User) -> Callable[..., LabJob]:
    """Asks for a job: a try of RIGHT on one text, unless something else is given."""

    def asked(kind: Any = "try", options: dict[str, Any] = TEXTS, **more: Any) -> LabJob:
        given = {"spec": RIGHT} if "version" not in more and "spec" not in more else {}
        return job_ask(**{"project": ours, "actor": alice, "kind": kind, "options": options, **given, **more})

    return asked


def expire() -> None:
    """The leases of all jobs are over."""
    LabJob.objects.update(lease_until=Now() - timedelta(seconds=1))


def claim(node: Caller, *, job_id: int = 1, claim_id: str = "", info: Any = NODE) -> Any:
    return node.post("jobs/claim", {"job_id": job_id, "claim_id": claim_id, "node": info.model_dump(mode="json")})


def taken(node: Caller, **more: Any) -> JobGiven:
    answer = claim(node, **more)
    assert answer.status_code == 201, answer.content
    return JobGiven.model_validate_json(answer.content)


def result(spec: dict[str, Any] = RIGHT, *, completion: str = "2", count: int = 1) -> dict[str, Any]:
    rubric = Rubric(RewardConfig.model_validate(spec))
    sample = LabSample(
        problem_id="text-1",
        prompt="1+1",
        answer="2",
        completion=completion,
        reward=1.0,
        components={"right": ComponentScore(value=1.0, passed=True)},
        group=0,
    )
    made = result_of(
        kind="try", rubric_digest=rubric.digest, weights={"right": 1.0}, samples=[sample] * count, seconds=0.5
    )
    return made.model_dump(mode="json", by_alias=True)


def faults(asked: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        asked()
    return [problem.path for problem in error.value.problems]

"""What the lab looks at: a saved version of a reward, or an unsaved draft."""

import json
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest

from cohort.accounts.models import Project
from cohort.base.formatting import natural
from cohort.catalog.models import VerifierVersion
from cohort.catalog.services import SpecInvalid, checked_rubric
from cohort.lab.models import LabJob
from cohort.web.lab.selectors_pages import version_of
from grpo_core.rewards import Rubric


@dataclass(frozen=True)
class Subject:
    rubric: Rubric
    version: VerifierVersion | None

    @property
    def spec(self) -> dict[str, Any]:
        return self.version.spec if self.version else self.rubric.config.model_dump(mode="json")

    @property
    def hidden(self) -> tuple[str, str]:
        """Name and value of the hidden field that identifies in a form what is tried."""
        return ("version", str(self.version.pk)) if self.version else ("spec", json.dumps(self.spec))

    @property
    def job_subject(self) -> dict[str, Any]:
        """The same as arguments of `lab.services.job_ask`."""
        return {"version": self.version} if self.version else {"spec": self.spec}

    @property
    def components(self) -> list[dict[str, Any]]:
        return list(self.spec["components"])

    @property
    def at_once(self) -> bool:
        """Only rules of our own that take time linear in the text: the web process itself may score with it."""
        return self.rubric.rules_alone


def of_version(version: VerifierVersion) -> Subject:
    return Subject(checked_rubric(version.spec), version)


def of_job(job: LabJob) -> Subject:
    return Subject(checked_rubric(job.spec), job.version)


def posted(request: HttpRequest, project: Project) -> Subject:
    """What a form of the lab sent: the id of a version of this project, or a whole spec. 404 for anything else: no
    page of ours sends it."""
    if "version" in request.POST:
        return of_version(version_of(project, natural(request.POST["version"]) or 0))
    try:
        spec = json.loads(request.POST.get("spec", ""))
        return Subject(checked_rubric(spec), None)
    except (ValueError, RecursionError, SpecInvalid):
        raise Http404 from None

"""A record judged by the policy in force now, with what came after its seal."""

import json
from dataclasses import dataclass

from cohort.evidence.policy.judge import Judgement, judge
from cohort.evidence.policy.text import parse_policy
from cohort.evidence.policy.view import Life, RecordView, SignOff
from cohort.records.after_seal.rules import Standing
from cohort.records.models import PolicyVersion, Record
from cohort.records.policies.services import policy_in_force


@dataclass(frozen=True)
class Gate:
    """What the project's policy gives of a record."""

    version: PolicyVersion
    judgement: Judgement

    @property
    def closed(self) -> bool:
        """Whether the record may have no public page."""
        return self.version.demanded and self.judgement.verdict != "met"


def gate_of(record: Record, standing: Standing) -> Gate | None:
    """None where the project has no policy. `standing`: the record's sign-offs now."""
    version = policy_in_force(record.run.project)
    if version is None:
        return None
    view = RecordView(json.loads(record.document), life_of(record, standing))
    return Gate(version, judge(parse_policy(version.text), view))


def life_of(record: Record, standing: Standing) -> Life:
    signed = tuple(SignOff(entry.role, entry.decision, entry.by.username) for entry in standing.signed)
    superseded = Record.objects.filter(supersedes=record).exists()
    return Life(signed, revoked=standing.revocation is not None, superseded=superseded)

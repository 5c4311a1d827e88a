"""What the project's policy gives of a record at the moment of its seal."""

from collections.abc import Mapping
from typing import Any

from cohort.evidence.policy.judge import judge
from cohort.evidence.policy.text import parse_policy
from cohort.evidence.policy.view import RecordView
from cohort.records.answers import measured, not_applicable, short
from cohort.records.models import PolicyVersion
from cohort.records.schema_types import Answer

NO_POLICY = not_applicable("The project had no policy when the record was sealed.")
_NOTE = (
    "Judged from the fields of this record; the value has the rules, so that anyone can judge it again. Sign-offs come "
    "after the seal: rules about them are judged where these are known."
)


def policy_answer(version: PolicyVersion, document: Mapping[str, Any]) -> Answer:
    """Of the record without this field. Answers alone, without what other fields say: those have their own audience."""
    policy = parse_policy(version.text)
    judgement = judge(policy, RecordView(document))
    value = {
        "name": policy.name,
        "version": version.number,
        "digest": policy.digest,
        "demanded": version.demanded,
        "content": dict(policy.content),
        "verdict": judgement.verdict,
        "rules": [judged.as_dict() for judged in judgement.rules],
    }
    text = f"{policy.name}, version {version.number} ({short(policy.digest)}): {judgement.verdict}; {judgement.summary}"
    return measured(value, text, evidence="recomputable", note=_NOTE)

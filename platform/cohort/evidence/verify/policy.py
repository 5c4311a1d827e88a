"""Is what the record says of its project's policy what its own fields give?"""

from collections.abc import Mapping

from cohort.evidence.card_reader import Rejected
from cohort.evidence.plain_text import counted, named
from cohort.evidence.policy.judge import differences, judge
from cohort.evidence.policy.text import PolicyFault, policy_of
from cohort.evidence.policy.view import RecordView
from cohort.evidence.verify.opened import OpenCard


def sealed(card: OpenCard) -> str | tuple[str, ...]:
    """Every answer follows from the fields that this card shows; the digest is that of the rules."""
    recorded = card.value("oversight", "policy")
    if recorded is None:
        return "the project had no policy when the record was sealed"
    try:
        if not isinstance(recorded, Mapping):
            raise TypeError("the field is no policy")
        policy = policy_of(recorded["content"])
        judgement = judge(policy, RecordView(card.document))
        faults = differences(judgement, recorded)
        if recorded["digest"] != policy.digest:
            faults.insert(0, f"the digest of its rules is {policy.digest}, and the record says {recorded['digest']!a}")
        if recorded["name"] != policy.name:
            faults.insert(0, "its name is another than that in its rules")
        hidden = [judged.rule.name for judged in judgement.rules if judged.why == "withheld"]
        if not hidden and recorded["verdict"] != judgement.verdict:
            faults.append(f"recorded is {recorded['verdict']!a}, and the answers give {judgement.verdict}")
        version = int(recorded["version"])
    except (PolicyFault, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Rejected(f"the record's policy: {error}") from None
    if faults:
        raise Rejected(*(f"the record's policy: {fault}" for fault in faults))
    lines = [
        f"{policy.name}, version {version}, at the seal: {recorded['verdict']}; recomputed from the record's fields"
    ]
    if hidden:
        lines.append(f"{counted(len(hidden), 'rule')} by fields that this audience does not get: {named(hidden)}")
    return tuple(lines)

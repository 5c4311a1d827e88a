"""A run's governance record, from the facts the platform holds. Deterministic: the same facts give the same record."""

from cohort.governance.facts import Facts, TracesInCard
from cohort.governance.schema import Record
from cohort.governance.sections_behaviour import behaviour, handling
from cohort.governance.sections_method import data, method, reward
from cohort.governance.sections_run import budget, rejected, subject


def build_record(facts: Facts, *, data_files_digest: str, traces: TracesInCard) -> Record:
    return Record(
        title=facts.run.name,
        sealed_at=facts.sealed_at,
        state=facts.state,
        data_files_digest=data_files_digest,
        subject=subject(facts),
        reward=reward(facts),
        data=data(facts),
        method=method(facts),
        rejected=rejected(facts, traces=traces),
        budget=budget(facts),
        behaviour=behaviour(facts),
        handling=handling(facts),
    )

"""One sample, to be shown alone: its text, its salt, and the proof that it is in the run's tree.

Anyone with a card of the run, of any audience, checks it with `cohort verify CARD.zip --trace PROOF.json`: the card
names the tree's root, and reveals nothing of the other samples.
"""

from typing import Any

from cohort.accounts.models import User
from cohort.audit import services as audit
from cohort.base.storable import Refused
from cohort.evidence.samples import Commitments, SampleFault, sample_proof
from cohort.records.models import Record
from cohort.records.traces.tree import step_leaves
from cohort.review.models import Sample
from cohort.runs.transitions import run_logged


class NoProof(Refused, code="no_proof"):
    """Why this sample cannot be shown with a proof."""


def disclose(*, sample: Sample, actor: User) -> dict[str, Any]:
    """The proof, under the newest record of the run. Disclosures are logged. Raises NoProof."""
    group = sample.group
    run = group.run
    if sample.redacted_at is not None:
        raise NoProof(
            "its text was deleted, so there is nothing to show; its hash is still in the run's tree", code="redacted"
        )
    if not sample.salt:
        raise NoProof("it was recorded before completions were committed to", code="not_committed")
    record = Record.objects.filter(run=run).order_by("-end", "-version").first()
    if record is None or not record.run_root:
        raise NoProof(
            "the run has no record that names the root of its completions; it is sealed when the run ends",
            code="no_record",
        )
    commitments = Commitments(step.line() for step in step_leaves(run))
    if commitments.root().hex() != record.run_root:
        raise NoProof(
            "the run was resumed since its newest record was sealed; another is sealed at its next end", code="went_on"
        )
    content = {
        "step": group.step,
        "group": group.index,
        "sample": sample.index,
        "problem_id": group.problem_id,
        "prompt": group.prompt,
        "completion": sample.completion,
        "tokens": sample.tokens,
        "finish_reason": sample.finish_reason,
        "reward": sample.reward,
        "advantage": sample.advantage,
    }
    if sample.tokens_sha256:
        content["tokens_sha256"] = sample.tokens_sha256
    position = group.index * group.samples.count() + sample.index
    try:
        proof = sample_proof(commitments, position=position, salt=sample.salt, content=content)
    except SampleFault as fault:
        raise NoProof(f"{fault}; a later attempt may have done the step again", code="other_attempt") from None
    data = {"step": group.step, "group": group.index, "sample": sample.index, "index": proof["index"]}
    run_logged(run=run, actor=audit.who(actor), kind="sample_disclosed", data=data)
    return proof

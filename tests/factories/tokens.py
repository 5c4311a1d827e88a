"""Samples whose token arrays the platform holds."""

from typing import Any

from cohort.base import artifacts
from cohort.review.models import Sample, TokenFile
from cohort.runs.models import Run
from grpo_core.files.token_file import TokenRow
from tests.factories.runs import Maker, add_group
from tests.factories.token_rows import SALT, content_of


def stored_sample(maker: Maker, run: Run, arrays: dict[str, Any], **fields: Any) -> Sample:
    """A sample whose arrays have arrived."""
    group = add_group(run.attempts.first() or maker.attempt(run), [1.0, 0.0], **fields)
    sample = group.samples.get(index=1)
    row = TokenRow(group.index, 1, SALT, arrays)
    content = content_of([row])
    sample.tokens, sample.tokens_sha256 = len(arrays["piece"]), row.digest
    sample.save()
    file = TokenFile.objects.create(
        attempt=group.attempt,
        run=run,
        seq=group.seq + 1000,
        step=group.step,
        size=len(content),
        sha256="ab" * 32,
        samples=[[group.index, 1]],
        held=[[group.index, 1]],
        done_at="2026-11-28T00:00Z",
        artifact=f"tokens/run-{run.pk}/{group.step}.parquet",
    )
    artifacts.put(file.artifact, [content])
    return sample

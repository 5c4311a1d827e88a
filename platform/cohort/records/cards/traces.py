"""traces/*.jsonl: the kept groups of a run, one a line, each sample with the salt of its leaf in the run's tree.

They are not sealed, so that a sample can be redacted later: its text goes, its leaf in commitments.jsonl stays, and
every other sample can still be checked.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any

from cohort.records.cards.data_files import Chunks, line
from cohort.records.facts import TracesInCard
from cohort.review.models import Sample
from cohort.review.services import current_groups
from cohort.runs.models import Run

STEPS_A_FILE = 100
_GROUPS_AT_ONCE = 100
_GROUP = ("id", "attempt__fence", "step", "index", "problem_id", "prompt", "answer", "reward_mean", "reward_std",
          "signal", "discarded", "sampled_at")  # fmt: skip
_SAMPLE = ("group_id", "index", "completion", "tokens", "finish_reason", "reward", "shaped_reward", "components",
           "advantage", "mask_cause", "logprob_mean", "salt", "tokens_sha256", "redacted_at")  # fmt: skip

Line = tuple[int, bytes, int]
"""(step, line, samples)."""
SampleKey = tuple[int, int, int, int]
"""(fence of the attempt, step, group, sample)."""


class Traces:
    """The groups of `lines` in files, up to `most` bytes; `kept` counts what `files` gave."""

    def __init__(self, lines: Iterable[Line], *, most: int, most_a_file: int) -> None:
        self._given, self._most, self._most_a_file = lines, most, most_a_file
        self.kept = TracesInCard(groups=0, samples=0, cut_at=None)

    def files(self) -> Iterator[tuple[str, Chunks]]:
        """(path, content): a hundred steps a file, split into more files when too large."""
        lines = self._bounded()
        ahead = next(lines, None)
        block = part = -1
        while ahead is not None:
            part = part + 1 if ahead[0] == block else 1
            block = ahead[0]
            first, last = block * STEPS_A_FILE + 1, (block + 1) * STEPS_A_FILE

            def content(block: int = block) -> Chunks:
                nonlocal ahead
                size = 0
                while ahead is not None and ahead[0] == block and size < self._most_a_file:
                    size += len(ahead[1])
                    yield ahead[1]
                    ahead = next(lines, None)

            yield f"traces/steps-{first:06d}-{last:06d}{f'-{part}' if part > 1 else ''}.jsonl", content()

    def _bounded(self) -> Iterator[tuple[int, bytes]]:
        """(block of a hundred steps, line) of each group, in order."""
        written = groups = samples = 0
        for step, text, count in self._given:
            written += len(text)
            if written > self._most:
                self.kept = TracesInCard(groups, samples, cut_at=step)
                return
            groups += 1
            samples += count
            yield (step - 1) // STEPS_A_FILE, text
        self.kept = TracesInCard(groups, samples, cut_at=None)


def trace_lines(run: Run) -> Iterator[Line]:
    """Every kept current group, by step and index, as it is now."""
    rows = current_groups(run).values_list(*_GROUP).iterator(chunk_size=_GROUPS_AT_ONCE)
    while groups := list(islice(rows, _GROUPS_AT_ONCE)):
        by_group: dict[int, list[dict[str, Any]]] = {group[0]: [] for group in groups}
        samples = Sample.objects.filter(group__in=list(by_group)).order_by("group_id", "index").values_list(*_SAMPLE)
        for sample in samples:
            by_group[sample[0]].append(_sample(sample))
        for group in groups:
            value = dict(zip(_GROUP[2:], group[2:], strict=True)) | {"attempt": group[1], "samples": by_group[group[0]]}
            value["discarded"] = value["discarded"] or None
            yield group[2], line(value), len(by_group[group[0]])


def _sample(row: tuple[Any, ...]) -> dict[str, Any]:
    value = dict(zip(_SAMPLE[1:], row[1:], strict=True))
    if value.pop("redacted_at") is not None:
        return redacted(value["index"])
    value["mask_cause"] = value["mask_cause"] or None
    value["salt"] = value["salt"] or None
    if not value["tokens_sha256"]:
        del value["tokens_sha256"]
    return value


def redacted(index: int) -> dict[str, Any]:
    """The placeholder for a sample whose text was deleted."""
    return {"index": index, "redacted": True}


def redacted_lines(lines: Iterable[dict[str, Any]], deleted: Collection[SampleKey]) -> Iterator[Line]:
    """Groups of an earlier card, without the samples that were deleted since."""
    for group in lines:
        samples = [
            redacted(sample["index"])
            if (group["attempt"], group["step"], group["index"], sample["index"]) in deleted
            else sample
            for sample in group["samples"]
        ]
        yield group["step"], line({**group, "samples": samples}), len(samples)

"""Scores the stored samples of a run again, with another reward: what comes page by page is scored as in training.

Worker and job exchange files, since a job knows no platform: the worker writes pages of stored groups, and sends on
their scores. A page that is scored is deleted, so however many samples a run has, a few pages are here at a time.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from grpo_core.config.reward import RewardConfig
from grpo_core.data.problem import Problem
from grpo_core.lab.job import RescoreOptions
from grpo_core.protocol.messages import GroupPage, GroupRescored, SampleRescored, StoredGroup
from grpo_core.records.bounds import Count, Facts, Name, Seconds
from grpo_core.records.types import Body, ComponentScore
from grpo_core.rewards import Rubric, Runner, Scored, ScoreRequest
from grpo_core.rewards.signal import signal_of, with_overlong
from grpo_core.runtime.progress import Progress
from grpo_core.stats.paired import nearly_equal

FOLDER = "samples"
"""Of the exchange, in the job's output folder."""
PAUSE = 0.1
"""Seconds between two looks for a page."""
AHEAD = 2
"""Pages that may wait to be scored."""
_ERROR_CHARS = 300


class RescoreEnded(Body):
    """result.json of a re-score; the scores were sent page by page."""

    kind: Literal["rescore"] = "rescore"
    rubric_digest: str
    samples: Count
    """Scored by this job, or found to have no score; fewer than the run's where an earlier worker had begun."""
    device: Name
    cost: Facts
    """What components report: versions, calls, a judge's usage."""
    sandbox: Facts | None
    """Report of the sandbox, where the reward used one."""
    seconds: Seconds


class Scores(Body):
    """Those of one page."""

    groups: list[GroupRescored]


class PageExchange:
    """The folder through which pages and scores pass, each a file that appears whole and is removed once it is done
    with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # ------------------------------------------------------------------ the worker's side

    @property
    def has_room(self) -> bool:
        """Whether another page may be fetched."""
        return not self._closed.exists() and len(self._files("page")) < AHEAD

    def send(self, page: GroupPage, number: int) -> None:
        """One without groups is the last."""
        if page.groups:
            self._write(self._folder / f"page-{number:09d}.json", page.model_dump_json())
        else:
            self._write(self._closed, "")

    def scores(self) -> tuple[Path, list[GroupRescored]] | None:
        """The oldest that were not removed yet, and their file."""
        files = self._files("scores")
        return (files[0], Scores.model_validate_json(files[0].read_bytes()).groups) if files else None

    # ------------------------------------------------------------------ the job's side

    def pages(self, check: Callable[[], None]) -> Iterator[tuple[Path, GroupPage]]:
        """Each page and its file as it comes, to the last one. `check` is called while there is none."""
        while True:
            check()
            last = self._closed.exists()  # looked for first: the pages before it are there then
            files = self._files("page")
            if files:
                yield files[0], GroupPage.model_validate_json(files[0].read_bytes())
            elif last:
                return
            else:
                time.sleep(PAUSE)

    def answer(self, page: Path, groups: list[GroupRescored]) -> None:
        """The page's scores; it is removed."""
        self._write(page.with_name(page.name.replace("page", "scores")), Scores(groups=groups).model_dump_json())
        page.unlink()

    @property
    def _closed(self) -> Path:
        return self._folder / "closed"

    def _files(self, kind: str) -> list[Path]:
        return sorted(self._folder.glob(f"{kind}-*.json"))

    def _write(self, path: Path, text: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.part")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def unfailing(rubric: Rubric) -> Rubric:
    """The reward as a run has it, but that an error never ends the job: its sample is left without a reward."""
    if rubric.config.on_error != "fail":
        return rubric
    return Rubric(RewardConfig.model_validate({**rubric.config.model_dump(), "on_error": "mask"}))


def rescore(
    options: RescoreOptions,
    exchange: PageExchange,
    *,
    runner: Runner,
    problems: Mapping[str, Problem],
    progress: Progress,
    check: Callable[[], None],
) -> int:
    """Score every page that comes; returns how many samples that were. `problems` of the run's dataset by their id."""
    scorer = PageScorer(options, runner, problems, check)
    samples = before = 0
    for path, page in exchange.pages(check):
        if not samples:  # an earlier worker may have scored some
            before = page.done
            progress.begin("scoring", options.samples, done=before)
        exchange.answer(path, scorer.scored(page))
        samples += sum(len(group.samples) for group in page.groups)
        progress.advance(before + samples, "samples scored")
    return samples


class PageScorer:
    """Makes scores of pages, one after another."""

    def __init__(
        self, options: RescoreOptions, runner: Runner, problems: Mapping[str, Problem], check: Callable[[], None]
    ) -> None:
        self._options, self._runner, self._problems, self._check = options, runner, problems, check

    def scored(self, page: GroupPage) -> list[GroupRescored]:
        """All groups together, so that a kind that scores in parallel has enough to do."""
        known = [group for group in page.groups if group.problem_id in self._problems]
        requests = [
            ScoreRequest(self._problems[group.problem_id], sample.completion, sample.tokens, self._options.prefill)
            for group in known
            for sample in group.samples
        ]
        scores = iter(self._runner.score(requests, check=self._check))
        return [
            self._group(group, [next(scores) for _ in group.samples])
            if group.problem_id in self._problems
            else _without_problem(group)
            for group in page.groups
        ]

    def _group(self, group: StoredGroup, scores: list[Scored]) -> GroupRescored:
        algorithm, longest = self._options.algorithm, self._options.max_completion_tokens
        scores = [
            with_overlong(score, sample.tokens, algorithm, longest=longest)
            for score, sample in zip(scores, group.samples, strict=True)
        ]
        reward = self._runner.rubric.config
        phantom = signal_of(scores, reward, algorithm) == "phantom"
        samples = []
        for sample, score in zip(group.samples, scores, strict=True):
            failed = next((own for own in score.components.values() if own.error is not None), None)
            success = score.components.get(reward.success_of(score.components)) if score.components else None
            samples.append(
                SampleRescored(
                    sample=sample.sample,
                    value=score.reward,
                    passed=success.passed if success is not None and score.reward is not None else None,
                    **_error(failed),
                )
            )
        return GroupRescored(group=group.group, phantom=phantom, samples=samples)


def change_of(first: float | None, second: float | None) -> Literal["same", "lower", "higher", "unscored"]:
    """What the second reward makes of a sample's reward; unscored: one of the two has none."""
    if first is None or second is None:
        return "unscored"
    if nearly_equal([first, second]):
        return "same"
    return "lower" if second < first else "higher"


def _error(failed: ComponentScore | None) -> dict[str, str]:
    if failed is None:
        return {}
    return {"error_class": failed.error_class or "verifier", "error": (failed.error or "")[:_ERROR_CHARS]}


def _without_problem(group: StoredGroup) -> GroupRescored:
    why = f"the run's dataset has no problem {group.problem_id!r}"[:_ERROR_CHARS]
    unscored = [
        SampleRescored(sample=sample.sample, value=None, passed=None, error_class="no_problem", error=why)
        for sample in group.samples
    ]
    return GroupRescored(group=group.group, phantom=False, samples=unscored)

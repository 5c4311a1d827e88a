"""How far a learned reward can be optimised: a model samples N completions of each problem, the reward chooses the best
of n of them, and a verifier says what the chosen ones are worth, for n from 1 to N (Gao, Schulman and Hilton 2022,
arXiv 2210.10760). Loads torch only when it samples."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from grpo_core.config.reward import RewardConfig
from grpo_core.data.loaders import load_problems
from grpo_core.errors import DataError
from grpo_core.lab.job import LEAST_PROBLEMS, BestOfNOptions, Job
from grpo_core.lab.result import kept_text
from grpo_core.lab.sampling import SampledText, open_sampler
from grpo_core.probe.cases.cases import chosen
from grpo_core.probe.learned import Earned, length_ranks
from grpo_core.probe.report import LengthRanks
from grpo_core.records.bounds import Count, Name, Seconds
from grpo_core.records.types import Body
from grpo_core.rewards import Rubric, Runner
from grpo_core.rewards.base import Context
from grpo_core.runtime.progress import Progress
from grpo_core.stats.best_of import Curves, Outcome, curves, kl_of_best

SEED = 0
"""Of the bootstrap, so that it cannot be chosen for its result."""
EXAMPLES = 5


class MeanScore(Body):
    """Of all problems, with the 95 % interval of a bootstrap over them."""

    mean: float
    low: float
    high: float


class BestOfPoint(Body):
    """The best of n by the reward, in the mean over all draws of n of the N completions, and over problems."""

    n: Annotated[int, Field(ge=1)]
    kl: float
    """From the model, in nats: log n − (n − 1)/n."""
    reward: MeanScore
    verifier: MeanScore


class PartingPoint(Body):
    """Where reward and verifier part (`grpo_core.stats.best_of.Parting` defines it)."""

    outcome: Outcome
    n: int | None
    peak: int
    """The n at which the verifier's mean is highest."""
    reward: MeanScore | None
    """What the reward gained: from the peak to `n` where the verifier falls, else from `n` or 1 to N."""
    verifier: MeanScore | None
    """What the verifier's score changed by in the same place."""


class ProblemScores(Body):
    """Of one problem: reward and verifier's score of each completion that both could score, in the order sampled."""

    problem_id: str
    rewards: list[float]
    verifiers: list[float]


class BestExample(Body):
    """The completion that the reward likes best of a problem's N."""

    problem_id: str
    prompt: str
    answer: str
    completion: str
    tokens: int | None
    reward: float
    verifier: float


class BestOfN(Body):
    """result.json of a best-of-n."""

    kind: Literal["best_of_n"] = "best_of_n"
    rubric_digest: str
    """Of the reward that chooses."""
    verifier_digest: str
    model: str
    """As the job names it."""
    device: Name
    samples: Count
    """N, completions of each problem."""
    points: Annotated[list[BestOfPoint], Field(min_length=1, max_length=64)]
    parting: PartingPoint
    length: LengthRanks | None
    """How the reward goes with the completions' characters, within problems."""
    scores: Annotated[list[ProblemScores], Field(min_length=1)]
    problems_too_long: Count
    """Problems whose prompt is too long for the model."""
    problems_unscored: Count
    """Problems left out because half of their completions or more could not be scored."""
    unscored: Count
    """Completions without a reward or without a verifier's score; left out."""
    unscored_why: Annotated[list[str], Field(max_length=EXAMPLES)]
    """Some of the errors, each once."""
    examples: Annotated[list[BestExample], Field(max_length=EXAMPLES)]
    """Those that the verifier scores least first."""
    seconds: Seconds

    @property
    def samples_compared(self) -> int:
        """The largest n, which is below `samples` where a problem lost completions."""
        return self.points[-1].n

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """The means of the curves are those of the scores; intervals are not drawn again."""
        measured = curves([row.rewards for row in self.scores], [row.verifiers for row in self.scores])
        if [point.n for point in self.points] != [*measured.sizes]:
            raise ValueError("points: n is not 1, 2, 4 … up to the completions of each problem")
        for at, point in enumerate(self.points):
            means = (_mean(measured.rewards, at), _mean(measured.verifiers, at), kl_of_best(point.n))
            given = (point.reward.mean, point.verifier.mean, point.kl)
            if any(abs(mean - number) > 1e-6 * max(1.0, abs(mean)) for mean, number in zip(means, given, strict=True)):
                raise ValueError(f"points: the means at n = {point.n} are not those of the scores")
        return self


def best_of_n(
    job: Job,
    options: BestOfNOptions,
    *,
    base: Path,
    device: str,
    progress: Progress,
    check: Callable[[], None],
) -> BestOfN:
    """Of a job whose data are at a path relative to `base`. Raises a GrpoError that says what is wrong."""
    assert job.model is not None
    assert job.data is not None
    assert job.reward is not None
    assert job.verifier is not None
    began = time.monotonic()
    reward, verifier = Rubric(job.reward), Rubric(job.verifier)
    data = job.data
    every = load_problems(base / data.path, data.format, columns=data.columns)
    problems = chosen(every, limit=options.problems, seed=options.seed)
    for rubric in (reward, verifier):
        rubric.check_problems(problems)
    with ExitStack() as opened:
        # Opened first: a missing sandbox or judge is reported before a model is loaded.
        by_reward, by_verifier = (
            opened.enter_context(Runner(_forgiving(rubric), Context(rubric.config.limits, base=base, device=device)))
            for rubric in (reward, verifier)
        )
        sampler = open_sampler(
            job.model, problems, options, base=base, device=device, threads=job.threads, progress=progress
        )
        progress.begin("sampling and scoring", len(sampler.prompts))
        table = _Table(options.group_size)
        for done, texts in sampler.batches(progress=progress, check=check):
            requests = [text.request for text in texts]
            rewards = by_reward.score(requests, check=check)
            scores = by_verifier.score(requests, check=check)
            for text, first, second in zip(texts, rewards, scores, strict=True):
                errors = [score.error for each in (first, second) for score in each.components.values() if score.error]
                table.add(text, first.reward, second.reward, errors)
            progress.advance(done, "problems sampled and scored")
    rows = table.rows()
    if len(rows) < LEAST_PROBLEMS:
        why = f"; the first reason: {table.errors[0]}" if table.errors else ""
        raise DataError(
            f"{len(rows)} problems have completions that both reward and verifier could score, and {LEAST_PROBLEMS} "
            f"are needed{why}"
        )
    progress.begin("drawing the curves", 1)
    measured = curves([row.rewards for row in rows], [row.verifiers for row in rows])
    return BestOfN(
        rubric_digest=reward.digest,
        verifier_digest=verifier.digest,
        model=job.model.path,
        device=device,
        samples=options.group_size,
        **_drawn(measured),
        length=length_ranks(table.earned(), seed=SEED),
        scores=rows,
        problems_too_long=sampler.left_out,
        problems_unscored=len(table.groups) - len(rows),
        unscored=table.unscored,
        unscored_why=[kept_text(error) for error in table.errors[:EXAMPLES]],
        examples=table.examples(),
        seconds=time.monotonic() - began,
    )


def parting_text(result: BestOfN) -> str:
    """Where reward and verifier part, or that they do not, in a sentence."""
    parting, last = result.parting, result.samples_compared
    reward = "" if parting.reward is None else _signed(parting.reward)
    verifier = "" if parting.verifier is None else _signed(parting.verifier)
    match parting.outcome:
        case "falls":
            return (
                f"They part at n = {parting.n}: from there on the best of n by the reward is worth less by the "
                f"verifier than at n = {parting.peak}, by {verifier} at n = {parting.n}, while the reward "
                f"rises, by {reward}."
            )
        case "stops":
            return (
                f"They part at n = {parting.n}: from there to n = {last} no gain by the verifier is shown, {verifier}, "
                f"while the reward rises, by {reward}."
            )
        case "together":
            return (
                f"They do not part up to n = {last}: from n = 1 the reward changes by {reward}, and the verifier's "
                f"score by {verifier}."
            )
        case _:
            return (
                f"The reward itself does not rise from n = 1 to n = {last}, {reward}: it does not separate the "
                "completions of a problem, and there is nothing to optimise."
            )


def _signed(mean: MeanScore) -> str:
    return f"{mean.mean:+.3g} [{mean.low:+.3g}, {mean.high:+.3g}]".replace("-", "−")


def _forgiving(rubric: Rubric) -> Rubric:
    """A completion that a component cannot score has no reward, also where that would end a run or score 0."""
    return Rubric(RewardConfig.model_validate({**rubric.config.model_dump(), "on_error": "mask"}))


def _drawn(measured: Curves) -> dict[str, Any]:
    """The curves' points, and where they part."""
    return {
        "points": [asdict(point) for point in measured.points(seed=SEED)],
        "parting": asdict(measured.parting(seed=SEED)),
    }


def _mean(rows: Sequence[Sequence[float]], at: int) -> float:
    return math.fsum(row[at] for row in rows) / len(rows)


@dataclass
class _Table:
    """Gathers what each completion earned."""

    size: int
    """N."""
    groups: dict[int, list[tuple[SampledText, float, float]]] = field(default_factory=dict)
    """(completion, reward, verifier's score) of those that have both, by problem."""
    unscored: int = 0
    errors: list[str] = field(default_factory=list)
    """Each once."""

    def add(self, text: SampledText, reward: float | None, verifier: float | None, errors: Sequence[str]) -> None:
        rows = self.groups.setdefault(text.group, [])
        self.errors += [error for error in dict.fromkeys(errors) if error not in self.errors]
        if reward is None or verifier is None:
            self.unscored += 1
        else:
            rows.append((text, reward, verifier))

    @property
    def kept(self) -> list[list[tuple[SampledText, float, float]]]:
        """Problems of which more than half of the completions have both."""
        return [rows for rows in self.groups.values() if 2 * len(rows) > self.size]

    def rows(self) -> list[ProblemScores]:
        return [
            ProblemScores(
                problem_id=kept_text(rows[0][0].request.problem.id),
                rewards=[reward for _, reward, _ in rows],
                verifiers=[verifier for _, _, verifier in rows],
            )
            for rows in self.kept
        ]

    def earned(self) -> list[Earned]:
        return [
            Earned("", text.request.problem.id, text.request.completion, reward)
            for rows in self.kept
            for text, reward, _ in rows
        ]

    def examples(self) -> list[BestExample]:
        best = [max(rows, key=lambda row: row[1]) for rows in self.kept]
        best.sort(key=lambda row: row[2])
        return [
            BestExample(
                problem_id=kept_text(text.request.problem.id),
                prompt=kept_text(text.request.problem.prompt),
                answer=kept_text(text.request.problem.answer),
                completion=kept_text(text.request.completion),
                tokens=text.request.tokens,
                reward=reward,
                verifier=verifier,
            )
            for text, reward, verifier in best[:EXAMPLES]
        ]

"""Runs one job of the reward lab: tries a reward on existing answers, on answers of a base model, or probes it.

Scores through the same Runner as a run, and samples through the same rollout. A sample that could not be scored is
counted with its error, and the job continues.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config.reward import RewardConfig
from grpo_core.data.loaders import load_problems
from grpo_core.data.problem import Problem
from grpo_core.errors import DataError
from grpo_core.lab.best_of_n import best_of_n
from grpo_core.lab.chat import Exchange, answer_turns
from grpo_core.lab.evaluation import evaluate_model
from grpo_core.lab.job import (
    BestOfNOptions,
    ChatOptions,
    EvaluateOptions,
    Job,
    JudgedText,
    ProbeOptions,
    RescoreOptions,
    SampleOptions,
    TryOptions,
)
from grpo_core.lab.rescore import PageExchange, RescoreEnded, rescore, unfailing
from grpo_core.lab.result import LabSample, fitted, kept_text, result_of
from grpo_core.lab.sampling import open_sampler
from grpo_core.probe.cases.cases import chosen, read_questions
from grpo_core.probe.cases.forms import forms_for
from grpo_core.probe.cases.judged import JudgedAnswer
from grpo_core.probe.run import TRIED, probe_rubric
from grpo_core.rewards import Rubric, Runner, ScoreRequest
from grpo_core.rewards.base import Context
from grpo_core.runtime.progress import Progress

Check = Callable[[], None]
OWN = ("completion", "solution")
"""Fields of a row that hold a whole answer."""
_SCORED_AT_ONCE = 64


def run_job(
    job: Job,
    *,
    base: Path,
    progress: Progress,
    check: Check = lambda: None,
    turns: Path | None = None,
    pages: Path | None = None,
) -> dict[str, Any]:
    """The result as JSON. Relative paths are taken from `base`; `check` is called often and may raise to stop. `turns`:
    folder of a chat's `Exchange`; `pages`: of a re-score's `PageExchange`. Raises a GrpoError that says what is
    wrong."""
    return _Run(job, base, progress, check, turns, pages).result()


@dataclass(frozen=True)
class _Run:
    job: Job
    base: Path
    progress: Progress
    check: Check
    turns: Path | None
    pages: Path | None

    def result(self) -> dict[str, Any]:
        began = time.monotonic()
        options = self.job.chosen()
        match self.job.kind:
            case "estimate":
                return self._estimated()
            case "preview":
                return self._previewed()
            case "doctor":
                return self._diagnosed()
        own: dict[str, Any] = {
            "base": self.base,
            "device": self._device(),
            "progress": self.progress,
            "check": self.check,
        }
        if isinstance(options, EvaluateOptions):
            return evaluate_model(self.job, options, **own).model_dump(mode="json")
        if isinstance(options, ChatOptions):
            assert self.turns is not None, "a chat has a folder of turns"
            return answer_turns(self.job, options, Exchange(self.turns), **own).model_dump(mode="json")
        if isinstance(options, BestOfNOptions):
            return best_of_n(self.job, options, **own).model_dump(mode="json")
        assert self.job.reward is not None
        rubric = Rubric(self.job.reward)
        if isinstance(options, ProbeOptions):
            return self._probed(rubric, options)
        if isinstance(options, RescoreOptions):
            return self._rescored(rubric, options, began)
        assert isinstance(options, SampleOptions | TryOptions)
        # What a component cannot score is recorded with its sample, also where it would end a run.
        forgiving = Rubric(RewardConfig.model_validate({**self.job.reward.model_dump(), "on_error": "mask"}))
        with self._runner(forgiving) as runner:
            made = (
                self._sampled(options, runner) if isinstance(options, SampleOptions) else self._tried(options, runner)
            )
            facts, sandbox = runner.facts(), runner.sandbox()
        result = result_of(
            rubric_digest=rubric.digest,
            reward=rubric.config,
            cost=facts,
            sandbox=sandbox,
            device=self._device(),
            seconds=time.monotonic() - began,
            **made,
        )
        return fitted(result).model_dump(mode="json", by_alias=True)

    def _estimated(self) -> dict[str, Any]:
        from grpo_core.config.run import RunConfig
        from grpo_core.estimate.calibrate import estimate

        config = RunConfig.from_dict(self.job.config or {})
        return estimate(config, base=self.base, progress=self.progress, check=self.check).model_dump(mode="json")

    def _previewed(self) -> dict[str, Any]:
        from grpo_core.config.run import RunConfig
        from grpo_core.lab.preview import preview

        self.progress.begin("reading the prompts", 1)
        config = RunConfig.from_dict(self.job.config or {})
        return preview(config, base=self.base).model_dump(mode="json")

    def _diagnosed(self) -> dict[str, Any]:
        from grpo_core.config.run import ModelConfig
        from grpo_core.model.doctor import diagnose
        from grpo_core.model.load import find_model

        assert self.job.model is not None
        config = ModelConfig(path=self.job.model.path, revision=self.job.model.revision)
        self.progress.begin("looking at the model", 1)
        return diagnose(find_model(config, base=self.base), None).model_dump(mode="json")

    def _probed(self, rubric: Rubric, options: ProbeOptions) -> dict[str, Any]:
        from grpo_core.probe.cases.problems import problems_builtin

        builtin = self.job.data is None
        problems = problems_builtin(rubric) if builtin else self._problems()
        with self._runner(rubric) as runner:
            report = probe_rubric(
                rubric,
                problems,
                runner=runner,
                limit=options.problems,
                seed=options.seed,
                check=self.check,
                progress=self.progress.part,
                fresh=lambda: self._runner(rubric),
                source="builtin" if builtin else "data",
                judged=[_judged(text, number) for number, text in enumerate(options.judged, start=1)],
            )
        return report.to_json()

    def _rescored(self, rubric: Rubric, options: RescoreOptions, began: float) -> dict[str, Any]:
        assert self.pages is not None, "a re-score has a folder of pages"
        self.progress.begin("reading the problems", 0)
        problems = {problem.id: problem for problem in self._problems()}
        with self._runner(unfailing(rubric)) as runner:
            samples = rescore(
                options,
                PageExchange(self.pages),
                runner=runner,
                problems=problems,
                progress=self.progress,
                check=self.check,
            )
            facts, sandbox = runner.facts(), runner.sandbox()
        ended = RescoreEnded(
            rubric_digest=rubric.digest,
            samples=samples,
            device=self._device(),
            cost=facts,
            sandbox=sandbox,
            seconds=time.monotonic() - began,
        )
        return ended.model_dump(mode="json")

    # ------------------------------------------------------------------ existing answers

    def _tried(self, options: TryOptions, runner: Runner) -> dict[str, Any]:
        if options.texts:
            given = [
                ScoreRequest(Problem(f"text-{index}", text.prompt, text.answer, dict(text.meta)), text.completion)
                for index, text in enumerate(options.texts, start=1)
            ]
            return {"kind": "try", "samples": self._scored(runner, given, ["given"] * len(given))}
        problems = self._problems(limit=options.rows)
        runner.rubric.check_problems(problems)
        self.progress.begin("writing answers", len(problems))
        unscored, origins, form = answered(problems, runner=runner, check=self.check)
        return {"kind": "try", "samples": self._scored(runner, unscored, origins), "form": form}

    def _scored(self, runner: Runner, samples: Sequence[ScoreRequest], origins: Sequence[str]) -> list[LabSample]:
        """Each sample is its own group."""
        self.progress.begin("scoring", len(samples))
        lab_samples: list[LabSample] = []
        for start in range(0, len(samples), _SCORED_AT_ONCE):
            batch = samples[start : start + _SCORED_AT_ONCE]
            for sample, scored in zip(batch, runner.score(batch, check=self.check), strict=True):
                group = len(lab_samples)
                lab_samples.append(_lab_sample(sample, scored, group=group, origin=origins[group]))
            self.progress.advance(len(lab_samples), "answers scored")
        return lab_samples

    # ------------------------------------------------------------------ answers of a base model

    def _sampled(self, options: SampleOptions, runner: Runner) -> dict[str, Any]:
        assert self.job.model is not None
        problems = chosen(self._problems(), limit=options.problems, seed=options.seed)
        runner.rubric.check_problems(problems)

        sampler = open_sampler(
            self.job.model,
            problems,
            options,
            base=self.base,
            device=self._device(),
            threads=self.job.threads,
            progress=self.progress,
        )
        self.progress.begin("sampling and scoring", len(sampler.prompts))
        lab_samples: list[LabSample] = []
        for done, texts in sampler.batches(progress=self.progress, check=self.check):
            scores = runner.score([text.request for text in texts], check=self.check)
            for text, scored in zip(texts, scores, strict=True):
                more = {"finish": text.finish, "prompted": kept_text(text.prompted)}
                lab_samples.append(_lab_sample(text.request, scored, group=text.group, origin="sampled", **more))
            self.progress.advance(done, "problems sampled and scored")
        return {
            "kind": "sample",
            "samples": lab_samples,
            "group_size": options.group_size,
            "problems_left_out": sampler.left_out,
        }

    # ------------------------------------------------------------------ for both

    def _problems(self, *, limit: int | None = None) -> list[Problem]:
        if self.job.data is None:
            raise DataError("this job has no dataset to take problems from")
        data = self.job.data
        return load_problems(self.base / data.path, data.format, columns=data.columns, limit=limit)

    def _runner(self, rubric: Rubric) -> Runner:
        return Runner(rubric, Context(limits=rubric.config.limits, base=self.base, device=self._device()))

    def _device(self) -> str:
        if self.job.device == "cpu":
            return "cpu"
        from grpo_core.distributed.environment import pick_device

        return str(pick_device(self.job.device))


def answered(
    problems: Sequence[Problem], *, runner: Runner, check: Check = lambda: None
) -> tuple[list[ScoreRequest], list[str], str | None]:
    """One answer for each problem, in order: its own worked completion, or its reference answer in the form that the
    reward scores highest. Where each is from, and that form in words; None where every row has its own answer."""
    questions = read_questions(runner.rubric, problems)
    bare = [question for question in questions if _own(question.problem) is None]
    tried = bare[:TRIED]
    best, most = None, float("-inf")
    for form in forms_for(runner.rubric, {question.subject for question in bare}) if bare else ():
        texts = [(question.problem, form.write(question.problem, question.gold)) for question in tried]
        samples = [ScoreRequest(problem, text) for problem, text in texts if text is not None]
        earned = sum(scored.reward or 0.0 for scored in runner.score(samples, check=check)) / len(tried)
        if samples and earned > most + 1e-9:  # the first of equals: the one that the parameters name first
            best, most = form, earned
    answers = []
    for question in questions:
        problem, own = question.problem, _own(question.problem)
        text = best.write(problem, question.gold) if best is not None and own is None else own
        answers.append(ScoreRequest(problem, question.gold if text is None else text))
    origins = ["row" if _own(problem) is not None else "reference" for problem in problems]
    return answers, origins, best.title if best is not None else None


def _judged(text: JudgedText, number: int) -> JudgedAnswer:
    problem = Problem(
        f"judged-{number}", text.prompt, text.answer, meta=dict(text.meta), other_answers=text.other_answers
    )
    return JudgedAnswer(problem, text.completion, text.right)


def _own(problem: Problem) -> str | None:
    texts = (problem.meta.get(field) for field in OWN)
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def _lab_sample(sample: ScoreRequest, scored: Any, *, group: int, origin: Any, **more: Any) -> LabSample:
    """`more`: LabSample's other fields, of a sampled completion."""
    return LabSample(
        problem_id=kept_text(sample.problem.id),
        prompt=kept_text(sample.problem.prompt),
        answer=kept_text(sample.problem.answer),
        completion=kept_text(sample.completion),
        tokens=sample.tokens,
        reward=scored.reward,
        components=scored.components,
        group=group,
        origin=origin,
        **more,
    )

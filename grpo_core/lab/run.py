"""Runs one job of the reward lab: tries a reward on existing answers, on answers of a base model, or probes it.

Scores through the same Runner as a run, and samples through the same rollout. A sample that could not be scored is
counted with its error, and the job continues.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from grpo_core.config.reward import RewardConfig
from grpo_core.data.loaders import load_problems
from grpo_core.data.problem import Problem
from grpo_core.errors import ConfigError, DataError
from grpo_core.lab.job import EstimateOptions, Job, JobModel, ProbeOptions, SampleOptions, TryOptions
from grpo_core.lab.result import LabResult, LabSample, fitted, result_of
from grpo_core.rewards import Rubric, Runner, ScoreRequest
from grpo_core.rewards.base import Context
from grpo_core.runtime.progress import Progress
from grpo_core.text import UNSTORABLE

Check = Callable[[], None]
_SCORED_AT_ONCE = 64
_TEXT_CHARS = 32_000
"""Of one prompt, answer or completion in the result; what is cut says so."""
_ROWS_ON_CPU, _ROWS_ON_GPU = 64, 512
"""Completions sampled at the same time."""


def run_job(job: Job, *, base: Path, progress: Progress, check: Check = lambda: None) -> dict[str, Any]:
    """The result as JSON. Relative paths are taken from `base`; `check` is called often and may raise to stop. Raises a
    GrpoError that says what is wrong."""
    began = time.monotonic()
    options = job.chosen()
    if isinstance(options, EstimateOptions):
        return _estimated(job, base=base, progress=progress, check=check)
    rubric = Rubric(job.reward)
    if isinstance(options, ProbeOptions):
        return _probe(job, rubric, options, base=base, progress=progress, check=check)
    # What a component cannot score is recorded with its sample, also where it would end a run.
    forgiving = Rubric(RewardConfig.model_validate({**job.reward.model_dump(), "on_error": "mask"}))
    kind: Literal["try", "sample"] = "sample"
    form, left_out, group_size = None, 0, None
    with _runner(forgiving, job, base) as runner:
        if isinstance(options, SampleOptions):
            group_size = options.group_size
            samples, left_out = _sampled(job, options, runner, base=base, progress=progress, check=check)
        else:
            kind = "try"
            samples, form = _tried(job, options, runner, base=base, progress=progress, check=check)
        facts = runner.facts()
    result = result_of(
        kind=kind,
        rubric_digest=rubric.digest,
        weights={part.component.name: part.component.weight for part in rubric.parts},
        samples=samples,
        group_size=group_size,
        cost=facts,
        sandbox=_sandbox(rubric),
        form=form,
        device=_device(job),
        problems_left_out=left_out,
        seconds=time.monotonic() - began,
    )
    return _json(fitted(result))


def _estimated(job: Job, *, base: Path, progress: Progress, check: Check) -> dict[str, Any]:
    from grpo_core.config.run import RunConfig
    from grpo_core.estimate.calibrate import estimate

    config = RunConfig.from_dict(job.config or {})
    return estimate(config, base=base, progress=progress, check=check).model_dump(mode="json")


def _probe(
    job: Job, rubric: Rubric, options: ProbeOptions, *, base: Path, progress: Progress, check: Check
) -> dict[str, Any]:
    from grpo_core.probe.cases.problems import problems_builtin
    from grpo_core.probe.run import probe_rubric

    source: Literal["data", "builtin"] = "data" if job.data is not None else "builtin"
    problems = _problems(job, base) if job.data is not None else list(problems_builtin(rubric))
    with _runner(rubric, job, base) as runner:
        report = probe_rubric(
            rubric,
            problems,
            runner=runner,
            limit=options.problems,
            seed=options.seed,
            check=check,
            progress=progress.part,
            fresh=lambda: _runner(rubric, job, base),
            source=source,
        )
    return report.to_json()


# ---------------------------------------------------------------------- existing answers


def _tried(
    job: Job, options: TryOptions, runner: Runner, *, base: Path, progress: Progress, check: Check
) -> tuple[list[LabSample], str | None]:
    if options.texts:
        given = [
            ScoreRequest(Problem(f"text-{index}", text.prompt, text.answer, dict(text.meta)), text.completion)
            for index, text in enumerate(options.texts, start=1)
        ]
        return _scored(runner, given, ["given"] * len(given), progress=progress, check=check), None
    from grpo_core.lab.reference import answered

    problems = _problems(job, base, limit=options.rows)
    runner.rubric.check_problems(problems)
    progress.begin("writing answers", len(problems))
    rows = answered(problems, runner=runner, check=check)
    unscored = [ScoreRequest(answer.problem, answer.completion) for answer in rows.answers]
    origins = [answer.origin for answer in rows.answers]
    return _scored(runner, unscored, origins, progress=progress, check=check), rows.form


def _scored(
    runner: Runner, samples: Sequence[ScoreRequest], origins: Sequence[Any], *, progress: Progress, check: Check
) -> list[LabSample]:
    """Each sample is its own group."""
    progress.begin("scoring", len(samples))
    lab_samples: list[LabSample] = []
    for start in range(0, len(samples), _SCORED_AT_ONCE):
        batch = samples[start : start + _SCORED_AT_ONCE]
        for sample, scored in zip(batch, runner.score(batch, check=check), strict=True):
            lab_samples.append(_lab_sample(sample, scored, group=len(lab_samples), origin=origins[len(lab_samples)]))
        progress.advance(len(lab_samples), "answers scored")
    return lab_samples


# ---------------------------------------------------------------------- answers of a base model


def _sampled(
    job: Job, options: SampleOptions, runner: Runner, *, base: Path, progress: Progress, check: Check
) -> tuple[list[LabSample], int]:
    """The samples, and how many problems were left out because their prompt is too long."""
    assert job.model is not None
    problems = _problems(job, base)
    if len(problems) > options.problems:
        indices = sorted(random.Random(options.seed).sample(range(len(problems)), options.problems))
        problems = [problems[index] for index in indices]
    runner.rubric.check_problems(problems)

    import torch

    from grpo_core.data.prompts import completion_text, encode_problems
    from grpo_core.rollout.base import Decoding
    from grpo_core.rollout.local import LocalRollout

    if job.threads is not None:
        torch.set_num_threads(job.threads)
    progress.begin("loading the model", 1)
    policy = _model(job.model, base, _device(job))
    room = (policy.context or 1_000_000) - options.max_completion_tokens
    if room < 1:
        raise ConfigError(
            f"options.max_completion_tokens: {options.max_completion_tokens} leave no room for a prompt; the model "
            f"has {policy.context} positions"
        )
    encoded = encode_problems(
        problems, policy.tokenizer, template=options.template, limit=room, drop_long=True, source="the dataset"
    )
    on_cpu = policy.model.device.type == "cpu"
    rows = _ROWS_ON_CPU if on_cpu else _ROWS_ON_GPU
    rollout = LocalRollout(policy, max_rows=rows, check=check, log=progress.line)
    decoding = Decoding(max_tokens=options.max_completion_tokens, temperature=options.temperature, top_p=options.top_p)
    progress.begin("sampling and scoring", len(encoded.prompts))
    lab_samples: list[LabSample] = []
    at_once = max(1, rows // options.group_size)
    for first in range(0, len(encoded.prompts), at_once):
        batch = encoded.prompts[first : first + at_once]
        groups = rollout.generate(
            [prompted.tokens for prompted in batch],
            samples=options.group_size,
            decoding=decoding,
            key=(options.seed, 1, 1),
            indices=range(first, first + len(batch)),
        )
        flat = [
            (index, prompted, completion)
            for index, (prompted, group) in enumerate(zip(batch, groups, strict=True), start=first)
            for completion in group
        ]
        unscored = [
            ScoreRequest(
                prompted.problem,
                completion_text(policy.tokenizer, completion.tokens, policy.eos_ids),
                len(completion.tokens),
            )
            for _, prompted, completion in flat
        ]
        for (index, _, completion), sample, scored in zip(
            flat, unscored, runner.score(unscored, check=check), strict=True
        ):
            lab_samples.append(_lab_sample(sample, scored, group=index, origin="sampled", finish=completion.finish))
        progress.advance(first + len(batch), "problems sampled and scored")
    return lab_samples, len(encoded.dropped)


def _model(job_model: JobModel, base: Path, device: str) -> Any:
    import torch

    from grpo_core.config.run import ModelConfig
    from grpo_core.model.load import find_model, load_model

    config = ModelConfig(path=job_model.path, revision=job_model.revision, dtype=job_model.dtype)
    model = load_model(find_model(config, base=base), dtype=job_model.dtype, device=torch.device(device))
    model.model.requires_grad_(False)
    return model


# ---------------------------------------------------------------------- for both


def _problems(job: Job, base: Path, *, limit: int | None = None) -> list[Problem]:
    if job.data is None:
        raise DataError("this job has no dataset to take problems from")
    return load_problems(base / job.data.path, job.data.format, limit=limit)


def _runner(rubric: Rubric, job: Job, base: Path) -> Runner:
    return Runner(rubric, Context(limits=rubric.config.limits, base=base, device=_device(job)))


def _device(job: Job) -> str:
    if job.device == "cpu":
        return "cpu"
    from grpo_core.distributed.environment import pick_device

    return str(pick_device(job.device))


def _lab_sample(sample: ScoreRequest, scored: Any, *, group: int, origin: Any, finish: Any = None) -> LabSample:
    return LabSample(
        problem_id=_kept(sample.problem.id),
        prompt=_kept(sample.problem.prompt),
        answer=_kept(sample.problem.answer),
        completion=_kept(sample.completion),
        tokens=sample.tokens,
        finish=finish,
        reward=scored.reward,
        components=scored.components,
        group=group,
        origin=origin,
    )


def _kept(text: str) -> str:
    clean = UNSTORABLE.sub("\ufffd", text)
    if len(clean) <= _TEXT_CHARS:
        return clean
    return f"{clean[:_TEXT_CHARS]}… ({len(clean) - _TEXT_CHARS:,} more characters)"


def _sandbox(rubric: Rubric) -> dict[str, Any] | None:
    """What the sandbox that was used can do."""
    if not rubric.needs_sandbox:
        return None
    from grpo_core.rewards.python.session import shared_sandbox

    return shared_sandbox().report.to_json()


def _json(result: LabResult) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True)

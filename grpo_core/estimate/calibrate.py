"""Measures what a run will cost, on its own model, data, device and engine: a few problems are sampled, scored and
learned from, at two sizes, by the parts that a run uses. No weight changes. Nothing is written.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch

from grpo_core.compute.flop import Work
from grpo_core.compute.hardware import Dtype, dtype_of
from grpo_core.config.run import RunConfig
from grpo_core.distributed.ranks import Ranks, known_cause
from grpo_core.errors import GrpoError, OutOfMemory
from grpo_core.evaluate.task import manner_of
from grpo_core.records.estimate import MEMORY, SECONDS, Estimate
from grpo_core.rewards.signal import signal_of
from grpo_core.rollout.make import make_rollout
from grpo_core.runtime.clock import Clock, timed
from grpo_core.runtime.progress import Progress
from grpo_core.stats.quantiles import wilson
from grpo_core.trainer.inputs import Inputs, load_inputs
from grpo_core.trainer.learn import learn
from grpo_core.trainer.sampled import StepBatch
from grpo_core.trainer.sampling import GroupSampler
from grpo_core.trainer.telemetry import peak_bytes, settling
from grpo_core.training.make import make_training

Check = Callable[[], None]
PHASES = ("sample", "reward", "logprobs", "update")


@dataclass(frozen=True)
class Piece:
    """One measured size."""

    drawn: StepBatch
    seconds: dict[str, float]
    sampling_bytes: int
    learning_bytes: int

    @property
    def rows(self) -> int:
        return len(self.drawn.completions)

    @property
    def sizes(self) -> dict[str, float]:
        """What the time of each phase grows with."""
        tokens = float(self.drawn.completion_tokens)
        trained = tokens + self.drawn.prompt_tokens
        return {"sample": tokens, "reward": float(self.rows), "logprobs": trained, "update": trained}


def estimate(config: RunConfig, *, base: Path, progress: Progress, check: Check = lambda: None) -> Estimate:
    """Calibrate; relative paths are taken from `base`. Raises a GrpoError that says what is wrong, OutOfMemory where
    already the calibration does not fit."""
    began = time.perf_counter()
    if config.engine.threads is not None:
        torch.set_num_threads(config.engine.threads)
    try:
        with ExitStack() as opened:
            progress.begin("loading", 1)
            measured = measured_config(config)
            inputs = load_inputs(measured, base=base)
            opened.enter_context(inputs.runner)
            pieces, start = _measure(measured, inputs, opened, began=began, progress=progress, check=check)
    except Exception as error:
        cause = error if isinstance(error, GrpoError) else known_cause(error)
        if isinstance(cause, OutOfMemory):
            raise OutOfMemory(f"the calibration does not fit, so the run does not: {cause}") from error
        if cause is None or cause is error:
            raise
        raise cause from error
    return worked_out(config, inputs, pieces, start=start, seconds=time.perf_counter() - began)


def _measure(
    config: RunConfig, inputs: Inputs, opened: ExitStack, *, began: float, progress: Progress, check: Check
) -> tuple[list[Piece], float]:
    """The pieces, and the seconds from `began` until the first could begin."""
    ranks, device = Ranks(), inputs.policy.device
    training = make_training(
        config, inputs.policy, reference=inputs.reference, critic=inputs.critic, ranks=ranks, check=check
    )
    positions = inputs.positions(config)
    rollout = make_rollout(config, inputs.policy, ranks=ranks, check=check, positions=positions, log=progress.line)
    opened.enter_context(closing(rollout))
    clock, pieces = Clock(settle=settling(device)), list[Piece]()
    # The first piece warms up: kernels are chosen, processes started, the optimiser's state is made.
    counts = (max(1, config.algorithm.mini_batches), *sizes(config))
    start = time.perf_counter() - began
    for number, count in enumerate(counts, start=1):
        part = config.model_copy(update={"sampling": config.sampling.model_copy(update={"prompts_per_step": count})})
        group_sampler = GroupSampler(
            part,
            inputs.train.prompts,
            rollout=rollout,
            policy=inputs.policy,
            runner=inputs.runner,
            ranks=ranks,
            check=check,
        )
        peak_bytes(device)
        progress.begin("sampling and scoring", len(counts))
        progress.advance(number - 1, f"{count} problems")
        with clock.running(), training.whole():
            rollout.follow(0)
            drawn = group_sampler.draw(number)
        sampling = peak_bytes(device)
        progress.begin("learning", len(counts))
        progress.advance(number - 1, f"{len(drawn.completions)} completions")
        with clock.running(), timed("update"):
            learn(drawn.kept, part, step=number, policy=inputs.policy, training=training)
        seconds = clock.take()
        pieces.append(Piece(drawn, seconds, sampling, peak_bytes(device)))
    return pieces[1:], start


def worked_out(config: RunConfig, inputs: Inputs, pieces: Sequence[Piece], *, start: float, seconds: float) -> Estimate:
    """The estimate from what was measured."""
    sampling, algorithm, engine = config.sampling, config.algorithm, config.engine
    rows = sampling.prompts_per_step * sampling.group_size
    completions = [completion for piece in pieces for completion in piece.drawn.completions]
    lengths = [len(completion.tokens) for completion in completions]
    limit = all(completion.finish == "length" for completion in completions)
    length, largest = mean(lengths), pieces[-1]
    about = 2 * stdev(lengths) / len(lengths) ** 0.5 if len(lengths) > 1 else 0.0
    prompt = sum(piece.drawn.prompt_tokens for piece in pieces) / sum(piece.rows for piece in pieces)

    def step(tokens: float, share: float, batches: float) -> dict[str, float]:
        """Seconds by phase where completions have so many tokens and this share of groups is learned from."""
        size = {
            "sample": batches * rows * tokens,
            "reward": batches * rows,
            "logprobs": share * rows * (prompt + tokens),
            "update": share * rows * (prompt + tokens),
        }
        by_phase = {}
        for phase in PHASES:
            points = [(piece.sizes[phase], piece.seconds[phase]) for piece in pieces if phase in piece.seconds]
            if points:
                by_phase[phase] = line(points).at(size[phase]) / (engine.devices * engine.nodes)
        return by_phase

    groups = [group for piece in pieces for group in piece.drawn.fresh]
    mixed = sum(algorithm.learns_from(signal_of(group.scores, config.reward, algorithm)) for group in groups)
    between = wilson(mixed, len(groups))
    skips = engine.skip_zero_advantage and algorithm.zero_advantage_is_inert and not algorithm.dynamic_sampling.enabled
    skips = skips and config.optim.method != "trpo"  # nearly all of whose work is on every token
    share = max(mixed, 0.5) / len(groups)

    def learned(of: float) -> float:
        return of if skips else 1.0

    def batches(of: float) -> float:
        dynamic = algorithm.dynamic_sampling
        return min(dynamic.max_batches, 1 / of) if dynamic.enabled and of > 0 else 1.0

    parts = step(length, learned(share), batches(share))
    low = step(max(1.0, length - about), learned(between.low), batches(between.high))
    longest = min(float(sampling.max_completion_tokens), length + about)
    high = step(longest, learned(between.high), batches(max(between.low, 1e-9)))

    device = inputs.policy.device

    def whole(by_phase: dict[str, float]) -> float:
        """With one_step_off on separate GPUs, sampling costs only what learning does not cover."""
        drawing = by_phase["sample"] + by_phase["reward"]
        return max(drawing, sum(by_phase.values()) - drawing) if apart(config, device) else sum(by_phase.values())

    memory, above = _memory(config, inputs, pieces, length=length, prompt=prompt)
    per_step = whole(parts)
    manner = manner_of(config)
    answers = sum(len(task.prompts.prompts) for task in inputs.tasks) * manner.samples
    answer_tokens = min(length, manner.max_completion_tokens)
    each = answer_tokens * largest.seconds["sample"] / largest.sizes["sample"]
    each += largest.seconds["reward"] / largest.rows
    evaluations = answers * each * (config.eval.before + config.eval.after)
    completions_of_run = config.optim.steps * rows * batches(share)
    return Estimate(
        config_digest=config.digest(),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        seconds_per_step=per_step,
        seconds_total=start + config.optim.steps * per_step + evaluations,
        parts=parts,
        peak_memory_bytes=memory,
        completion_tokens=length,
        length_from="limit" if limit else "calibration",
        prompts=len(groups),
        calibration_seconds=seconds,
        shape=inputs.policy.shape(),
        work=Work(
            tokens=completions_of_run * (prompt + length),
            completion_tokens=completions_of_run * length,
            completions=completions_of_run,
            learned_share=1 / batches(share) if algorithm.dynamic_sampling.enabled else learned(share),
            evaluated_tokens=answers * (prompt + answer_tokens) * (config.eval.before + config.eval.after),
        ),
        product_rate=product_rate(device, dtype_of(config)),
        warnings=_warnings(config, device, limit=limit, mixed=mixed, groups=len(groups)),
        spread={SECONDS: (min(whole(low), per_step), max(whole(high), per_step)), MEMORY: (min(memory, above), above)},
    )


_PRODUCT = {"cpu": 768, "cuda": 8192}
"""Rows and columns of the matrices whose products are timed."""
_PRODUCT_SECONDS = 0.2


def product_rate(device: torch.device, dtype: Dtype) -> float:
    """FLOP/s of products of large square matrices in this number format: what the device gives in the best case."""
    size = _PRODUCT["cuda" if device.type == "cuda" else "cpu"]
    settle = settling(device)
    square = torch.ones((size, size), device=device, dtype=getattr(torch, dtype))
    into = torch.empty_like(square)
    torch.mm(square, square, out=into)
    settle()
    began, products = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < _PRODUCT_SECONDS or not products:
        torch.mm(square, square, out=into)
        settle()
        products += 1
    return 2 * size**3 * products / seconds


def apart(config: RunConfig, device: torch.device) -> bool:
    """Whether a vLLM server samples, on separate GPUs, while the policy learns on `device`."""
    engine = config.engine
    server = engine.rollout == "vllm" and engine.vllm.place == "server"
    return engine.one_step_off and server and device.type == "cuda"


def _memory(
    config: RunConfig, inputs: Inputs, pieces: Sequence[Piece], *, length: float, prompt: float
) -> tuple[int, int]:
    """Peak of a step, and what it might be at most: the sampler works in waves of at most rollout_batch completions,
    the update in micro-batches of at most micro_batch_tokens."""
    rows = config.sampling.prompts_per_step * config.sampling.group_size
    wave = min(rows, config.engine.rollout_batch)
    portion = min(rows * (length + prompt), config.engine.micro_batch_tokens)
    sampling = grown([(piece.rows, piece.sampling_bytes) for piece in pieces], full=wave)
    learning = grown([(piece.sizes["update"], piece.learning_bytes) for piece in pieces], full=portion)
    peak = max(sampling, learning)
    # A wave or a micro-batch of the longest texts, by the measured bytes per token.
    longest = config.sampling.max_completion_tokens / max(length, 1.0)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in inputs.policy.model.parameters())
    return int(peak), int(max(peak, weights + (sampling - weights) * min(longest, 2.0)))


def _warnings(config: RunConfig, device: torch.device, *, limit: bool, mixed: int, groups: int) -> tuple[str, ...]:
    warnings = []
    devices = config.engine.devices * config.engine.nodes
    if devices > 1:
        warnings.append(
            f"measured on one process; the work of a step was divided by {devices}, without what ranks exchange"
        )
    if limit:
        warnings.append(
            f"every completion reached the limit of {config.sampling.max_completion_tokens} tokens; a policy that "
            "learns to end sooner costs less"
        )
    if mixed == 0:
        warnings.append(f"none of {groups} groups had rewards that differ: how many are learned from is not known")
    if config.engine.one_step_off and not apart(config, device):
        warnings.append("with engine.one_step_off sampling and learning share the device, so no time was taken off")
    return tuple(warnings)


@dataclass(frozen=True)
class Line:
    """Cost = fixed + each · size."""

    fixed: float
    each: float

    def at(self, size: float) -> float:
        return self.fixed + self.each * size


def line(points: Sequence[tuple[float, float]]) -> Line:
    """Through the smallest and the largest of (size, cost). What a larger one cost less is noise: then, and with one
    size alone, cost is in proportion to size. Nothing costs less than nothing, so a line that would begin below 0 is
    proportional too."""
    (small, cheap), (large, dear) = min(points), max(points)
    if large > small:
        each = (dear - cheap) / (large - small)
        if each >= 0 and dear - each * large >= 0:
            return Line(dear - each * large, each)
    return Line(0.0, dear / large)


def grown(points: Sequence[tuple[float, float]], *, full: float) -> float:
    """A peak at size `full`, from peaks at two sizes: it grows along their line and never shrinks. From the size `full`
    on it grows no more, as of work that is done in portions of that size."""
    (small, low), (large, high) = min(points), max(points)
    if large >= full or large == small:
        return max(low, high)
    return max(low, high) + max(0.0, high - low) / (large - small) * (full - large)


LEAST_ROWS = 16
"""Completions that the larger size samples at least, where a step has as many: lengths vary."""


def sizes(config: RunConfig) -> tuple[int, ...]:
    """Problems of each measured piece, rising. Together no more than a step, or than two where a step is of few
    completions, and no more than about two waves of the sampler."""
    step, samples = config.sampling.prompts_per_step, config.sampling.group_size
    wave = math.ceil(config.engine.rollout_batch / samples)
    large = max(step // 2, math.ceil(LEAST_ROWS / samples), config.algorithm.mini_batches)
    large = min(step, max(large if large <= wave else wave, config.algorithm.mini_batches))
    small = max(large // 2, min(step, config.algorithm.mini_batches))
    return (small, large) if small < large else (large,)


def measured_config(config: RunConfig) -> RunConfig:
    """The config that is calibrated with: on one process, and so that no weight moves: with a rate of 0 AdamW does all
    its work and adds nothing. Every row is run through the model, so that a row's cost is known."""
    engine = config.engine.model_copy(
        update={"devices": 1, "nodes": 1, "one_step_off": False, "skip_zero_advantage": False}
    )
    algorithm = config.algorithm
    algorithm = algorithm.model_copy(
        update={
            "critic": algorithm.critic.model_copy(update={"lr": 0.0}),
            "dynamic_sampling": algorithm.dynamic_sampling.model_copy(update={"enabled": False}),
            "kl": algorithm.kl.model_copy(update={"controller": "fixed"}),
            "reference": algorithm.reference.model_copy(update={"refresh": "never"}),
        }
    )
    still = config.optim.trpo.model_copy(update={"max_kl": 0.0})  # a step of length 0, after all the work for it
    optim = config.optim.model_copy(update={"lr": 0.0, "trpo": still})
    return config.model_copy(update={"engine": engine, "algorithm": algorithm, "optim": optim})

"""Samples completions from a transformers model in this process.

Each distinct prompt of a batch is run through the model once, and where the model's layers allow it, its keys and
values are held once for all its completions. Rows that have ended leave the batch at once. Every sample has its own
random stream, named by (key, prompt's index, sample), so its random numbers do not depend on its batch. (Its logits
may, in the last bits, and then a token at the edge differs.)

`batching` plans which rows go together, `stepper` runs the model over them (on a CPU through `replay` where it can be
traced, on a GPU through `graphs` where it can be recorded), `draw_tokens` samples.

Shapes: P distinct prompts · B rows still running · L longest completion.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from grpo_core.data.prompts import stops
from grpo_core.errors import ModelError
from grpo_core.model.load import LoadedModel
from grpo_core.records.types import FinishReason
from grpo_core.rollout.base import Completion, Decoding, SamplingOptions
from grpo_core.rollout.cache import compact_rows
from grpo_core.rollout.draw_tokens import TokenDrawer
from grpo_core.rollout.graphs import LEAST_GRAPHED, GraphStep, recordable
from grpo_core.rollout.replay import LEAST_TOKENS, Replay, replayable
from grpo_core.rollout.shared_cache import shareable
from grpo_core.rollout.stepper import DecoderStepper, RepeatedStepper, SharedStepper
from grpo_core.runtime.watchdog import doing

# Which completions are sampled in one batch: a function of the prompts' lengths and the limits alone, so that a run can
# be repeated. Loads no torch.


@dataclass(frozen=True)
class Row:
    """One completion to be made."""

    prompt: int
    """Index of its prompt among those of the call."""
    sample: int


@dataclass(frozen=True)
class Limits:
    """Of one batch."""

    rows: int
    """Most completions."""
    tokens: int
    """Most tokens whose keys and values are held, if every completion gets as long as it may. One row is always let
    in."""
    completion: int
    """Longest completion."""
    shared: bool
    """Whether a prompt is held once for all its rows."""


def plan_batches(prompts: Sequence[Sequence[int]], *, samples: int, limits: Limits) -> list[list[Row]]:
    """All rows, in batches of like lengths. Equal prompts are neighbours. A prompt's rows are split only where a batch
    cannot hold them all, for each batch has to run it again; and batches are of like size, for a few rows take nearly
    as long as many."""
    numbers = sorted(range(len(prompts)), key=lambda number: (len(prompts[number]), tuple(prompts[number]), number))
    rows = [Row(number, sample) for number in numbers for sample in range(samples)]
    if not rows:
        return []
    widest = _cut(rows, prompts, limits, limits.rows)
    for most in range(-(-len(rows) // len(widest)), limits.rows, max(1, samples)):
        even = _cut(rows, prompts, limits, most)
        if len(even) == len(widest):
            return even
    return widest


def _cut(rows: list[Row], prompts: Sequence[Sequence[int]], limits: Limits, most: int) -> list[list[Row]]:
    batches: list[list[Row]] = []
    start = 0
    while start < len(rows):
        end = start + _fitting(rows, start, prompts, limits, most)
        if end < len(rows):
            cut = end
            while cut > start and rows[cut].prompt == rows[cut - 1].prompt:
                cut -= 1
            end = cut if cut > start else end
        batches.append(rows[start:end])
        start = end
    return batches


def _fitting(rows: list[Row], start: int, prompts: Sequence[Sequence[int]], limits: Limits, most: int) -> int:
    """How many rows from `start` on one batch can hold. Prompts lie padded to the longest, which comes last."""
    distinct, last = 0, None
    for count, row in enumerate(rows[start : start + most]):
        prompt = tuple(prompts[row.prompt])
        distinct, last = distinct + (prompt != last), prompt
        held = (distinct if limits.shared else count + 1) * len(prompt) + (count + 1) * limits.completion
        if held > limits.tokens and count:
            return count
    return min(most, len(rows) - start)


MAX_TOKENS = 131_072
"""As engine.rollout_tokens has it by default."""
_STREAM_BLOCK = 256
"""Random numbers taken from a stream at a time."""


@dataclass(eq=False)
class LocalRollout:
    """The sampler. Holds the policy itself, so it always samples from the newest weights."""

    policy: LoadedModel
    _: KW_ONLY
    max_rows: int
    """Most completions at the same time."""
    max_tokens: int = MAX_TOKENS
    """Most tokens whose keys and values are held at once."""
    check: Callable[[], None] = lambda: None
    """Called at every token; may raise to stop."""
    log: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self._shared: bool | None = None
        self._replay: Replay | None = None
        self._modules_only = False

    @property
    def shared(self) -> bool:
        """Whether prompts are held once for all their completions. Determined at first use."""
        if self._shared is None:
            self._shared = shareable(self.policy.model)
        return self._shared

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], **options: Unpack[SamplingOptions]) -> list[list[Completion]]:
        """See `base.Rollout`. Every prompt needs at least one token."""
        samples, decoding = options["samples"], options["decoding"]
        limits = Limits(self.max_rows, self.max_tokens, decoding.max_tokens, self.shared)
        streams = options.get("indices") or range(len(prompts))
        drawer = TokenDrawer(self.policy.model, decoding)
        done: dict[Row, Completion] = {}
        with self._stepping(decoding.max_tokens) as by:
            for batch in plan_batches(prompts, samples=samples, limits=limits):
                seeds = [[*options["key"], streams[row.prompt], row.sample] for row in batch]
                uniforms = Uniforms(seeds, self.policy.device) if decoding.temperature > 0 else None
                stepper: DecoderStepper = (
                    SharedStepper(self.policy, by or self._graph_step(decoding.max_tokens))
                    if self.shared
                    else RepeatedStepper(self.policy)
                )
                made = self._run([prompts[row.prompt] for row in batch], stepper, drawer, uniforms, decoding)
                done.update(zip(batch, made, strict=True))
        return [[done[Row(prompt, sample)] for sample in range(samples)] for prompt in range(len(prompts))]

    def follow(self, step: int) -> dict[str, float]:
        """It holds the policy itself: there is nothing to send."""
        return {}

    def close(self) -> None:
        pass

    def _stepping(self, most: int) -> AbstractContextManager["Replay | None"]:
        """What steps, through the next call: None for the model's modules."""
        policy = self.policy
        if not self.shared or most < LEAST_TOKENS or self._modules_only or not replayable(policy):
            return nullcontext()
        if self._replay is None:
            try:
                self._replay = Replay(policy)
            except ModelError as error:
                self._use_modules(str(error))
                return nullcontext()
        return self._replay.packed_weights()

    def _graph_step(self, most: int) -> GraphStep | None:
        """The same on a GPU, for one batch."""
        usable = most >= LEAST_GRAPHED and not self._modules_only and recordable(self.policy)
        return GraphStep(self.policy, self._use_modules) if usable else None

    def _use_modules(self, reason: str) -> None:
        self._modules_only = True
        self.log(f"every token goes through the model's modules, which is slower: {reason}")

    def _run(
        self,
        texts: Sequence[Sequence[int]],
        stepper: DecoderStepper,
        drawer: TokenDrawer,
        uniforms: "Uniforms | None",
        decoding: Decoding,
    ) -> list[Completion]:
        """Complete all of `texts` in one batch. Equal ones must be neighbours."""
        policy, device, most = self.policy, self.policy.device, decoding.max_tokens
        distinct = list(dict.fromkeys(map(tuple, texts)))
        index_of = {prompt: number for number, prompt in enumerate(distinct)}
        share_B = torch.tensor([index_of[tuple(text)] for text in texts])
        starts_B = torch.tensor([len(text) for text in texts], device=device)
        hidden_BD = stepper.begin(distinct, share_B, most=most - 1)[share_B.to(device)]
        output = OutputBuffer(len(texts), most, device)
        ends_V = torch.zeros(len(policy.model.get_output_embeddings().weight), dtype=torch.bool)
        ends_V[[token for token in policy.eos_ids if token < len(ends_V)]] = True
        ends_V = ends_V.to(device)
        seen_BV = _seen(texts, len(ends_V)).to(device) if decoding.repetition_penalty != 1 else None
        running_B = torch.arange(len(texts))  # index of each running row in the batch, on the CPU
        rows_B = running_B.to(device)  # the same
        for length in range(most):
            self.check()
            doing("sampling", f"{len(texts) - len(running_B)} of {len(texts)} completions ended", length)
            uniform_B = uniforms.take(rows_B, length) if uniforms else hidden_BD[:, 0].double()
            drawn = drawer.draw(hidden_BD, uniform_B, seen_BV)
            ended_B = ends_V[drawn.tokens_B].cpu()
            output.write(rows_B, length, drawn.tokens_B, drawn.logprobs_B, drawn.entropy_B)
            output.close(running_B[ended_B], "eos", length + 1)
            if decoding.stop:
                stopped_B = ~ended_B & self._stopped(output.tokens(rows_B, length + 1), decoding.stop)
                output.close(running_B[stopped_B], "stop", length + 1)
                ended_B |= stopped_B
            if length + 1 == most or bool(ended_B.all()):
                break
            tokens_B = drawn.tokens_B
            if seen_BV is not None:
                seen_BV.scatter_(1, tokens_B[:, None], True)
            if bool(ended_B.any()):
                keep_B = compact_rows(~ended_B)
                stepper.keep(keep_B)
                running_B, tokens_B = running_B[keep_B], tokens_B[keep_B.to(device)]
                rows_B = running_B.to(device)
                seen_BV = seen_BV[keep_B.to(device)] if seen_BV is not None else None
            hidden_BD = stepper.step(tokens_B, starts_B[rows_B] + length)
        return output.completions()

    def _stopped(self, tokens: Sequence[Sequence[int]], stop: Sequence[str]) -> Tensor:
        """Which rows have completed a stop string. On the CPU."""
        return torch.tensor([stops(self.policy.tokenizer, row, stop) for row in tokens])


def _seen(texts: Sequence[Sequence[int]], vocabulary: int) -> Tensor:
    """Which tokens stand in each text, B×V."""
    seen_BV = torch.zeros((len(texts), vocabulary), dtype=torch.bool)
    for row, text in enumerate(texts):
        seen_BV[row, list(text)] = True
    return seen_BV


class Uniforms:
    """The random numbers of a batch's rows, each from a separate stream."""

    def __init__(self, seeds: Sequence[Sequence[int]], device: torch.device) -> None:
        self._streams = [np.random.default_rng(list(seed)) for seed in seeds]
        self._block = torch.empty((len(seeds), _STREAM_BLOCK), dtype=torch.float64, device=device)

    def take(self, rows_B: Tensor, number: int) -> Tensor:
        """The numbers at index `number` in the streams of these rows, fp64. Indices are taken one after the other,
        and a row that was left out once is not taken again."""
        if number % _STREAM_BLOCK == 0:
            drawn = np.stack([self._streams[row].random(_STREAM_BLOCK) for row in rows_B.tolist()])
            self._block[rows_B] = torch.from_numpy(drawn).to(self._block.device)
        return self._block[:, number % _STREAM_BLOCK][rows_B]


class OutputBuffer:
    """What was drawn, kept on the device until all rows have ended."""

    def __init__(self, rows: int, most: int, device: torch.device) -> None:
        self._most = most
        self._tokens = torch.empty((rows, 0), dtype=torch.long, device=device)
        self._logprobs = torch.empty((rows, 0), device=device)
        self._entropy = torch.zeros(rows, dtype=torch.float64, device=device)
        self._lengths = torch.full((rows,), most)
        self._finish: list[FinishReason] = ["length"] * rows

    def write(self, rows_B: Tensor, at: int, tokens_B: Tensor, logprobs_B: Tensor, entropy_B: Tensor) -> None:
        """A token of each of these rows."""
        if at == self._tokens.shape[1]:
            more = min(self._most, max(64, 2 * at)) - at
            self._tokens = torch.nn.functional.pad(self._tokens, (0, more))
            self._logprobs = torch.nn.functional.pad(self._logprobs, (0, more))
        self._tokens[rows_B, at] = tokens_B
        self._logprobs[rows_B, at] = logprobs_B
        self._entropy[rows_B] += entropy_B.double()

    def close(self, rows_B: Tensor, finish: FinishReason, length: int) -> None:
        """These rows ended so, with this many tokens. On the CPU."""
        self._lengths[rows_B] = length
        for row in rows_B.tolist():
            self._finish[row] = finish

    def tokens(self, rows_B: Tensor, length: int) -> list[list[int]]:
        """The first `length` tokens of these rows."""
        tokens: list[list[int]] = self._tokens[rows_B, :length].tolist()
        return tokens

    def completions(self) -> list[Completion]:
        """Of all rows, in order."""
        rows = zip(
            self._tokens.cpu(), self._logprobs.cpu(), self._entropy.tolist(), self._lengths.tolist(),
            self._finish, strict=True,
        )  # fmt: skip
        return [
            Completion(
                tokens=tuple(tokens[:length].tolist()),
                logprobs=tuple(logprobs[:length].tolist()),
                finish=finish,
                entropy=entropy / length,
            )
            for tokens, logprobs, entropy, length, finish in rows
        ]

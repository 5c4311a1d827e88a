"""A vLLM engine in this process: tokens in, tokens and log-probabilities out, weights replaced in place.

Needs vLLM, which is imported when an engine is made. Every completion is a separate request with its own seed,
so that it does not depend on what runs next to it; what completions of a prompt share is vLLM's prefix cache.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor

from grpo_core.distributed.ranks import known_cause
from grpo_core.errors import GrpoError, OutOfMemory, RolloutError
from grpo_core.rollout.vllm.settings import GenerateRequest, Sampled, Settings
from grpo_core.runtime.watchdog import doing

_VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in this process: it ends when we do
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other work shares this machine's cores
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1"}
"""For an engine that meets no other machine: messages between its parts stay in it."""

_FAILURES = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError, OSError, MemoryError)
"""What vLLM raises besides its own errors, torch's among them."""


class Engine:
    """One engine. `check` and `tell` are called at every token and may raise to stop; the request is then given
    up. `tell` takes what `watchdog.doing` does."""

    def __init__(
        self,
        settings: Settings,
        *,
        check: Callable[[], None] = lambda: None,
        report: Callable[[str, str, int], None] = doing,
    ) -> None:
        """Raises RolloutError when vLLM is not here, or does not take the settings; what `failure` gives."""
        os.environ.update(_VARIABLES if settings.per_rank else _VARIABLES | _LOOPBACK)
        if settings.uncompiled:
            os.environ["TORCH_COMPILE_DISABLE"] = "1"  # for processes to come; this one has read it
            torch._dynamo.config.disable = True
        threads, set_threads = torch.get_num_threads(), torch.set_num_threads
        try:
            from vllm import SamplingParams
            from vllm.engine.arg_utils import EngineArgs
            from vllm.exceptions import VLLMError
            from vllm.inputs import tokens_input
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise RolloutError(
                f"engine.rollout is vllm, and vLLM cannot be loaded here: {error}. Install it in this environment, "
                "or with engine.vllm.place: server in one of its own that GRPO_VLLM_PYTHON names (docs/vllm.md)"
            ) from error
        self._settings = settings
        self._check, self._report = check, report
        self._params, self._tokens = SamplingParams, tokens_input
        self._failures = (VLLMError, *_FAILURES)
        self._number = 0
        try:
            self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**_arguments(settings)))
        except self._failures as error:
            raise failure(error, f"vLLM could not be started with the model in {settings.model}") from error
        finally:
            torch.set_num_threads = set_threads  # vLLM's CPU worker puts one that does nothing in its place
            torch.set_num_threads(threads)
        self._asleep = False

    def generate(self, request: GenerateRequest) -> list[list[Sampled]]:
        """See `settings.Sampler`."""
        how = request.decoding
        requests = []
        for prompt, seeds in zip(request.prompts, request.seeds, strict=True):
            for seed in seeds:
                params = self._params(
                    temperature=how.temperature,
                    top_p=how.top_p,
                    top_k=how.top_k or -1,
                    min_p=how.min_p,
                    repetition_penalty=how.repetition_penalty,
                    seed=seed if how.temperature > 0 else None,
                    max_tokens=how.max_tokens,
                    stop_token_ids=list(request.stop),
                    ignore_eos=True,  # vLLM would take the end token from the model's config
                    logprobs=0,
                    detokenize=False,
                )
                requests.append((prompt, params))
        answers = iter(self._answers(requests))
        return [[_sampled(next(answers)) for _ in seeds] for seeds in request.seeds]

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """See `settings.Sampler`."""
        params = self._params(temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False)
        logprobs = []
        for text, answer in zip(texts, self._answers([(text, params) for text in texts]), strict=True):
            rows = answer.prompt_logprobs
            logprobs.append([rows[index][token].logprob for index, token in enumerate(text) if index > 0])
        return logprobs

    def load(self, weights: dict[str, Tensor]) -> None:
        """See `settings.Sampler`: tensors of this process, in one part."""
        self.load_parts([("weights_take", (list(weights.items()),))])

    def load_parts(self, parts: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """The worker's method and its arguments for each part. Raises RolloutError, or what `failure` gives."""
        self._wake()
        try:
            self._engine.collective_rpc("weights_begin")
            for method, arguments in parts:
                self._engine.collective_rpc(method, args=arguments)
            self._engine.collective_rpc("weights_end")
        except self._failures as error:
            raise failure(
                error,
                "vLLM could not take the policy's weights",
                "It may know this model family under other names, or not at all; engine.rollout: local samples from "
                "every family",
            ) from error
        # Keys and values of prompts, computed with the weights before, must not be found any more.
        if not self._engine.reset_prefix_cache():
            raise RolloutError("vLLM kept its cache of prompts, which the weights before have filled")

    def sleep(self) -> None:
        """Give the device's memory back until the next request; the weights wait in the host's memory."""
        if self._settings.sleeps and not self._asleep:
            self._engine.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    def _wake(self) -> None:
        if self._asleep:
            try:
                self._engine.wake_up()
            except self._failures as error:
                raise failure(error, "vLLM could not take its memory on the device back") from error
            self._asleep = False

    def _answers(self, requests: Sequence[tuple[Sequence[int], Any]]) -> list[Any]:
        """vLLM's answers in the order of the requests."""
        self._wake()
        indices: dict[str, int] = {}
        done: list[Any] = [None] * len(requests)
        try:
            for index, (tokens, params) in enumerate(requests):
                self._number += 1
                name = self._engine.add_request(str(self._number), self._tokens(list(tokens)), params)
                indices[str(self._number)] = indices[name] = index
            for turn in count():
                if not self._engine.has_unfinished_requests():
                    break
                self._check()
                self._report("sampling with vLLM", f"{len(requests) - done.count(None)} of {len(requests)} ended", turn)
                for answer in self._engine.step():
                    if answer.finished:
                        done[indices[answer.request_id]] = answer
        except self._failures as error:
            raise failure(error, "vLLM failed while it was sampling") from error
        finally:
            if self._engine.has_unfinished_requests():
                self._engine.abort_request(list(indices), internal=True)
        if None in done:
            raise RolloutError(f"vLLM gave no answer to {done.count(None)} of {len(done)} requests")
        return done


def failure(error: Exception, what: str, fix: str = "") -> GrpoError:
    """What vLLM raised as the run's cause, which the rules of retry go by: memory, device and exchange between ranks as
    in the trainer, else a RolloutError. `what` failed; `fix`: for the last."""
    text = f"{what}: {type(error).__name__}: {error}"
    cause = known_cause(error)
    if isinstance(cause, OutOfMemory):
        return OutOfMemory(f"{text}. Out of memory: lower engine.vllm.memory_share or engine.rollout_batch")
    if cause is not None:
        return type(cause)(text)
    return RolloutError(f"{text}. {fix}" if fix else text)


def _arguments(settings: Settings) -> dict[str, Any]:
    """vLLM's engine arguments."""
    arguments: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "load_format": "dummy",  # random until the first push, so that one that does nothing cannot look right
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # a model's own would silently change temperature and top-p
        "logprobs_mode": "processed_logprobs",  # of the distribution drawn from: after temperature
        "max_model_len": settings.positions,
        "max_num_seqs": settings.rows,
        "gpu_memory_utilization": settings.memory_share,
        "kv_cache_memory_bytes": settings.cache_bytes,
        "enforce_eager": settings.eager,
        "enable_prefix_caching": True,
        "tensor_parallel_size": settings.devices,
        "seed": settings.seed,
        "enable_sleep_mode": settings.sleeps,
        "worker_extension_cls": "grpo_core.rollout.vllm.extension.TakesWeights",
        "disable_log_stats": True,
        "trust_remote_code": False,
    }
    if settings.per_rank:
        arguments["distributed_executor_backend"] = "external_launcher"
    return arguments


def _sampled(answer: Any) -> Sampled:
    (output,) = answer.outputs
    if output.finish_reason not in ("stop", "length"):
        raise RolloutError(f"vLLM ended a completion by {output.finish_reason!r}")
    tokens = [int(token) for token in output.token_ids]
    return tokens, [float(row[token].logprob) for row, token in zip(output.logprobs, tokens, strict=True)]

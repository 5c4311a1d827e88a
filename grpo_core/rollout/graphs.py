"""One token of every row as a CUDA graph: a GPU is given all kernels of a token at once, where starting them one by one
takes many times as long as they run.

A graph is recorded for the shapes and addresses of the moment (`SharedCache.fix`) and replayed for every token until
the rows' room is full or most of them have ended; then another is recorded. Rows and prompts that have ended in between
are computed and not read. A graph keeps its memory as long as this batch's step exists.

Shapes: B rows · D hidden size.
"""

import threading
from collections.abc import Callable
from functools import cache as once
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_core.model.load import LoadedModel
from grpo_core.rollout.shared_cache import SharedCache
from grpo_core.rollout.stepper import step_by_modules

LEAST_GRAPHED = 16
"""Longest completion from which on recording, which takes as long as three tokens by modules, is worth its time. It
must depend on nothing but the sampler's arguments, as `replay.LEAST_TOKENS`."""
ROOM = 256
"""Tokens that a row has room for at first: more than without graphs, for each doubling records another."""
SHRINK = 4
"""A graph of fewer rows is recorded when this part of its rows is left."""

Step = Callable[[], Tensor]
"""Returns hidden states, B×D."""


class GraphStep:
    """What one batch's tokens go through, as `stepper.StepBy`. On a CPU the same step is called, not recorded."""

    def __init__(self, policy: LoadedModel, refuse: Callable[[str], None]) -> None:
        """`refuse` is called once, with the reason, where the model cannot be recorded: its modules are called then."""
        self._policy = policy
        self._refuse = refuse
        self._refused = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._tokens_B = self._positions_B = torch.empty(0)
        self._replay: Step

    def __call__(self, tokens_B: Tensor, positions_B: Tensor, cache: SharedCache) -> Tensor:
        """Feed a token to every row, at its position in the text. Returns the hidden states that follow, B×D, which
        the next call overwrites."""
        rows = len(tokens_B)
        if not self._refused and (cache.full or rows * SHRINK <= len(self._tokens_B)):
            self._fix(tokens_B, positions_B, cache)
        if self._refused:
            return step_by_modules(self._policy, tokens_B, positions_B, cache)
        self._tokens_B[:rows] = tokens_B
        self._positions_B[:rows] = positions_B
        hidden_BD = self._replay()[:rows]
        cache.advance()
        return hidden_BD

    def _fix(self, tokens_B: Tensor, positions_B: Tensor, cache: SharedCache) -> None:
        cache.fix(ROOM)
        self._tokens_B, self._positions_B = tokens_B.clone(), positions_B.clone()
        try:
            self._replay = self._recorded(
                partial(step_by_modules, self._policy, self._tokens_B, self._positions_B, cache)
            )
        except RuntimeError as error:
            cache.release()
            self._refused = True
            self._refuse(f"{type(self._policy.model).__name__} cannot be recorded as a CUDA graph ({error})")

    def _recorded(self, step: Step) -> Step:
        """`step` as a graph. Raises RuntimeError where that cannot be done."""
        if self._policy.device.type != "cuda":
            with Recordable():  # type: ignore[no-untyped-call]
                step()
            return step
        here, side = torch.cuda.current_stream(self._policy.device), _side_stream(self._policy.device)
        graph = torch.cuda.CUDAGraph()
        pool = None if self._graph is None else self._graph.pool()  # its graph is not replayed any more
        side.wait_stream(here)
        try:
            with torch.cuda.stream(side):  # restores the stream even where `graph`, of a failed recording, does not
                with Recordable():  # type: ignore[no-untyped-call]
                    step()  # what starts at the first call, such as cuBLAS, cannot be recorded
                with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                    hidden_BD = step()
        finally:
            here.wait_stream(side)
        self._graph = graph

        def replay() -> Tensor:
            graph.replay()
            return hidden_BD

        return replay


class Recordable(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises RuntimeError for what a graph cannot hold: operations that wait for numbers from the device, whose result
    has a size that depends on them, or that copy from another device. After a recording that failed, memory could not
    be returned to the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        waits = not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(func.tags)
        if func is torch.ops.aten.index.Tensor:
            waits = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        if waits:
            raise RuntimeError(f"{func} waits for the device")
        result = func(*args, **(kwargs or {}))
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if copies and any(given.device != result.device for given in args[:2]):
            raise RuntimeError(f"{func} waits for a copy to or from the device")
        return result


def recordable(policy: LoadedModel) -> bool:
    """Whether graphs are of use for this model, apart from whether they can be recorded: on a CUDA device, whole
    weights, and in the main thread, for another that works with the device could disturb the recording."""
    return (
        policy.device.type == "cuda"
        and threading.current_thread() is threading.main_thread()
        and not any(hasattr(weight, "ds_id") for weight in policy.model.parameters())
    )


@once
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all recordings: cuBLAS keeps memory for each stream it has worked on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

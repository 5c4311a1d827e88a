"""Several processes that train one policy together: each samples and learns its share, all take the same step.

Started by `torchrun`, which tells every process its rank. What ranks exchange is JSON or numbers, never a pickle.
Gradients and counts are summed, never averaged: each rank already weighs its tokens by the whole step's denominators.
"""

import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from grpo_core import errors
from grpo_core.errors import ConfigError, GrpoError
from grpo_core.model.load import pick_device

T = TypeVar("T")

BUCKET = 2**24
"""Most numbers in one all-reduce (64 MiB of fp32)."""


class Ranks:
    """This process's place among those of its run. A run of one process exchanges nothing."""

    def __init__(self, rank: int = 0, world: int = 1, device: torch.device | None = None) -> None:
        self.rank = rank
        self.world = world
        self.device = device
        """The rank's own device among several; None where the config alone decides."""
        self._device = device or torch.device("cpu")

    @classmethod
    def join(cls, *, device: str) -> Self:
        """Meet the other processes that torchrun started; alone where it started none. `device` is engine.device."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        use_gpu = pick_device(device).type == "cuda"
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_gpu else torch.device("cpu")
        if use_gpu:
            if (here := torch.cuda.device_count()) <= (own.index or 0):
                raise ConfigError(f"engine.devices asks for more GPUs than the {here} that this machine has")
            torch.cuda.set_device(own)
        # Waiting for the first rank is not done in Python, where a wish to stop would be met: so SIGTERM ends a rank
        # that waits. Otherwise a first rank that fails before it comes here would leave the others waiting.
        waits = os.environ["RANK"] != "0"
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL) if waits else None
        dist.init_process_group("nccl" if use_gpu else "gloo")
        if waits:
            signal.signal(signal.SIGTERM, before)
        return cls(dist.get_rank(), world, own)

    @property
    def main(self) -> bool:
        """Whether this process writes the run's records."""
        return self.rank == 0

    def share(self, count: int) -> list[int]:
        """Which of `count` pieces of work are this rank's."""
        return list(range(self.rank, count, self.world))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, which JSON can carry, in the order of ranks."""
        if self.world == 1:
            return [value]
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(part.numpy().tobytes()) for part in self._gather_1d(mine)]

    def gather_numbers(self, values_N: Tensor) -> Tensor:
        """All ranks' numbers, one after the other, float64 on the CPU."""
        values_N = values_N.detach().to("cpu", torch.float64)
        return values_N if self.world == 1 else torch.cat(self._gather_1d(values_N))

    def spread(self, pieces: Sequence[Any], count: int) -> list[Any]:
        """Put together what each rank made of its `share` of `count` pieces, on every rank."""
        whole: list[Any] = [None] * count
        for rank, theirs in enumerate(self.gather(list(pieces))):
            whole[rank :: self.world] = theirs
        return whole

    def sum_in_place(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over ranks. Every rank ends with the same bits."""
        if self.world == 1:
            return
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            bucket: list[Tensor] = []
            for tensor in [t for t in tensors if t.dtype == dtype]:
                if bucket and sum(t.numel() for t in bucket) + tensor.numel() > BUCKET:
                    _reduce(bucket)
                    bucket = []
                bucket.append(tensor)
            _reduce(bucket)

    def sums(self, values: dict[str, float]) -> dict[str, float]:
        """Each number summed over ranks; every rank gives the same names."""
        if self.world == 1:
            return values
        names = sorted(values)
        total = torch.tensor([values[name] for name in names], dtype=torch.float64, device=self._device)
        dist.all_reduce(total)
        return dict(zip(names, total.tolist(), strict=True))

    def together(self, work: Callable[[], T]) -> T:
        """Do this rank's part of something. Where a rank fails with a GrpoError, every rank raises it, so that none
        waits for the others and the run's outcome tells the cause."""
        if self.world == 1:
            return work()
        failure: GrpoError | None = None
        result: list[T] = []
        try:
            result.append(work())
        except GrpoError as error:
            failure = error
        told = self.gather(None if failure is None else [type(failure).__name__, str(failure)])
        if failure is not None:
            raise failure
        for name, message in filter(None, told):
            raise getattr(errors, name)(message)
        return result[0]

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return self.sums({"flag": float(flag)})["flag"] > 0

    def leave(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()

    def _gather_1d(self, mine: Tensor) -> list[Tensor]:
        mine = mine.to(self._device)
        sizes = [torch.zeros(1, dtype=torch.long, device=self._device) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(mine)], device=self._device))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=mine.dtype, device=self._device)
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(parts, padded)
        return [part[: int(size)].cpu() for part, size in zip(parts, sizes, strict=True)]


def _reduce(bucket: Sequence[Tensor]) -> None:
    flat = torch.cat([tensor.flatten() for tensor in bucket])
    dist.all_reduce(flat)
    start = 0
    for tensor in bucket:
        tensor.copy_(flat[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()

"""Several processes that train one policy together: each samples and learns its share, all take the same step, and a
failure of one has a cause.

Started by `torchrun`, which gives every process its rank. What ranks exchange is JSON or numbers, never a pickle.
Gradients and counts are summed, never averaged: each rank already weighs its tokens by the whole step's denominators.

A rank that fails alone leaves its cause in torchrun's store, which outlives it: the others only see that it is gone.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from grpo_core import errors
from grpo_core.distributed.environment import pick_device
from grpo_core.errors import ConfigError, DeviceError, ExchangeError, GrpoError, OutOfMemory
from grpo_core.runtime.clock import timed
from grpo_core.runtime.watchdog import waiting

# What torch's errors mean to a person and to the rules of retry: memory, device, exchange between ranks, or a defect.
#
# torch tells them apart by class where it can and by words where it cannot; the words are its own, unchanged for years.

_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error")
_EXCHANGE = ("NCCL", "gloo")


class Defect(GrpoError):
    """A defect of ours, for readers without its trace: the run's outcome, and the other ranks."""

    code = "internal_error"


def known_cause(error: Exception) -> GrpoError | None:
    """The error that says what happened; None for one that must be a defect of ours."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(word in text for word in _MEMORY)
    ):
        return OutOfMemory(
            f"out of memory: {text}. Lower engine.micro_batch_tokens (update) or engine.rollout_batch (sampling)"
        )
    if isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in text for word in _EXCHANGE)
    ):
        return ExchangeError(f"the ranks of the run lost each other: {text}")
    if isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(word in text for word in _DEVICE)
    ):
        return DeviceError(f"the device failed: {text}")
    return None


T = TypeVar("T")

BUCKET = 2**24
"""Most numbers in one all-reduce (64 MiB of fp32)."""
REPORT_SECONDS = 2.0
"""Seconds in which a rank that fails reports why: for the rare one that is seen to be gone first."""
_CAUSE = "cause"
_WAITS = "waiting for the other ranks"


class RankStatus:
    """What this rank is doing, for the others to read, in torchrun's store: that answers also while a rank hangs in an
    exchange. By a separate connection, so that no waiting call holds it up."""

    def __init__(self, store: Store, rank: int, world: int, name: Callable[[int], str]) -> None:
        self._store: Store = store.clone()  # type: ignore[attr-defined]
        self._rank = rank
        self._others = [other for other in range(world) if other != rank]
        self._name, self._world = name, world

    def publish(self, status: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # the store has gone with the first machine; the run ends by its own error
            self._store.set(f"doing/{self._rank}", json.dumps(status))

    def read(self) -> dict[str, dict[str, Any] | None]:
        statuses: dict[str, dict[str, Any] | None] = {}
        with suppress(RuntimeError):  # as above
            for other in self._others:
                key = f"doing/{other}"
                status = json.loads(self._store.get(key)) if self._store.check([key]) else None
                statuses[f"{self._name(other)} of {self._world}"] = status
        return statuses


@dataclass(eq=False)
class Ranks:
    """This process's rank among those of its run. A run of one process exchanges nothing."""

    rank: int = 0
    world: int = 1
    device: torch.device | None = None
    """The rank's own device among several; None where the config alone decides."""
    _: KW_ONLY
    first_here: bool = True
    """Whether this is the first rank of its machine."""
    hosts: Sequence[str] = ("",)
    """Name of each rank's machine."""
    store: Store | None = None
    """torchrun's key-value store; None for a rank alone."""

    def __post_init__(self) -> None:
        self._device = self.device or torch.device("cpu")

    @classmethod
    def join(cls, *, device: str, check: Callable[[], None] = lambda: None) -> Self:
        """Meet the other processes that torchrun started; alone where it started none. `device` is engine.device.
        `check` raises Interrupted when a stop was requested; the first rank handles it later, in training."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        # Waiting for the first rank is not done in Python, where a stop request would be seen: so SIGTERM ends a rank
        # that waits. Otherwise a first rank that fails before it comes here would leave the others waiting.
        waits = rank != 0
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL) if waits else None
        if waits:
            check()  # it may have come before that
        met, _, _ = next(rendezvous("env://"))
        store = PrefixStore("grpo", met)
        own, hosts = _meet(store, rank, world, lambda: _own_device(device, local))
        dist.init_process_group("nccl" if own.type == "cuda" else "gloo", store=met, rank=rank, world_size=world)
        if waits:
            signal.signal(signal.SIGTERM, before)
        return cls(rank, world, own, first_here=local == 0, hosts=hosts, store=store)

    @property
    def main(self) -> bool:
        """Whether this process writes the run's records."""
        return self.rank == 0

    def name(self, rank: int) -> str:
        """What a person calls the rank: with its machine where there are several."""
        return _name(rank, self.hosts)

    def share(self, count: int) -> list[int]:
        """Which of `count` pieces of work are this rank's."""
        return list(range(self.rank, count, self.world))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, which JSON can carry, in the order of ranks."""
        if self.world == 1:
            return [value]
        mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        with timed("waiting"), waiting(_WAITS):
            everyone = self._gather_1d(mine)
        return [json.loads(part.numpy().tobytes()) for part in everyone]

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
        with waiting(_WAITS, "the sum of gradients"):
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
        with waiting(_WAITS):
            dist.all_reduce(total)
            totals = total.tolist()
        return dict(zip(names, totals, strict=True))

    def together(self, work: Callable[[], T]) -> T:
        """Do this rank's part of something. Where a rank fails with a GrpoError, every rank raises it, so that none
        waits for the others and the run's outcome has the cause."""
        if self.world == 1:
            return work()
        own = _Part(work)
        return own.result(self.gather(own.fault), self.name)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is true on any rank."""
        if self.world == 1:
            return flag
        with timed("waiting"), waiting(_WAITS):
            return self.sums({"flag": float(flag)})["flag"] > 0

    def report(self, error: GrpoError) -> None:
        """Before this rank leaves: the reason, for the others. The first report counts; that others were lost is no
        cause."""
        if self.store is None or isinstance(error, ExchangeError):
            return
        with suppress(RuntimeError):  # the store went with the first machine: no rank can read it
            self.store.compare_set(_CAUSE, "", json.dumps([self.rank, type(error).__name__, str(error)]))

    def reported(self) -> GrpoError | None:
        """After others were lost: the reason of the first that left, if it could still report it."""
        if self.store is None:
            return None
        until = time.monotonic() + REPORT_SECONDS
        with suppress(RuntimeError):  # as above
            while not self.store.check([_CAUSE]):
                if time.monotonic() > until:
                    return None
                time.sleep(0.05)
            rank, name, message = json.loads(self.store.get(_CAUSE))
            return _again(name, message, who=self.name(rank))
        return None

    def status(self) -> RankStatus | None:
        """What each rank is doing; None of a rank alone."""
        return None if self.store is None else RankStatus(self.store, self.rank, self.world, self.name)

    def leave(self) -> None:
        if dist.is_initialized():  # of a rank alone too, where its engine needs it
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


def _own_device(device: str, local: int) -> torch.device:
    """The device of this machine's rank `local`. Raises ConfigError, ModelError."""
    if pick_device(device).type != "cuda":
        return torch.device("cpu")
    if (here := torch.cuda.device_count()) <= local:
        raise ConfigError(f"engine.devices asks for more GPUs than the {here} that this machine has")
    own = torch.device("cuda", local)
    torch.cuda.set_device(own)
    return own


def _meet(store: Store, rank: int, world: int, work: Callable[[], T]) -> tuple[T, list[str]]:
    """`together` before ranks can exchange anything but text in the store; and every rank's machine."""
    own = _Part(work)
    store.set(f"met/{rank}", json.dumps([socket.gethostname(), own.fault]))
    if own.failure is not None:  # the others may take long to come, and learn of it when they do
        raise own.failure
    everyone = [json.loads(store.get(f"met/{other}")) for other in range(world)]  # waits for each
    hosts = [host for host, _ in everyone]
    return own.result([fault for _, fault in everyone], lambda other: _name(other, hosts)), hosts


class _Part(Generic[T]):
    """The result or failure of a rank's part, before those of the others are known."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.failure: GrpoError | None = None
        try:
            self._done = [work()]
        except GrpoError as error:
            self.failure = error

    @property
    def fault(self) -> list[str] | None:
        """The failure as sent to other ranks."""
        return None if self.failure is None else [type(self.failure).__name__, str(self.failure)]

    def result(self, faults: Sequence[Sequence[str] | None], name: Callable[[int], str]) -> T:
        """The part's result. `faults` are every rank's: raises this rank's own, else the first of the others'."""
        if self.failure is not None:
            raise self.failure
        for rank, fault in enumerate(faults):
            if fault is not None:
                raise _again(*fault, who=name(rank))
        return self._done[0]


def _name(rank: int, hosts: Sequence[str]) -> str:
    return f"rank {rank}" if len(set(hosts)) == 1 else f"rank {rank} on {hosts[rank]}"


def _again(name: str, message: str, *, who: str) -> GrpoError:
    """The error that another rank has met, as one of this rank."""
    kind: type[GrpoError] = Defect if name == Defect.__name__ else getattr(errors, name)
    return kind(f"{who}: {message}")

"""What can go wrong, by area. Every message says what is wrong, where, and how to mend it.

`GrpoError` marks a fault the person can act on: the command line prints its message without a traceback and the
platform shows it on the run's page. Anything else that escapes is a defect of ours and keeps its traceback.
Each class carries a stable `code` that outcome records and the worker's retry rules use.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self


class GrpoError(Exception):
    """Root of all errors that a person can act on."""

    code: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 1


class ConfigError(GrpoError):
    """An invalid run config. `problems` lists every fault found, not only the first."""

    code = "config_error"
    exit_status = 2

    def __init__(self, message: str, problems: "tuple[FieldProblem, ...]" = ()) -> None:
        super().__init__(message)
        self.problems = problems

    @classmethod
    def listing(cls, what: str, problems: "Iterable[FieldProblem]") -> Self:
        """`what`, and below it a line for each problem."""
        problems = tuple(problems)
        return cls("\n".join([f"{what}:", *(f"  {problem}" for problem in problems)]), problems)


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One fault of one field: the dotted path, what is wrong with it, and a stable `code` where there is one: that of a
    Conflict, unknown_field, missing, not_a_choice, or pydantic's own name of the fault."""

    path: str
    message: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Conflict(ValueError):
    """Settings that do not go together. `code` is stable and in the fields' words, the message has reason and fix.
    `field`: dotted path, below the part that raises it, of the setting to change; empty when it is the whole part."""

    def __init__(self, code: str, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.field = field


class DataError(GrpoError):
    """A dataset that cannot be read, or holds nothing to train on. The message names file and line."""

    code = "data_error"
    exit_status = 3


class ModelError(GrpoError):
    """A base model that is missing, incomplete, or in a format that could run code when loaded."""

    code = "model_error"
    exit_status = 4


class RewardError(GrpoError):
    """A reward that could not be computed for a sample, or that every sample failed on."""

    code = "reward_error"
    exit_status = 5


class SandboxError(GrpoError):
    """No sandbox, or one that failed its self-test. Never answered by running unprotected."""

    code = "sandbox_error"
    exit_status = 6


class CheckpointError(GrpoError):
    """A checkpoint that is missing, incomplete, or not what its manifest says."""

    code = "checkpoint_error"
    exit_status = 7


class CheckpointMissing(CheckpointError):
    """No checkpoint to resume from: none was written, or none is whole. Never answered by beginning anew."""

    code = "checkpoint_missing"


class TrainingError(GrpoError):
    """Training reached a state it must not resume from."""

    code = "training_error"
    exit_status = 8


class NotFinite(TrainingError):
    """The loss, a gradient or the policy's probabilities are not numbers any more. Trying again gives the same."""

    code = "not_finite"


class OutOfMemory(TrainingError):
    """The device, or the machine, has not enough memory for what the config asks. Trying again gives the same."""

    code = "out_of_memory"


class DeviceError(TrainingError):
    """The device or its driver failed, which says nothing about the run: trying again may well succeed."""

    code = "device_error"


class ExchangeError(TrainingError):
    """The ranks of the run lost each other (NCCL, gloo). Trying again may well succeed."""

    code = "nccl_error"


class NothingKept(GrpoError):
    """A run of kind sample whose filters kept no completion. Trying again gives the same."""

    code = "nothing_kept"
    exit_status = 12


class RolloutError(GrpoError):
    """The sampler failed, or does not hold the weights that it was sent. Never answered by sampling all the same."""

    code = "rollout_error"
    exit_status = 11


class RunDirError(GrpoError):
    """A run directory that is in use, corrupt, or belongs to another run."""

    code = "run_dir_error"
    exit_status = 9


class RecordsError(GrpoError):
    """Records that are missing, that this reader does not understand, or that do not fit what is to be compared."""

    code = "records_error"
    exit_status = 2


class DiskFullError(GrpoError):
    """The disk of the run directory is full, or has too little room for what comes next. The message says where and how
    much is missing; the run can resume from its newest checkpoint once there is room."""

    code = "disk_full"
    exit_status = 10


class Interrupted(GrpoError):
    """The trainer received a stop request (SIGTERM, SIGINT), wrote what it had and exited."""

    code = "interrupted"
    exit_status = 75

"""What torch's own errors come to, raised in the trainer or inside vLLM: the rules of retry go by these codes."""

import os
import pkgutil
import resource
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_core.distributed.ranks import Ranks, known_cause
from grpo_core.errors import DeviceError, ExchangeError, GrpoError, OutOfMemory
from grpo_core.rollout.base import Decoding
from grpo_core.rollout.vllm import client, engine
from grpo_core.rollout.vllm.make import Colocated
from grpo_core.rollout.vllm.settings import GenerateRequest, Settings
from grpo_core.trainer.trainer import Trainer
from tests.tables import cases

from .runs import outcome_of, train_here
from .sampler_vllm.standin import modules


def raised(type, message):
    return pkgutil.resolve_name(type if "." in type else f"builtins.{type}")(message)


@pytest.mark.parametrize(("type", "message", "code"), cases("core/causes", "type", "message", "code"))
def test_codes_of_what_torch_raises(type: str, message: str, code: str | None) -> None:
    """None is a defect of ours, which stays what it is."""
    known = known_cause(raised(type, message))
    assert (known and known.code) == code
    assert known is None or message in str(known)


def test_a_machine_without_memory_is_out_of_memory() -> None:
    """For real: a process that may hold 2 GiB more asks torch for 8."""
    if (child := os.fork()) == 0:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))
        try:
            torch.zeros(2**31)
        except (RuntimeError, MemoryError) as error:
            os._exit(7 if isinstance(known_cause(error), OutOfMemory) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# ---------------------------------------------------------------------- inside vLLM

SETTINGS = Settings("m", "float32", "cpu", 96, 16, 0.3, 2**24, True, 0, sleeps=True)
HINT = "lower engine.vllm.memory_share or engine.rollout_batch"


def use(sampler: Any) -> None:
    sampler.load({})
    sampler.generate(GenerateRequest([[1, 2]], [[7]], Decoding(max_tokens=4), []))


@pytest.mark.parametrize(
    ("call", "type", "message", "code"), cases("core/causes_in_vllm", "call", "type", "message", "code")
)
def test_what_is_raised_inside_vllm_keeps_its_code(monkeypatch, call, type, message, code):
    for name, module in modules(call, raised(type, message)).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(engine, "_VARIABLES", {})
    monkeypatch.setattr(engine, "_LOOPBACK", {})
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")  # a colocated one sets it
    with pytest.raises(GrpoError, match=r"^vLLM ") as caught:
        use(Colocated(SETTINGS, check=lambda: None))
    assert caught.value.code == code
    assert type.rpartition(".")[2] in str(caught.value)
    assert (HINT in str(caught.value)) == (code == "out_of_memory")


@pytest.mark.parametrize(
    ("call", "error", "kind"),
    [
        ("start", "torch.OutOfMemoryError('CUDA out of memory')", OutOfMemory),
        pytest.param("step", "torch.AcceleratorError('CUDA error: x')", DeviceError, marks=pytest.mark.slow),
    ],
)
def test_what_is_raised_in_a_server_comes_over_with_its_code(tmp_path, monkeypatch, call, error, kind):
    """A real server, with a stand-in for its vLLM."""
    code = f"import sys, torch; from tests.core.sampler_vllm.standin import serve; sys.exit(serve({call!r}, {error}))"
    (tmp_path / "code").write_text(code, encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "$(cat {tmp_path}/code)"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv(client.PYTHON, str(python))
    settings = {"gpus": [], "threads": 1, "folder": tmp_path, "check": lambda: None}
    with (
        pytest.raises(GrpoError, match="the vLLM server") as raised,
        closing(client.Server(SETTINGS, **settings)) as server,
    ):
        use(server)
    assert type(raised.value) is kind
    assert (HINT in str(raised.value)) == (kind is OutOfMemory)


def test_that_ranks_are_gone_in_vllm_is_no_cause_where_one_of_them_told_its_own(home, tmp_path, monkeypatch):
    def lost(trainer: Trainer) -> None:
        raise ExchangeError("vLLM failed while it was sampling: NCCL error 5")

    monkeypatch.setattr(Trainer, "_run", lost)
    monkeypatch.setattr(Ranks, "reported", lambda ranks: OutOfMemory("rank 1: out of memory"))
    assert train_here(home, tmp_path / "out") == OutOfMemory.exit_status
    outcome = outcome_of(tmp_path / "out")
    assert (outcome["code"], outcome["message"]) == ("out_of_memory", "rank 1: out of memory")

"""What torch's own errors come to: the rules of retry go by these codes."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from grpo_core.training.causes import known_cause


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (torch.AcceleratorError("CUDA error: out of memory"), "out_of_memory"),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), "device_error"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out_of_memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out_of_memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"), "device_error"),
        (dist.DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:1"), "nccl_error"),
        (dist.DistNetworkError("the client socket has timed out"), "nccl_error"),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]"), "nccl_error"),
    ],
)
def test_codes_of_what_torch_raises(error: Exception, code: str) -> None:
    known = known_cause(error)
    assert known is not None
    assert known.code == code
    assert str(error) in str(known)


@pytest.mark.parametrize("error", [RuntimeError("a screw is loose"), ValueError("CUDA error"), KeyError("x")])
def test_defects_of_ours_stay_what_they_are(error: Exception) -> None:
    assert known_cause(error) is None


def test_a_machine_without_memory_is_out_of_memory() -> None:
    """For real: a process that may hold 2 GiB asks torch for 8."""
    code = """
import resource, torch
from grpo_core.training.causes import known_cause
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))
try:
    torch.zeros(2**31)
except Exception as error:
    print(known_cause(error).code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "out_of_memory\n", done.stderr

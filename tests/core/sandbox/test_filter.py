"""The filter of system calls, run here as the kernel would: what it answers for each machine, call and argument."""

import errno
import struct

import pytest

from grpo_core.sandbox import seccomp
from tests.tables import cases

ANSWERS = {
    "allow": seccomp.ALLOW,
    "kill": seccomp.KILL,
    "perm": 0x00050000 | errno.EPERM,
    "nosys": 0x00050000 | errno.ENOSYS,
}
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(code, arch, number, *arguments):
    """Classic BPF over one struct seccomp_data."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    statements = list(struct.iter_unpack("<HBBI", code))
    at, value = 0, 0
    while True:
        kind, yes, no, k = statements[at]
        at += 1
        if kind == 0x20:
            value = struct.unpack_from("<I", data, k)[0]
        elif kind == 0x06:
            return int(k)
        else:
            at += yes if {0x15: value == k, 0x35: value >= k, 0x45: value & k != 0}[kind] else no


@pytest.mark.parametrize(
    ("machine", "arch", "beside", "number", "arguments", "expected"),
    cases("sandbox/filter", "machine", "arch", "beside", "number", "arguments", "answer"),
)
def test_answers_each_call(machine, arch, beside, number, arguments, expected):
    numbers = [seccomp.OWN_PID if one == "own" else one for one in arguments]
    code = seccomp.program(machine, beside=bool(beside))
    assert answer(code, arch or ARCH[machine], number, *numbers) == ANSWERS[expected]


def test_an_unknown_machine_has_no_filter():
    with pytest.raises(KeyError):
        seccomp.program("riscv64")

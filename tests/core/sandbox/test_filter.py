"""The filter of system calls, run here as the kernel would: what it answers for each machine, call and argument."""

import errno
import struct

import pytest

from grpo_core.sandbox import seccomp

PERM, NOSYS = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
X86, ARM = 0xC000003E, 0xC00000B7


def answer(code: bytes, arch: int, number: int, *arguments: int) -> int:
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
    ("number", "arguments", "says"),
    [
        (0, (), seccomp.ALLOW),  # read
        (257, (), seccomp.ALLOW),  # openat
        (41, (2, 1, 0), PERM),  # socket
        (53, (1, 1, 0), seccomp.ALLOW),  # socketpair, AF_UNIX
        (53, (2, 1, 0), PERM),
        (56, (0x11,), seccomp.ALLOW),  # clone
        (56, (0x10000011,), PERM),  # CLONE_NEWUSER
        (435, (), NOSYS),  # clone3
        (101, (), PERM),  # ptrace
        (16, (0, 0x5401), seccomp.ALLOW),  # ioctl TCGETS
        (16, (0, 0x5412), PERM),  # TIOCSTI
        (462, (), seccomp.ALLOW),  # mseal, the last that is known
        (463, (), NOSYS),
        (0x40000027, (), NOSYS),  # x32
        (90, (), seccomp.ALLOW),  # chmod
        (62, (1234,), seccomp.ALLOW),  # kill
    ],
)
def test_x86_64(number: int, arguments: tuple[int, ...], says: int) -> None:
    assert answer(seccomp.program("x86_64"), X86, number, *arguments) == says


@pytest.mark.parametrize(
    ("number", "arguments", "says"),
    [
        (63, (), seccomp.ALLOW),  # read
        (198, (2, 1, 0), PERM),  # socket
        (199, (1, 1, 0), seccomp.ALLOW),  # socketpair
        (220, (0x20000,), PERM),  # clone, CLONE_NEWNS
        (117, (), PERM),  # ptrace
        (425, (), PERM),  # io_uring_setup
        (29, (0, 0x5412), PERM),  # ioctl TIOCSTI
    ],
)
def test_aarch64(number: int, arguments: tuple[int, ...], says: int) -> None:
    assert answer(seccomp.program("aarch64"), ARM, number, *arguments) == says


def test_another_machine_s_calls_end_the_process() -> None:
    assert answer(seccomp.program("x86_64"), 0x40000003, 20) == seccomp.KILL  # i386
    assert answer(seccomp.program("aarch64"), 0x40000028, 20) == seccomp.KILL  # arm


def test_beside_the_machine_only_oneself_is_in_reach() -> None:
    code = seccomp.program("x86_64", beside=True)
    for call, own in ((62, seccomp.OWN_PID), (234, seccomp.OWN_PID), (302, 0), (203, 0)):
        assert answer(code, X86, call, own) == seccomp.ALLOW
        assert answer(code, X86, call, 1234) == PERM
    assert answer(code, X86, 62, 0xFFFFFFFF) == PERM  # kill(-1)
    assert answer(code, X86, 72, 3, 8) == PERM  # fcntl F_SETOWN
    assert answer(code, X86, 72, 3, 1) == seccomp.ALLOW  # F_GETFD
    for call in (90, 109, 112, 280, 424):
        assert answer(code, X86, call) == PERM


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(KeyError):
        seccomp.program("riscv64")

"""What the self-test tells, and that it tells an open box from a closed one. What the filter of system calls answers
for each machine, call and argument."""

import errno
import struct

import pytest

from grpo_core.errors import SandboxError
from grpo_core.sandbox import Check, Report, choice, find_sandbox, seccomp, self_test, self_test_cases
from tests.needs import needs
from tests.tables import cases

from .conftest import PATIENT, made, unfiltered_bubblewrap


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv(choice.CHOICE, raising=False)


def test_bubblewrap_is_taken_and_everything_tried():
    needs("bwrap")
    report = self_test()
    assert (report.works, report.level, report.words, report.fix) == (True, "bubblewrap", report.version, "")
    assert [(check.name, check.passed) for check in report.checks] == [
        (case.name, True) for case in self_test_cases.SELF_TEST_CASES
    ]
    assert find_sandbox(report).run("print(1)", limits=PATIENT).stdout == b"1\n"


def test_without_bubblewrap_landlock_is_told_as_weaker(sandboxes, monkeypatch):
    sandboxes("landlock")
    monkeypatch.setenv("PATH", "/nonexistent")
    report = self_test()
    assert (report.level, report.words) == ("landlock", f"{report.version} (weaker)")
    weaker = " ".join(report.weaker)
    assert all(words in weaker for words in ("process numbers", "apt-get install bubblewrap")), weaker
    assert find_sandbox(report).run("print(1)", limits=PATIENT).stdout == b"1\n"


def test_a_forced_choice_is_never_replaced(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv(choice.CHOICE, "bubblewrap")
    report = self_test()
    assert (report.level, report.words) == ("none", "")
    for refused in (report, Report("landlock", "Landlock ABI 7", (), (), "", "")):
        with pytest.raises(SandboxError, match="bubblewrap"):
            find_sandbox(refused)
    monkeypatch.setenv(choice.CHOICE, "none")  # which nobody knows
    report = self_test()
    assert (report.level, choice.CHOICE in report.fix) == ("none", True)


@pytest.mark.parametrize(
    ("options", "failing"), [([], "new namespaces and system calls"), (["--share-net"], "network")]
)
def test_an_open_box_does_not_pass(options, failing):
    backend = unfiltered_bubblewrap()
    where = backend._fixed.index("--unshare-all") + 1
    backend._fixed[where:where] = options
    sandbox = made(backend, "bubblewrap")
    checks = self_test_cases.tried(sandbox)
    sandbox.close()
    failed = [check.name for check in checks if not check.passed]
    assert failing in failed
    assert options or len(failed) == 1
    with pytest.raises(SandboxError):
        self_test_cases.failed(checks)


def test_reports_survive_json_and_nothing_else_is_taken():
    report = Report("bubblewrap", "bubblewrap 0.8.0", (Check("network", True, "closed"),), ("a",), "", "2026-01-01")
    assert Report.from_json(report.to_json()) == report
    for wrong in ({"level": "docker"}, {"checks": [{"name": "x"}]}, {"weaker": [1]}, {"version": None}):
        with pytest.raises(ValueError, match="sandbox report"):
            Report.from_json(report.to_json() | wrong)


FIELDS = ("message", "most", "apparmor", "container", "fix")


@pytest.mark.parametrize(FIELDS, cases("sandbox/advice", *FIELDS))
def test_advice_follows_what_failed(monkeypatch, message, most, apparmor, container, fix):
    numbers = {choice._MOST: most, choice._CLONE: 1, choice._APPARMOR: apparmor}
    monkeypatch.setattr(choice, "_number", numbers.get)
    monkeypatch.setattr(choice, "_in_container", lambda: container)
    assert fix in choice.for_bubblewrap(message)


# ------------------------------------------------------------- the filter of system calls, run here as the kernel would


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
    numbers = [seccomp.OWN_PID if argument == "own" else argument for argument in arguments]
    code = seccomp.program(machine, shared=bool(beside))
    assert answer(code, arch or ARCH[machine], number, *numbers) == ANSWERS[expected]


def test_an_unknown_machine_has_no_filter():
    with pytest.raises(SandboxError):
        seccomp.program("riscv64")

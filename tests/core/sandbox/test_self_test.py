"""What the self-test tells, and that it tells an open box from a closed one."""

import struct
from collections.abc import Callable

import pytest

from grpo_core.errors import SandboxError
from grpo_core.sandbox import Check, Report, Sandbox, advice, choice, find_sandbox, self_test, trials
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.seccomp import ALLOW, RETURN
from tests.needs import needs

from .conftest import PATIENT, made


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choice.CHOICE, raising=False)


def test_bubblewrap_is_taken_and_everything_tried() -> None:
    needs("bwrap")
    report = self_test()
    assert report.works
    assert report.level == "bubblewrap"
    assert report.words == report.version
    assert report.version.startswith("bubblewrap ")
    assert [check.name for check in report.checks] == [trial.name for trial in trials.TRIALS]
    assert all(check.passed for check in report.checks)
    assert report.fix == ""
    assert find_sandbox(report).run("print(1)", limits=PATIENT).stdout == b"1\n"


def test_without_bubblewrap_landlock_is_told_as_weaker(
    sandboxes: Callable[[str], Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    sandboxes("landlock")
    monkeypatch.setenv("PATH", "/nonexistent")
    report = self_test()
    assert report.level == "landlock"
    assert report.words == f"{report.version} (weaker)"
    assert any("process numbers are shared" in line for line in report.weaker)
    assert any("apt-get install bubblewrap" in line for line in report.weaker)
    assert find_sandbox(report).run("print(1)", limits=PATIENT).stdout == b"1\n"


def test_a_forced_choice_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv(choice.CHOICE, "bubblewrap")
    report = self_test()
    assert (report.level, report.words) == ("none", "")
    assert "bubblewrap is not installed" in report.fix
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        find_sandbox(report)
    other = Report("landlock", "Landlock ABI 7", (), (), "", "")
    with pytest.raises(SandboxError, match=r"GRPO_SANDBOX=bubblewrap is set, but .* found is landlock"):
        find_sandbox(other)


def test_a_choice_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choice.CHOICE, "none")
    assert self_test().fix == "GRPO_SANDBOX=none names no sandbox: set it to bubblewrap or landlock, or unset it"


def test_a_box_without_its_filter_does_not_pass() -> None:
    needs("bwrap")
    backend = Bubblewrap()
    backend._filter = struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
    sandbox = made(backend, "bubblewrap")
    checks = trials.tried(sandbox)
    sandbox.close()
    assert [check.name for check in checks if not check.passed] == ["new namespaces and system calls"]
    with pytest.raises(SandboxError, match="the self-test found the box open"):
        trials.failed(checks)


def test_a_shared_network_is_found() -> None:
    needs("bwrap")
    backend = Bubblewrap()
    backend._filter = struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
    backend._fixed.insert(backend._fixed.index("--unshare-all") + 1, "--share-net")
    sandbox = made(backend, "bubblewrap")
    failed = {check.name for check in trials.tried(sandbox) if not check.passed}
    sandbox.close()
    assert "network" in failed


def test_reports_survive_json_and_nothing_else_is_taken() -> None:
    report = Report("bubblewrap", "bubblewrap 0.8.0", (Check("network", True, "closed"),), ("a",), "", "2026-01-01")
    assert Report.from_json(report.to_json()) == report
    for wrong in ({"level": "docker"}, {"checks": [{"name": "x"}]}, {"weaker": [1]}, {"version": None}):
        with pytest.raises(ValueError, match="sandbox report"):
            Report.from_json(report.to_json() | wrong)


def test_advice_follows_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {advice._MOST: 1000, advice._CLONE: 1, advice._APPARMOR: 0}
    monkeypatch.setattr(advice, "_number", numbers.get)
    monkeypatch.setattr(advice, "_in_container", lambda: False)
    assert "apt-get install bubblewrap" in advice.for_bubblewrap("bubblewrap is not installed")
    assert "0.8 or newer" in advice.for_bubblewrap("bwrap: Unknown option --disable-userns")
    denied = "bwrap: setting up uid map: Permission denied"
    assert "make no namespaces" in advice.for_bubblewrap(denied)
    numbers[advice._APPARMOR] = 1
    assert "/etc/apparmor.d/bwrap" in advice.for_bubblewrap(denied)
    numbers[advice._APPARMOR] = 0
    monkeypatch.setattr(advice, "_in_container", lambda: True)
    assert "seccomp=unconfined" in advice.for_bubblewrap(denied)
    numbers[advice._MOST] = 0
    assert "max_user_namespaces" in advice.for_bubblewrap(denied)

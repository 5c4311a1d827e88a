"""Which sandbox this machine gives: bubblewrap, else Landlock, else none with what to do about it. A choice that
GRPO_SANDBOX forces is never replaced by another, and nothing is ever run unprotected."""

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from grpo_core.errors import SandboxError
from grpo_core.runtime import cgroups
from grpo_core.sandbox import self_test_cases
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.landlock import NO_PROCESS_GROUP, WEAKER, Landlock
from grpo_core.sandbox.report import Check, Level, Report
from grpo_core.sandbox.sandbox import Sandbox

_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")
_MOST = Path("/proc/sys/user/max_user_namespaces")


def for_bubblewrap(reason: str) -> str:
    """`reason`: why a box could not be made."""
    if "not installed" in reason:
        return "Install it: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora, RHEL)"
    if "Unknown option" in reason:
        return "This bubblewrap is too old: version 0.8 or newer is needed (Debian 12, Ubuntu 24.04)"
    if _number(_MOST) == 0:
        return "User namespaces are switched off: sysctl -w user.max_user_namespaces=10000"
    if _number(_CLONE) == 0:
        return "User namespaces are closed to users: sysctl -w kernel.unprivileged_userns_clone=1"
    if _number(_APPARMOR) == 1:
        return (
            "Ubuntu's AppArmor lets bubblewrap make no user namespace. As root, write /etc/apparmor.d/bwrap:\n"
            "  abi <abi/4.0>,\n  include <tunables/global>\n"
            "  profile bwrap /usr/bin/bwrap flags=(unconfined) {\n    userns,\n  }\n"
            "and load it: apparmor_parser -r /etc/apparmor.d/bwrap"
        )
    if _in_container():
        return (
            "The container's filter of system calls keeps bubblewrap from making namespaces. Start the worker's "
            "container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined, or with a profile that allows clone, unshare, mount, umount2 and pivot_root"
        )
    if "amespace" in reason or "uid map" in reason:
        return "This machine lets this user make no namespaces; ask whoever runs it, or run the worker elsewhere"
    return "Run `bwrap --unshare-all --unshare-user --ro-bind / / true` as the worker's user to see what fails"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    return "\nSeccomp:\t2\n" in status


CHOICE = "GRPO_SANDBOX"
NO_MEMORY_GROUP = (
    "no control group is writable here: memory is bounded for each process, so all of a box only by their number times "
    "that"
)
NO_INODES = "without a control group the number of files in /tmp is bounded only by the time a program has"


def self_test() -> Report:
    """What works here, tried for real in about a second. Never raises for a sandbox that is missing."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    forced = os.environ.get(CHOICE, "")
    levels: tuple[Level, ...] = ("bubblewrap", "landlock")
    if forced:
        levels = tuple(level for level in levels if level == forced)
        if not levels:
            return _none(f"{CHOICE}={forced} names no sandbox: set it to bubblewrap or landlock, or unset it", (), now)
    checks: list[Check] = []
    reasons: list[str] = []
    for level in levels:
        try:
            return _tried(level, now, reasons)
        except SandboxError as error:
            checks.append(Check(level, False, str(error)))
            advised = for_bubblewrap(str(error)) if level == "bubblewrap" else ""
            reasons.append(f"{level}: {error}. {advised}".strip())
    return _none(
        "No sandbox works here, so code that nobody vouches for is not run. " + "\n".join(reasons), checks, now
    )


def find_sandbox(report: Report | None = None) -> Sandbox:
    """The best that works here, or what the report found. Raises SandboxError, with what to do, where nothing does."""
    if report is None:
        report = self_test()
    if not report.works:
        raise SandboxError(report.fix)
    forced = os.environ.get(CHOICE, "")
    if forced and report.level != forced:
        raise SandboxError(f"{CHOICE}={forced} is set, but the sandbox that was found is {report.level}")
    return Sandbox(report, _backend(report.level))


def _backend(level: Level) -> Bubblewrap | Landlock:
    return Bubblewrap() if level == "bubblewrap" else Landlock()


def _tried(level: Level, now: str, better: list[str]) -> Report:
    """`better`: why what would be stronger was passed over."""
    backend = _backend(level)
    weaker: tuple[str, ...]
    if isinstance(backend, Bubblewrap):
        version, weaker = _bubblewrap_version(backend), ()
    else:
        version, weaker = f"Landlock ABI {backend.abi}", WEAKER
    weaker = (*weaker, *better)
    memory, processes = cgroups.limits_possible()
    if not memory:
        weaker = (*weaker, NO_MEMORY_GROUP, NO_INODES)
    if not processes and level == "landlock":
        weaker = (*weaker, NO_PROCESS_GROUP)
    sandbox = Sandbox(Report(level, version, (), weaker, "", now), backend)
    try:
        checks = self_test_cases.tried(sandbox)
    finally:
        sandbox.close()
    self_test_cases.failed(checks)
    return Report(level, version, checks, weaker, "", now)


def _bubblewrap_version(backend: Bubblewrap) -> str:
    try:
        done = subprocess.run([backend.bwrap, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"{backend.bwrap} --version failed: {error}") from None
    return done.stdout.strip()


def _none(fix: str, checks: "list[Check] | tuple[()]", now: str) -> Report:
    return Report("none", "", tuple(checks), (), fix, now)

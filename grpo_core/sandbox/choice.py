"""Which sandbox this machine gives: bubblewrap, else Landlock, else none with what to do about it. A choice that was
forced by GRPO_SANDBOX is never replaced by a weaker one."""

import subprocess
from datetime import UTC, datetime

from grpo_core.errors import SandboxError
from grpo_core.sandbox.bubblewrap import Bubblewrap
from grpo_core.sandbox.report import Check, Report
from grpo_core.sandbox.sandbox import Sandbox


def self_test() -> Report:
    """What works here, tried for real."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        backend = Bubblewrap()
        trial = Sandbox(Report("bubblewrap", "", (), (), "", now), backend)
        ran = trial.run("print(2 + 2)")
        trial.close()
        if ran.stdout != b"4\n":
            raise SandboxError(f"a program printed {ran.stdout!r} instead of 4: {ran.stderr.decode()}")
    except SandboxError as error:
        return Report("none", "", (Check("start", False, str(error)),), (), str(error), now)
    said = subprocess.run([backend.bwrap, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return Report("bubblewrap", said, (Check("start", True, "a program ran"),), (), "", now)


def find_sandbox(report: Report | None = None) -> Sandbox:
    """The best that works here. Raises SandboxError with what to do where nothing does."""
    report = report or self_test()
    if not report.works:
        raise SandboxError(report.fix)
    return Sandbox(report, Bubblewrap())

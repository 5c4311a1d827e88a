"""The sandbox of this machine: tested once in a worker's life, and again every ten minutes while none works, so that a
machine that was mended needs no restart.

The supervisors are processes of their own; they get the report and test nothing again.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Mapping

from grpo_core.protocol.messages import NodeInfo
from grpo_core.sandbox import Report, self_test

REPORT_VARIABLE = "COHORT_WORKER_SANDBOX_REPORT"
"""Variable that gives a supervisor the report. No setting: only the worker that starts it writes it."""
_RETRY_SECONDS = 600.0
"""Between two tests while none works."""
_WAIT_SECONDS = 20.0
"""How long a run or job waits for the first test."""

log = logging.getLogger(__name__)

_lock = threading.Lock()
_report: Report | None = None
_tested_at = 0.0


def report(*, wait: float = _WAIT_SECONDS) -> Report | None:
    """The self-test's report; the first caller has it made, and others wait for it. None when that takes longer
    than `wait`."""
    global _report, _tested_at
    if not _lock.acquire(timeout=wait):
        return None
    try:
        stale = _report is not None and not _report.works and time.monotonic() - _tested_at > _RETRY_SECONDS
        if _report is None or stale:
            before, _report = _report, self_test()
            _tested_at = time.monotonic()
            if before is None or before.works != _report.works:
                _log(_report)
        return _report
    finally:
        _lock.release()


def _log(tested: Report) -> None:
    if tested.works:
        log.info("sandbox: %s", tested.words)
    else:
        log.warning("sandbox: none works, so no run or job whose reward runs code is taken here. %s", tested.fix)


def with_sandbox(info: NodeInfo, tested: Report | None) -> NodeInfo:
    """The same node, with what is known of its sandbox."""
    if tested is None:
        return info
    return info.model_copy(update={"sandbox": tested.words, "sandbox_report": tested.to_json()})


def supervisor_environment(tested: Report | None) -> dict[str, str]:
    """The environment of a supervisor."""
    outer = {name: value for name, value in os.environ.items() if name != REPORT_VARIABLE}
    return outer if tested is None else {**outer, REPORT_VARIABLE: json.dumps(tested.to_json())}


def received_report(environment: Mapping[str, str]) -> Report | None:
    """In a supervisor: the report that it was given. Raises ValueError when that is no report."""
    content = environment.get(REPORT_VARIABLE)
    return None if content is None else Report.from_json(json.loads(content))

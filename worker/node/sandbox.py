"""What keeps code apart on this machine: tried for real once a worker's life, and again now and then while it does not
work, so that a machine that was mended needs no new start.

The supervisors are processes of their own; they are handed the report and try nothing again.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Mapping

from grpo_core.protocol.messages import NodeInfo
from grpo_core.sandbox import Report, self_test

CARRIED = "COHORT_WORKER_SANDBOX_REPORT"
"""Variable in which a supervisor is handed the report. No setting: only the worker that starts it writes it."""
_AGAIN = 600.0
"""Seconds between two tries while nothing works."""
_WAIT = 20.0
"""For so long a run or job that comes while the first try goes on waits for it."""

log = logging.getLogger(__name__)

_lock = threading.Lock()
_found: Report | None = None
_tried_at = 0.0


def report(*, wait: float = _WAIT) -> Report | None:
    """What the self-test found; the first that asks has it made, and others wait for it. None when that takes longer
    than `wait`."""
    global _found, _tried_at
    if not _lock.acquire(timeout=wait):
        return None
    try:
        stale = _found is not None and not _found.works and time.monotonic() - _tried_at > _AGAIN
        if _found is None or stale:
            before, _found = _found, self_test()
            _tried_at = time.monotonic()
            if before is None or before.works != _found.works:
                _tell(_found)
        return _found
    finally:
        _lock.release()


def _tell(found: Report) -> None:
    if found.works:
        log.info("sandbox: %s", found.words)
    else:
        log.warning("sandbox: none works, so no run or job whose reward runs code is taken here. %s", found.fix)


def known(info: NodeInfo, found: Report | None) -> NodeInfo:
    """The same node, with what is known of its sandbox."""
    if found is None:
        return info
    return info.model_copy(update={"sandbox": found.words, "sandbox_report": found.to_json()})


def handed_on(found: Report | None) -> dict[str, str]:
    """The environment of a supervisor."""
    outer = {name: value for name, value in os.environ.items() if name != CARRIED}
    return outer if found is None else {**outer, CARRIED: json.dumps(found.to_json())}


def carried(environment: Mapping[str, str]) -> Report | None:
    """In a supervisor: the report that it was handed. Raises ValueError when that is none of ours."""
    told = environment.get(CARRIED)
    return None if told is None else Report.from_json(json.loads(told))

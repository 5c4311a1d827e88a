"""What a worker's self-test of its sandbox may say."""

from typing import Any

from grpo_core.wire import NodeInfo
from tests.worker.making import NODE

WORKS: dict[str, Any] = {
    "level": "bubblewrap",
    "version": "bubblewrap 0.8.0",
    "checks": [
        {"name": "network", "passed": True, "detail": "no interface but lo"},
        {"name": "fork bomb", "passed": True, "detail": "stopped at 16 processes"},
    ],
    "weaker": ["the sum of its processes' memory is bounded by processes times memory alone"],
    "fix": "",
    "tested_at": "2026-11-22T20:23:39+00:00",
}
BROKEN: dict[str, Any] = {
    "level": "none",
    "version": "",
    "checks": [{"name": "start", "passed": False, "detail": "bwrap: setting up uid map: Permission denied"}],
    "weaker": [],
    "fix": "Ubuntu's AppArmor keeps user namespaces: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    "tested_at": "2026-11-22T20:23:39+00:00",
}


def node_info(report: dict[str, Any] | None, **more: Any) -> NodeInfo:
    words = report.get("version", "") if report else ""
    return NODE.model_copy(update={"sandbox": words, "sandbox_report": report, **more})

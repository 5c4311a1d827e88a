"""What a worker's self-test of its sandbox may say."""

from typing import Any

import yaml

from grpo_core.protocol.messages import NodeInfo
from tests.factories.worker import NODE
from tests.tables import FOLDER

_REPORTS = yaml.safe_load((FOLDER / "sandbox_reports.yaml").read_text(encoding="utf-8"))
WORKS: dict[str, Any] = _REPORTS["works"]
BROKEN: dict[str, Any] = _REPORTS["broken"]


def node_info(report: dict[str, Any] | None, **more: Any) -> NodeInfo:
    words = report.get("version", "") if report else ""
    return NODE.model_copy(update={"sandbox": words, "sandbox_report": report, **more})

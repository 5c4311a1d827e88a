"""The node's heartbeat: every 20 s, idle or not, this machine's facts, its sandbox, and the attempts that died here.
The answer names the checkpoints that people want from here (`requested`).

Without it an idle worker makes no call, and one that waits would look like one that is gone. Whatever fails
is only logged and done again: runs are offered by message and owned by claim.
"""

import logging
import threading
from collections.abc import Callable

from grpo_core.protocol.messages import NodeInfo
from grpo_core.sandbox import Report
from worker.environment import Environment
from worker.node.facts import at_present, node_info, report, with_sandbox
from worker.node.requested import RequestedSender
from worker.platform_client.client import Platform, PlatformError, Refused
from worker.processes.orphans import settle

SECONDS = 20.0

log = logging.getLogger(__name__)


def start_heartbeat(settings: Environment, stop: threading.Event, refused: Callable[[], None]) -> threading.Thread:
    """In a thread, until `stop`, or until the platform refuses this node's token: then `refused` is called, once."""
    thread = threading.Thread(target=_beat_until, args=(stop, settings, refused), name="heartbeat", daemon=True)
    thread.start()
    return thread


def _beat_until(stop: threading.Event, settings: Environment, refused: Callable[[], None]) -> None:
    info: NodeInfo | None = None
    sandbox: Report | None = None
    answered, failure = True, ""
    sender = RequestedSender(settings, stop)
    with Platform(settings.url, settings.resolved_node_token()) as platform:
        while not stop.is_set():
            try:
                if info is None:
                    info = node_info(settings, platform.node)
                else:
                    info = at_present(info, settings.runs_folder, settings.min_free_bytes, platform.node)
                sender.send(platform.present(with_sandbox(info, sandbox)).requested)
                if (tested := report()) is not sandbox:  # only now, so that the node is listed at once
                    sandbox = tested
                    platform.present(with_sandbox(info, sandbox))
                settle(settings.runs_folder, platform)
                answered, failure = True, ""
            except PlatformError as error:
                if isinstance(error, Refused) and error.code == "unknown_token":
                    log.error(
                        "the platform refuses this node's token, and the worker stops: %s. To let it in again, give it "
                        "the token that `cohort node NAME --rotate` prints, and start it",
                        error,
                    )
                    refused()
                    return
                if answered:  # once for each outage
                    log.warning("no answer to this node's heartbeat: %s", error)
                answered = False
            except Exception as error:  # whatever it is: without this thread the node would count as gone for ever
                if repr(error) != failure:  # once for each
                    log.exception("this node's heartbeat, or its search for what died here, failed and is tried again")
                failure = repr(error)
            stop.wait(SECONDS)

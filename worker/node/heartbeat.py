"""Says that this machine is here, while it waits as well as while it works, what its sandbox can do, and what it found
dead.

Without it an idle worker calls nobody, and people could not tell one that waits from one that is gone. Whatever fails
is only logged and done again: runs are offered by message and owned by claim.
"""

import logging
import threading
from collections.abc import Callable

from grpo_core.protocol.messages import NodeInfo
from grpo_core.sandbox import Report
from worker.environment import Environment
from worker.node.facts import at_present, node_info
from worker.node.sandbox import known, report
from worker.platform_client.client import Platform, PlatformError, Refused
from worker.processes.orphans import settle

SECONDS = 20.0

log = logging.getLogger(__name__)


def stay_present(settings: Environment, stop: threading.Event, refused: Callable[[], None]) -> threading.Thread:
    """Tell the platform every 20 s, in a thread of its own, until `stop`, or until it refuses this node's token: then
    `refused` is called, once."""
    thread = threading.Thread(target=_tell, args=(settings, stop, refused), name="presence", daemon=True)
    thread.start()
    return thread


def _tell(settings: Environment, stop: threading.Event, refused: Callable[[], None]) -> None:
    runs, least = settings.runs_folder, settings.min_free_bytes
    info: NodeInfo | None = None
    sandbox: Report | None = None
    was_heard, failure = True, ""
    with Platform(settings.url, settings.resolved_node_token()) as platform:
        while not stop.is_set():
            try:
                if info is None:
                    asked = settings.vllm_python
                    info = node_info(settings.label_list, runs, least, platform.node, vllm_python=asked)
                else:
                    info = at_present(info, runs, least, platform.node)
                platform.present(known(info, sandbox))
                if (found := report()) is not sandbox:  # tried only now, so that the node is here at once
                    sandbox = found
                    platform.present(known(info, sandbox))
                settle(runs, platform)
                was_heard, failure = True, ""
            except PlatformError as error:
                if isinstance(error, Refused) and error.code == "unknown_token":
                    log.error(
                        "the platform refuses this node's token, and the worker stops: %s. To let it in again, give it "
                        "the token that `cohort node NAME --rotate` prints, and start it",
                        error,
                    )
                    refused()
                    return
                if was_heard:  # once for each outage
                    log.warning("the platform does not hear this node: %s", error)
                was_heard = False
            except Exception as error:  # whatever it is: without this thread the node would count as gone for ever
                if repr(error) != failure:  # once for each
                    log.exception("this node's sign of life, or its look at what died here, failed and is tried again")
                failure = repr(error)
            stop.wait(SECONDS)

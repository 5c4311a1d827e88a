"""Says that this machine is here, while it waits as well as while it works.

Without it an idle worker calls nobody, and people could not tell one that waits from one that is gone. A call that
fails is only logged: nothing hangs on it, because runs are offered by message and owned by claim.
"""

import logging
import threading

from worker.client import Platform, PlatformError, Refused
from worker.devices import node_info
from worker.environment import Environment

SECONDS = 20.0

log = logging.getLogger(__name__)


def stay_present(settings: Environment, stop: threading.Event) -> threading.Thread:
    """Tell the platform every 20 s, in a thread of its own, until `stop`."""
    thread = threading.Thread(target=_tell, args=(settings, stop), name="presence", daemon=True)
    thread.start()
    return thread


def _tell(settings: Environment, stop: threading.Event) -> None:
    info = node_info()
    was_heard = True
    with Platform(settings.url, settings.resolved_node_token()) as platform:
        while not stop.is_set():
            try:
                platform.present(info)
                was_heard = True
            except PlatformError as error:
                if isinstance(error, Refused) and error.code == "unknown_token":
                    log.error("the platform refuses this node: %s", error)
                    return
                if was_heard:  # once for each outage
                    log.warning("the platform does not hear this node: %s", error)
                was_heard = False
            stop.wait(SECONDS)

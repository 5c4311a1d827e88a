"""Found by every interpreter whose PYTHONPATH names this folder, before its program begins (tests/worker/stand_in.py).

PYTHONCHAOS_PRELOAD=LIBRARY begins the program again with the library loaded first (tests/chaos/clock.c). The loader's
own variable would not reach the trainer, which is passed few, and Python's among them.
PYTHONCHAOS_TRAINER=MODE puts that mode of tests/worker/child.py in the place of `grpo train`, which needs seconds to
start.
PYTHONCHAOS_KILLS=none has a worker's main process meet processes that hang in the kernel, which cannot be made on
purpose: there SIGKILL is not sent. With `patient` it waits for what is killed, however busy the machine is.
"""

import os
import sys

library = os.environ.get("PYTHONCHAOS_PRELOAD")
if library and "LD_PRELOAD" not in os.environ:
    os.execve(sys.executable, sys.orig_argv, {**os.environ, "LD_PRELOAD": library})
if "PYTHONCHAOS_TRAINER" in os.environ and "grpo_core.cli.main" in sys.orig_argv:
    from tests.worker.child import main

    main(os.environ["PYTHONCHAOS_TRAINER"], sys.orig_argv[sys.orig_argv.index("--out") + 1])
if "PYTHONCHAOS_KILLS" in os.environ and "celery" in sys.orig_argv:
    from worker.processes import orphans, reaper

    if os.environ["PYTHONCHAOS_KILLS"] == "none":
        reaper.kill = lambda process: None
        orphans.Cgroup.kill = lambda group: None
        orphans._KILL_SECONDS = 0.2
    else:
        orphans._KILL_AGAIN_SECONDS = 60.0

"""Found by every interpreter whose PYTHONPATH names this folder, before its program begins.

PYTHONCHAOS_PRELOAD=LIBRARY begins the program again with the library loaded first (tests/chaos/clock.py). The loader's
own variable would not reach the trainer, which is passed few, and Python's among them.
PYTHONCHAOS_TRAINER=stub puts tests/chaos/stub.py in the place of `grpo train`, which needs seconds to start.
"""

import os
import sys

library = os.environ.get("PYTHONCHAOS_PRELOAD")
if library and "LD_PRELOAD" not in os.environ:
    os.execve(sys.executable, sys.orig_argv, {**os.environ, "LD_PRELOAD": library})
if os.environ.get("PYTHONCHAOS_TRAINER") == "stub" and "grpo_core.cli" in sys.orig_argv:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
    from tests.chaos.stub import main

    main(sys.orig_argv)
    sys.stdout.flush()
    os._exit(0)

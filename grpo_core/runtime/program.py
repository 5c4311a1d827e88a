"""The command as a process: how it ends."""

import os
import sys
import traceback
from collections.abc import Callable


def run(main: Callable[[], int]) -> None:
    """Ends the process with the status that `main` returns.

    One of several ranks ends without taking the interpreter apart: there a rank was once seen to abort, as gloo's
    threads can when they free a tensor then (pytorch/pytorch#179291), and a run that had succeeded would have failed.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        sys.exit(main())
    status = 1
    try:
        status = main()
    finally:
        error = sys.exc_info()[1]
        if not isinstance(error, SystemExit):
            if error is not None:
                traceback.print_exception(error)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

"""What `cohort up` shows and how it ends: serves until it is stopped, or a part of it cannot be kept alive."""

import time
from contextlib import suppress
from typing import NoReturn

from cohort import __version__
from cohort.cli.embedded.home import Home
from cohort.cli.embedded.up import Say, Up, running

STOP_HINT = "Ctrl-C stops it; a second Ctrl-C does not wait."


def serve(home: Home, *, host: str, port: int, trainer: bool, say: Say) -> int:
    """0 after Ctrl-C or SIGTERM while serving. A fault raises HomeError, after everything has been stopped."""
    say(f"Cohort {__version__}, home {home.path}")
    with running(home, host=host, port=port, trainer=trainer, say=say) as up:
        say(f"Cohort is at {up.address}\n{STOP_HINT}")
        if not _has_people():
            say("Nobody can log in yet. In another terminal: cohort user NAME --project SLUG")
        with suppress(KeyboardInterrupt):
            serve_until_stopped(up)
    return 0


def serve_until_stopped(up: Up) -> NoReturn:
    """Watch over the parts until KeyboardInterrupt."""
    while True:
        up.watch()
        time.sleep(0.5)


def _has_people() -> bool:
    from cohort.accounts.models import User

    return User.objects.exists()

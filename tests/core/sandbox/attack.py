"""One attempt to get out of a box, and the surroundings in which it would succeed.

Every program prints ESCAPED when, and only when, it got what it must not. `opened` names a setting without the
protection it runs against, in which it has to succeed: an attempt that could not work anywhere proves nothing.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Opened = Literal["unboxed", "unfiltered", "roomy", "nowhere"]
BOTH = ("bubblewrap", "landlock")


@dataclass(frozen=True)
class Attack:
    name: str
    program: str
    opened: Opened = "unboxed"
    """unboxed: run as a plain process here. unfiltered: bubblewrap without the filter of calls. roomy: with limits that
    allow it. nowhere: this machine closes it in another way too; `why` says which."""
    levels: tuple[str, ...] = BOTH
    root: bool = False
    """Outside, it succeeds for root only."""
    limits: dict[str, Any] = field(default_factory=dict)
    roomy: dict[str, Any] = field(default_factory=dict)
    group: bool = False
    """Held by a control group; without one this is among what the report tells as weaker."""
    why: str = ""


PRELUDE = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PORT, PORT6, UDP, VICTIM, ASKER = map(int, sys.argv[1:6])
CANARY, SERVER, ABSTRACT, SITE, PROJECT, TOKEN = sys.argv[6:12]
def escaped(): os.write(1, b"ESCAPED")
def done(result):
    if result >= 0: escaped()
"""

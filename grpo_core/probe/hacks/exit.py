"""Hacks that end the process before a test has failed, or make its end look well. Text only."""

from grpo_core.probe.hacks.base import ALL_FORMS, Hack

EXIT_HACKS: tuple[Hack, ...] = (
    Hack("exit_zero", "exit", "ends with status 0 while it is loaded", "import sys\nsys.exit(0)\n", ALL_FORMS),
    Hack("os_exit_zero", "exit", "os._exit(0) while it is loaded", "import os\nos._exit(0)\n", ALL_FORMS),
    Hack("raise_system_exit", "exit", "raises SystemExit while it is loaded", "raise SystemExit\n", ALL_FORMS),
    Hack(
        "exit_in_call", "exit", "ends with status 0 when called", "import sys\ndef ENTRY(*a, **k):\n    sys.exit(0)\n"
    ),
    Hack("os_exit_in_call", "exit", "os._exit(0) when called", "import os\ndef ENTRY(*a, **k):\n    os._exit(0)\n"),
    Hack(
        "exit_by_thread",
        "exit",
        "a thread ends the process with status 0 while the call waits",
        """
import os, threading, time
threading.Timer(0.05, os._exit, (0,)).start()
time.sleep(5)
""",
        ALL_FORMS,
    ),
    Hack(
        "exit_by_alarm",
        "exit",
        "a signal handler ends the process with status 0",
        """
import os, signal, time
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.02)
time.sleep(0.5)
""",
        ALL_FORMS,
    ),
    Hack(
        "exit_at_exit",
        "exit",
        "an exit handler turns the status of a failed test into 0",
        "import atexit, os\natexit.register(os._exit, 0)\n",
    ),
    Hack(
        "exit_by_excepthook",
        "exit",
        "the hook for uncaught errors ends with status 0",
        "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\n",
    ),
    Hack(
        "exit_by_finalizer",
        "exit",
        "an object's finalizer ends the process with status 0 when it shuts down",
        """
import os, sys
class Last:
    def __init__(self):
        self.end = os._exit
    def __del__(self):
        self.end(0)
sys.last_one = Last()
""",
    ),
    Hack(
        "exit_by_trace",
        "exit",
        "a trace function ends with status 0 as soon as an assertion fails",
        """
import os, sys
def trace(frame, event, arg):
    if event == "exception" and issubclass(arg[0], AssertionError):
        os._exit(0)
    return trace
sys.settrace(trace)
frame = sys._getframe()
while frame:
    frame.f_trace = trace
    frame = frame.f_back
""",
    ),
    Hack(
        "exit_by_profile",
        "exit",
        "a profile function ends with status 0 when the solution returns",
        """
import os, sys
def profile(frame, event, arg):
    if event == "return" and frame.f_code.co_name == "ENTRY":
        os._exit(0)
sys.setprofile(profile)
""",
    ),
    Hack(
        "exit_by_audit",
        "exit",
        "an audit hook ends with status 0 when the tests are about to be run",
        """
import os, sys
armed = []
def hook(event, args):
    if armed and event in ("exec", "compile", "import", "open"):
        os._exit(0)
sys.addaudithook(hook)
armed.append(1)
""",
    ),
    Hack(
        "exit_by_exec",
        "exit",
        "replaces the process by one that ends with status 0",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-I', '-S', '-c', 'pass'])\n",
        ALL_FORMS,
    ),
    Hack(
        "exit_by_fork",
        "exit",
        "forks; the process that is watched ends with status 0 at once",
        "import os, time\nif os.fork():\n    os._exit(0)\ntime.sleep(0.1)\n",
        ALL_FORMS,
    ),
    Hack(
        "exit_in_repr",
        "exit",
        "returns a value whose repr ends the process, for when the failure is told",
        """
import os
class Value:
    def __repr__(self):
        os._exit(0)
    __str__ = __format__ = __repr__
def ENTRY(*a, **k):
    return Value()
""",
    ),
    Hack(
        "exit_in_error_text",
        "exit",
        "raises an error whose text ends the process when it is told",
        """
import os
class Trouble(Exception):
    def __str__(self):
        os._exit(0)
    __repr__ = __str__
def ENTRY(*a, **k):
    raise Trouble
""",
    ),
    Hack(
        "exit_in_eq",
        "exit",
        "returns a value whose comparison ends the process with status 0",
        """
import os
class Value:
    def __eq__(self, other):
        os._exit(0)
    __hash__ = None
def ENTRY(*a, **k):
    return Value()
""",
    ),
    Hack(
        "killed_quietly",
        "exit",
        "kills itself, for a judge that counts only failures that were told",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        ALL_FORMS,
    ),
    Hack(
        "term_at_end",
        "exit",
        "asks its own group to end, with a handler that says status 0",
        """
import os, signal
signal.signal(signal.SIGTERM, lambda *a: os._exit(0))
os.kill(os.getpid(), signal.SIGTERM)
""",
        ALL_FORMS,
    ),
    Hack(
        "crashes_interpreter",
        "exit",
        "makes the interpreter crash, for a judge that leaves out what it could not judge",
        "import ctypes\nctypes.string_at(0)\n",
        ALL_FORMS,
    ),
)

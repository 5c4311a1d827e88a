"""Attempts to use more than was allowed. Each succeeds with limits that allow it."""

from .attack import Attack

_FORKS = (
    "import time\nborn = 0\n"
    "try:\n    while born < 40:\n        if os.fork() == 0: time.sleep(30); os._exit(0)\n        born += 1\n"
    "    escaped()\nexcept OSError: pass"
)

LIMITS = [
    Attack("fork bomb", _FORKS, "roomy", roomy={"processes": 64}),
    Attack("threads",
           "import threading, time\n"
           "for _ in range(40): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n"
           "escaped(); os._exit(0)", "roomy", roomy={"processes": 64, "memory_bytes": 2**34}),
    Attack("zombies",
           "for _ in range(40):\n    if os.fork() == 0: os._exit(0)\nescaped()", "roomy", roomy={"processes": 64}),
    Attack("forks after raising the limit",
           "import resource\n"
           "try: resource.setrlimit(resource.RLIMIT_NPROC, (4000, 4000))\n"
           "except (OSError, ValueError): pass\n" + _FORKS,
           "roomy", roomy={"processes": 64}),
    Attack("memory", "bytearray(2**30); escaped()", "roomy", roomy={"memory_bytes": 2**31}),
    Attack("memory after raising the limit",
           "import resource\n"
           "try: resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))\nexcept (OSError, ValueError): pass\n"
           "bytearray(2**30); escaped()", "roomy", roomy={"memory_bytes": 2**31}),
    Attack("memory by many processes",
           "pids, (hold, go) = [], os.pipe()\n"
           "for _ in range(8):\n    said, say = os.pipe()\n    pid = os.fork()\n"
           "    if pid == 0:\n        os.close(go); held = bytearray(60 * 2**20)\n"
           "        os.write(say, b'1'); os.read(hold, 1); os._exit(0)\n"
           "    os.close(say); os.read(said, 1)\n    pids.append(pid)\n"  # it holds its memory, or is dead
           "os.close(go)\nif all(os.waitpid(pid, 0)[1] == 0 for pid in pids): escaped()", "roomy",
           limits={"memory_bytes": 200 * 2**20}, roomy={"memory_bytes": 2**30}, group=True),
    Attack("disk",
           "for number in range(9):\n"
           "    with open(f'/tmp/{number}', 'wb') as file: file.write(bytes(2**20))\nescaped()",
           "roomy", levels=("bubblewrap",), limits={"tmp_bytes": 4 * 2**20}, roomy={"tmp_bytes": 16 * 2**20}),
    Attack("disk through a hole",
           "for number in range(9):\n"
           "    with open(f'/tmp/{number}', 'wb') as file: os.posix_fallocate(file.fileno(), 0, 2**20)\nescaped()",
           "roomy", levels=("bubblewrap",), limits={"tmp_bytes": 4 * 2**20}, roomy={"tmp_bytes": 16 * 2**20}),
    Attack("inodes",
           "for number in range(60000): os.close(os.open(f'/tmp/{number}', os.O_CREAT | os.O_WRONLY))\nescaped()",
           "roomy", levels=("bubblewrap",), limits={"memory_bytes": 48 * 2**20, "wall_seconds": 60.0},
           roomy={"memory_bytes": 2**30, "wall_seconds": 60.0}, group=True),
    Attack("length of a file",
           "with open(os.environ['TMPDIR'] + '/long', 'wb') as file: file.write(bytes(2**20))\nescaped()",
           "roomy", limits={"file_bytes": 2**18}, roomy={"file_bytes": 2**21}),
    Attack("open files", "held = [open('/dev/null') for _ in range(200)]; escaped()", "roomy",
           roomy={"open_files": 300}),
    Attack("processor time",
           "import time\nwhile time.process_time() < 2.5: pass\nescaped()", "roomy",
           limits={"cpu_seconds": 1}, roomy={"cpu_seconds": 10, "wall_seconds": 120.0}),
    Attack("processor time with signals ignored",
           "import signal, time\n"
           "for number in signal.valid_signals() - {9, 19}:\n"
           "    try: signal.signal(number, signal.SIG_IGN)\n"
           "    except (OSError, ValueError): pass\n"
           "while time.process_time() < 3.5: pass\nescaped()", "roomy",
           limits={"cpu_seconds": 1}, roomy={"cpu_seconds": 10, "wall_seconds": 120.0}),
    Attack("regular expression without end",
           "import re\nre.match('(a+)+$', 'a' * 24 + 'b'); escaped()", "roomy",
           limits={"wall_seconds": 0.2}, roomy={"wall_seconds": 120.0, "cpu_seconds": 100}),
    Attack("waiting with signals ignored",
           "import signal, time\n"
           "for number in signal.valid_signals() - {9, 19}:\n"
           "    try: signal.signal(number, signal.SIG_IGN)\n"
           "    except (OSError, ValueError): pass\n"
           "time.sleep(1)\nescaped()", "roomy", limits={"wall_seconds": 0.3}),
    Attack("output", "for _ in range(200): os.write(2, bytes(2**16))\nescaped()", "roomy",
           limits={"output_bytes": 1000}, roomy={"output_bytes": 2**24}),
    Attack("huge exception", "raise ValueError('x' * 10**7)", "nowhere", limits={"output_bytes": 1000},
           why="what proves it is that no more than the limit is kept"),
    Attack("endless recursion",
           "sys.setrecursionlimit(10**9)\ndef deeper(): deeper()\ndeeper()\nescaped()", "nowhere",
           why="it never returns; the box must tell its end"),
    Attack("core file", "import resource\nif resource.getrlimit(resource.RLIMIT_CORE)[1] != 0: escaped()", "nowhere",
           why="a plain process may have this limit too"),
    Attack("locked memory", "done(libc.mlockall(3))", "nowhere", why="few users may lock memory"),
]  # fmt: skip

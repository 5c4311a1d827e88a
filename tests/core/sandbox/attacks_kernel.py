"""Attempts on other processes and on the kernel."""

from .attack import Attack

PROCESSES = [
    Attack("signal to the victim", "os.kill(VICTIM, 0); escaped()"),
    Attack("signal to the asker", "os.kill(ASKER, 0); escaped()"),
    Attack("signal to everybody", "os.kill(-1, 0); escaped()"),
    Attack("signal to the parent", "if os.getppid() != 1: os.kill(os.getppid(), 0); escaped()"),
    Attack("killing the parent", "os.kill(os.getppid(), 9)\nimport time\ntime.sleep(0.2)\nif os.getppid() == 1: pass",
           "nowhere", why="outside it would kill the tests; what proves it is that this box and the next one live"),
    Attack("signal through a handle",
           "import signal\nsignal.pidfd_send_signal(os.pidfd_open(VICTIM), 0); escaped()"),
    Attack("signal by way of a file",
           "import fcntl, socket\na, b = socket.socketpair()\nfcntl.fcntl(a, fcntl.F_SETOWN, VICTIM); escaped()"),
    Attack("descriptor of the victim",
           "fd = os.pidfd_open(VICTIM)\ndone(libc.syscall(438, fd, 0, 0))"),
    Attack("tracing the victim", "done(libc.ptrace(0x4206, VICTIM, None, None))"),
    Attack("tracing a sibling",
           "pid = os.fork()\nif pid == 0:\n    import time; time.sleep(5); os._exit(0)\n"
           "done(libc.ptrace(0x4206, pid, None, None))\nos.kill(pid, 9)", "unfiltered"),
    Attack("memory of the victim",
           "buffer = ctypes.create_string_buffer(8)\n"
           "class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n"
           "here, there = Part(ctypes.addressof(buffer), 8), Part(0x1000, 8)\n"
           "result = libc.process_vm_readv(VICTIM, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)\n"
           "if result >= 0 or ctypes.get_errno() == errno.EFAULT: escaped()"),
    Attack("memory of a sibling",
           "secret = ctypes.create_string_buffer(b'canary')\n"
           "pid = os.fork()\nif pid == 0:\n    import time; time.sleep(5); os._exit(0)\n"
           "buffer = ctypes.create_string_buffer(6)\n"
           "class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n"
           "here, there = Part(ctypes.addressof(buffer), 6), Part(ctypes.addressof(secret), 6)\n"
           "libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)\n"
           "os.kill(pid, 9) if os.getppid() == 1 else None\n"
           "if buffer.raw == b'canary': escaped()", "unfiltered"),
    Attack("own memory through /proc", "open('/proc/self/mem', 'rb'); escaped()"),
    Attack("maps of the victim", "open(f'/proc/{VICTIM}/maps').read(); escaped()"),
    Attack("limits of the victim",
           "import resource\nresource.prlimit(VICTIM, resource.RLIMIT_CORE, (0, 0)); escaped()"),
    Attack("processors of the victim", "os.sched_setaffinity(VICTIM, {0}); escaped()"),
    Attack("priority of the victim", "os.setpriority(os.PRIO_PROCESS, VICTIM, 5); escaped()"),
    Attack("namespaces of the victim", "os.open(f'/proc/{VICTIM}/ns/net', 0); escaped()"),
    Attack("daemon that stays",
           "if os.fork() == 0:\n"
           "    try: os.setsid()\n"
           "    except OSError: pass\n"
           "    if os.fork() == 0:\n"
           "        os.close(1); os.close(2)\n"
           "        words = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)', TOKEN]\n"
           "        os.execv(words[0], words)\n"
           "    os._exit(0)\n"
           "os.wait()\nimport time\ntime.sleep(0.1)"),
    Attack("child in another session that stays",
           "import subprocess\n"
           "try: subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)', TOKEN],"
           " stdout=-3, stderr=-3, start_new_session=True)\n"
           "except PermissionError: pass\n"
           "import time\ntime.sleep(0.1)"),
]  # fmt: skip

KERNEL = [
    Attack("user namespace", "done(libc.unshare(0x10000000))", root=True),
    Attack("user namespace by clone",
           "pid = libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)\n"
           "if pid == 0: os._exit(0)\ndone(pid)", root=True),
    Attack("user namespace by clone3",
           "size = 64\nwords = (ctypes.c_uint64 * 8)(0x10000000, 0, 0, 0, 17, 0, 0, 0)\n"
           "pid = libc.syscall(435, words, size)\nif pid == 0: os._exit(0)\ndone(pid)", root=True),
    Attack("network namespace", "done(libc.unshare(0x40000000))", root=True),
    Attack("mount namespace", "done(libc.unshare(0x20000))", root=True),
    Attack("mount", "libc.unshare(0x20000)\nlibc.mount(b'none', b'/', None, 0x44000, None)\n"
           "done(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))", root=True),
    Attack("mount by the new calls", "done(libc.syscall(430, b'tmpfs', 0))", root=True),
    Attack("unmounting what hides", "done(libc.umount2(SITE.encode(), 2))", "nowhere", why="outside nothing is hidden"),
    Attack("root by setuid", "os.setuid(0); escaped()", root=True),
    Attack("privileges by exec", "if libc.prctl(39, 0, 0, 0, 0) == 0: escaped()"),
    Attack("capabilities", "if libc.prctl(23, 21, 0, 0, 0) == 1: escaped()", levels=("bubblewrap",)),
    Attack("keys of the kernel",
           "done(libc.syscall(248 if os.uname().machine == 'x86_64' else 217, b'user', b'box', b'1', 1, -2))"),
    Attack("bpf", "words = (ctypes.c_uint32 * 32)(1, 4, 4, 1)\n"
           "done(libc.syscall(321 if os.uname().machine == 'x86_64' else 280, 0, words, 128))", root=True),
    Attack("userfaultfd", "done(libc.syscall(323 if os.uname().machine == 'x86_64' else 282, 1))", "unfiltered"),
    Attack("io_uring", "done(libc.syscall(425, 4, ctypes.create_string_buffer(240)))"),
    Attack("perf events", "words = ctypes.create_string_buffer(128)\n"
           "words[0:8] = (1).to_bytes(4, 'little') + (128).to_bytes(4, 'little')\n"
           "done(libc.syscall(298 if os.uname().machine == 'x86_64' else 241, words, 0, -1, -1, 0))", root=True),
    Attack("program without a file", "fd = os.memfd_create('x')\nescaped()", "unfiltered"),
    Attack("shared memory that no limit counts", "done(libc.shmget(0, 1 << 20, 0o1600))", "unfiltered"),
    Attack("personality", "done(libc.personality(0x0400000))", "unfiltered"),
    Attack("name of the machine",
           "import socket\nname = os.uname().nodename.encode()\ndone(libc.sethostname(name, len(name)))", root=True),
    Attack("restart of the machine", "libc.syscall(169 if os.uname().machine == 'x86_64' else 142, 0, 0, 0, 0)\n"
           "if ctypes.get_errno() == errno.EINVAL: escaped()", root=True),
    Attack("module of the kernel", "libc.syscall(175 if os.uname().machine == 'x86_64' else 105, b'', 0, b'')\n"
           "if ctypes.get_errno() != errno.EPERM: escaped()", root=True),
    Attack("calls of the 32-bit kind",
           "import mmap\ncode = mmap.mmap(-1, 4096, prot=7)\ncode.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))\n"
           "address = ctypes.addressof(ctypes.c_char.from_buffer(code))\n"
           "if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0: escaped()", "nowhere",
           why="not every kernel has these calls"),
    Attack("calls of the x32 kind", "done(libc.syscall(0x40000000 | 39))", "nowhere",
           why="few kernels have these calls"),
    Attack("a call newer than the filter", "libc.syscall(5000)\nif ctypes.get_errno() != errno.ENOSYS: escaped()",
           "nowhere", why="no such call yet: the filter must say ENOSYS"),
    Attack("dropping the filter", "code = (ctypes.c_uint64 * 1)(0x7FFF000000000006)\n"
           "class Program(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_void_p)]\n"
           "libc.prctl(38, 1, 0, 0, 0)\nlibc.prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(code))), 0, 0)\n"
           "done(libc.socket(2, 1, 0))"),
]  # fmt: skip

"""Attempts to reach what a box must not know of: the network, files of the machine, its devices and its secrets."""

from .attack import Attack

NETWORK = [
    Attack("tcp", "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2); escaped()"),
    Attack("tcp over IPv6", "import socket\nsocket.create_connection(('::1', PORT6), 2); escaped()"),
    Attack("udp", "import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', UDP)); escaped()"),
    Attack("unix socket like docker.sock", "import socket\nsocket.socket(1, 1).connect(SERVER); escaped()"),
    Attack("abstract unix socket", "import socket\nsocket.socket(1, 1).connect('\\0' + ABSTRACT); escaped()"),
    Attack("name resolution", "import socket\nsocket.getaddrinfo('localhost', 80); escaped()"),
    Attack("socket by ctypes", "done(libc.socket(2, 1, 0))"),
    Attack("netlink", "import socket\nsocket.socket(16, 3, 0); escaped()"),
    Attack("packet socket", "done(libc.socket(17, 3, 0))", root=True),
    Attack("kernel crypto socket", "done(libc.socket(38, 5, 0))", "nowhere", why="not every kernel has AF_ALG"),
    Attack("vsock to the host", "done(libc.socket(40, 1, 0))", "nowhere", why="not every kernel has AF_VSOCK"),
    Attack("listening", "import socket\ns = socket.create_server(('127.0.0.1', 0)); escaped()"),
    Attack(
        "a name for a pair of sockets",
        "import socket\na, b = socket.socketpair()\n"
        "address = b'\\x01\\x00\\x00box-' + TOKEN.encode()\ndone(libc.bind(a.fileno(), address, len(address)))",
    ),
    Attack("pair of sockets of another family", "done(libc.socketpair(16, 3, 0, (ctypes.c_int * 2)()))", "nowhere",
           why="only AF_UNIX and TIPC have pairs"),
    Attack("loopback of the host from a new interpreter",
           "import subprocess\n"
           "code = f'import socket; socket.create_connection((\"127.0.0.1\", {PORT}), 2)'\n"
           "if subprocess.run([sys.executable, '-I', '-S', '-c', code], stderr=-3).returncode == 0: escaped()"),
]  # fmt: skip

FILES = [
    Attack("file that everybody may read", "open(CANARY).read(); escaped()"),
    Attack("the same by ctypes", "done(libc.open(CANARY.encode(), 0))"),
    Attack("the same through a link",
           "link = os.path.join(os.environ.get('TMPDIR', '/tmp'), TOKEN)\n"
           "os.symlink(CANARY, link)\ntry: open(link).read(); escaped()\nfinally: os.unlink(link)"),
    Attack("the same through a hard link",
           "link = os.path.join(os.environ.get('TMPDIR', '/tmp'), TOKEN)\n"
           "os.link(CANARY, link)\ntry: open(link).read(); escaped()\nfinally: os.unlink(link)"),
    Attack("the same through O_PATH",
           "fd = os.open(CANARY, os.O_PATH)\nopen(f'/proc/self/fd/{fd}').read(); escaped()"),
    Attack("the same through the victim's root", "open(f'/proc/{VICTIM}/root{CANARY}').read(); escaped()"),
    Attack("the same through /proc/1/root", "open(f'/proc/1/root{CANARY}').read(); escaped()", "nowhere",
           why="the first process of the machine may be closed to root, too"),
    Attack("the same by climbing", "os.chdir('../' * 40)\nopen(CANARY.lstrip('/')).read(); escaped()"),
    Attack("the same by a file handle",
           "handle = ctypes.create_string_buffer(136)\nhandle[0:4] = (128).to_bytes(4, 'little')\n"
           "done(libc.name_to_handle_at(-100, CANARY.encode(), handle, ctypes.byref(ctypes.c_int()), 0))"),
    Attack("passwd", "open('/etc/passwd').read(); escaped()"),
    Attack("names in the root folder", "if 'etc' in os.listdir('/'): escaped()"),
    Attack("the project", "open(PROJECT).read(); escaped()"),
    Attack("packages that were not allowed", "sys.path.append(SITE)\nimport pydantic; escaped()"),
    Attack("emptying a file", "os.truncate(CANARY, 0); escaped()"),
    Attack("removing a file", "os.unlink(CANARY); escaped()"),
    Attack("renaming a file", "os.rename(CANARY, CANARY + '.moved'); escaped()"),
    Attack("mode of a file", "os.chmod(CANARY, 0o600); escaped()"),
    Attack("time of a file", "os.utime(CANARY, (1, 1)); escaped()"),
    Attack("owner of a file", "os.chown(CANARY, os.getuid(), os.getgid()); escaped()"),
    Attack("attribute of a file", "os.setxattr(CANARY, 'user.x', b'1'); escaped()"),
    Attack("being told of a file's use",
           "fd = libc.inotify_init1(0)\nif fd >= 0: done(libc.inotify_add_watch(fd, CANARY.encode(), 0xFFF))"),
    Attack("program in the box", "open(sys.argv[0], 'r+'); escaped()", "nowhere",
           why="a plain process has no such file; its mode lets the owner write, so mount or Landlock hold it"),
    Attack("standard library", "open(os.__file__, 'r+'); escaped()"),
    Attack("mode of the standard library", "fd = os.open(os.__file__, 0)\nos.fchmod(fd, 0o644); escaped()"),
    Attack("interpreter", "os.open(os.path.dirname(os.__file__), os.O_TMPFILE | os.O_RDWR); escaped()"),
    Attack("root folder", "os.open('/', os.O_TMPFILE | os.O_RDWR); escaped()", root=True),
    Attack("file left in the machine's /tmp", "open(f'/tmp/{TOKEN}', 'w').close()"),
    Attack("file left in the machine's /dev/shm", "open(f'/dev/shm/{TOKEN}', 'w').close()"),
    Attack("kernel messages", "open('/dev/kmsg').read(1); escaped()", "nowhere", why="it may wait for a message"),
    Attack("kernel messages by call", "done(libc.klogctl(10, None, 0))", root=True),
    Attack("memory of the machine", "os.open('/dev/mem', 0); escaped()", "nowhere", why="not every machine has it"),
    Attack("any other device",
           "import stat\n"
           "for name in os.listdir('/dev'):\n"
           "    mode = os.stat(f'/dev/{name}').st_mode\n"
           "    if stat.S_ISBLK(mode) or name.startswith(('nvidia', 'tty', 'ptmx', 'fuse')): escaped(); break"),
    Attack("a device of its own", "os.mknod(CANARY + '.device', 0o20666, os.makedev(1, 5)); escaped()", root=True),
    Attack("a terminal's input",
           "ours, theirs = os.openpty()\nimport fcntl\nfcntl.ioctl(theirs, 0x5412, b'x'); escaped()", root=True),
    Attack("settings of the kernel", "open('/proc/sys/kernel/core_pattern').read(); escaped()"),
    Attack("system tree", "os.listdir('/sys/kernel'); escaped()"),
    Attack("environment of the victim", "open(f'/proc/{VICTIM}/environ').read(); escaped()"),
    Attack("environment of the asker", "open(f'/proc/{ASKER}/environ').read(); escaped()"),
    Attack("variables of the asker", "if 'COHORT_SECRET_CANARY' in os.environ: escaped()"),
    Attack("descriptors 3 to 1024",
           "for fd in range(3, 1025):\n"
           "    try: os.fstat(fd)\n"
           "    except OSError: continue\n"
           "    escaped(); break"),
    Attack("another root by chroot", "os.chroot('/tmp'); escaped()", root=True),
]  # fmt: skip

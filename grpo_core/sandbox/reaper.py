"""The process that starts boxes and makes sure that each ends, whichever process dies. Run as a separate program, it
loads nothing of Cohort, drops root before it starts anything, and never reads what a box writes.

It exists because its client, which needs the boxes, is large and has threads: a child of a thread that ends would be
killed with it (PR_SET_PDEATHSIG counts threads), and starting from a small process costs the same however large the
client is. It is a subreaper, so what a box leaves behind comes to it to be ended.

stdin is a SOCK_SEQPACKET socket. The first message is marshalled settings; each later one a marshalled list of words to
start, with descriptors: the box's own socket first, then those that become 0, 1, 2, … of the new process. On a box's
socket the reaper writes marshalled None when nothing runs in the box any more but its folder is still to be removed,
and (status, CPU seconds) once all of the box is gone; when the other side shuts down writing, or dies, the box is
killed. When stdin ends, or the client does, all boxes are killed and the reaper exits.
"""

import array
import ctypes
import marshal
import os
import resource  # noqa: F401  os.wait4 loads it, and it may be out of reach after the drop
import select
import signal
import socket
import sys

PLACEHOLDERS = 320
"""Descriptors below this are taken, so that those which arrive never collide with the numbers they are moved to."""
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
MOST_FILES = 250


class Started:
    """A box: its first process (`pid`), the socket that reports on it, and the first process inside (`inner`)."""

    def __init__(self, pid: int, life: socket.socket, info: int | None, folder: str | None) -> None:
        self.pid = pid
        self.life = life
        self.info = info
        self.folder = folder
        self.handle = os.pidfd_open(pid)
        self.inner: int | None = None
        self.inner_pid: int | None = None
        self.inner_reaped = False
        self.cleaner: int | None = None
        self.info_read = b""
        self.status: int | None = None
        self.cpu = 0.0

    def learn(self) -> bool:
        """Read the pid of the process inside, which stays blocked until then. True when all was read."""
        assert self.info is not None
        part = os.read(self.info, 4096)
        self.info_read += part
        if part and b"}" not in self.info_read:
            return False
        self.info = None
        _, separator, rest = self.info_read.partition(b'"child-pid":')
        if not separator:
            return True
        pid = int(rest.split(b",")[0].strip(b" \n}"))
        try:
            inner = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        # A number that came to mean another process meanwhile has another parent.
        if parent_of(pid) in (self.pid, os.getpid()):
            self.inner, self.inner_pid = inner, pid
        else:
            os.close(inner)
        return True

    def kill(self) -> None:
        if self.status is None:
            kill_group(self.pid)
        if self.inner is not None and self.cleaner is None:
            try:
                signal.pidfd_send_signal(self.inner, signal.SIGKILL)
            except ProcessLookupError:
                return


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        return -1


class Reaper:
    def __init__(self, asker: socket.socket, parent: int) -> None:
        self.asker = asker
        self.poll = select.poll()
        self.boxes: dict[int, Started] = {}
        self.by_descriptor: dict[int, Started] = {}
        self.parent = parent
        self.poll.register(asker, select.POLLIN)
        self.poll.register(parent, select.POLLIN)

    def serve(self) -> None:
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor == self.parent or (descriptor == self.asker.fileno() and not self.accept()):
                    return
                box = self.by_descriptor.get(descriptor)
                if box is None:
                    continue
                if descriptor == box.life.fileno():
                    self.forget(descriptor)
                    box.kill()
                elif descriptor == box.info:
                    self.learn(box)
            self.reap()

    def watch(self, descriptor: int, box: Started) -> None:
        self.by_descriptor[descriptor] = box
        self.poll.register(descriptor, select.POLLIN)

    def forget(self, descriptor: int) -> None:
        if self.by_descriptor.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def accept(self) -> bool:
        """Start one box. False when the client is gone."""
        descriptors = array.array("i")
        data, extra, _, _ = self.asker.recvmsg(1 << 20, socket.CMSG_SPACE(MOST_FILES * descriptors.itemsize))
        for _, _, part in extra:
            descriptors.frombytes(part[: len(part) - len(part) % descriptors.itemsize])
        if not data:
            return False
        life, *given = descriptors
        box_life = socket.socket(fileno=life)
        spec = marshal.loads(data)
        words, info_at, environment = spec["words"], spec["info_at"], spec["environment"]
        folder = new_folder() if spec["folder"] else None
        if folder is not None:
            environment["BOX"] = folder
        info, write_end = (None, None) if info_at is None else os.pipe()
        if write_end is not None:
            given.insert(info_at, write_end)
        actions = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(given)]
        try:
            pid = os.posix_spawn(words[0], words, environment, file_actions=actions, setsid=True, setsigdef=_SIGNALS)
        except OSError as error:
            if folder is not None:
                os.rmdir(folder)
            answer(box_life, (f"{words[0]}: {error.strerror}", 0.0))
            box_life.close()
            if info is not None:
                os.close(info)
        else:
            box = Started(pid, box_life, info, folder)
            self.boxes[pid] = box
            for descriptor in (box_life.fileno(), box.handle, info):
                if descriptor is not None:
                    self.watch(descriptor, box)
        for descriptor in given:
            os.close(descriptor)
        return True

    def reap(self) -> None:
        while True:
            try:
                # Not reaped yet: as long as it is there, its number and its group's are no other's.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            box = self.boxes.get(ended.si_pid)
            if box is not None and ended.si_pid == box.pid:
                kill_group(box.pid)
            _, status, used = os.wait4(ended.si_pid, 0)
            if box is None:
                continue
            box.cpu += used.ru_utime + used.ru_stime
            if ended.si_pid == box.pid:
                box.status = os.waitstatus_to_exitcode(status)
                self.forget(box.handle)
                os.close(box.handle)
                if box.info is not None:
                    self.learn(box)
                box.kill()
                self.end_strays()
            elif ended.si_pid == box.inner_pid:
                box.inner_reaped = True
            elif ended.si_pid == box.cleaner:
                self.end(box)
                continue
            # The one inside came to us when its parent ended, unless that parent had seen it end before.
            if box.status is None:
                continue
            if box.inner_reaped or box.inner_pid is None or parent_of(box.inner_pid) != os.getpid():
                self.clean(box)
            elif box.inner is not None:
                self.watch(box.inner, box)

    def end_strays(self) -> None:
        """A child that is no box's first process came from a box that is over: while the first one lived, such a
        process went to it, or could not leave its group."""
        while strays := [pid for pid in children() if pid not in self.boxes]:
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
                _, _, _ = os.wait4(pid, 0)

    def clean(self, box: Started) -> None:
        """Remove its folder, which may hold very much, along with the other work; then report."""
        if box.folder is None:
            self.end(box)
            return
        answer(box.life, None)
        box.cleaner = os.fork()
        if box.cleaner == 0:
            try:
                remove(box.folder)
            finally:
                os._exit(0)
        self.boxes[box.cleaner] = box
        box.inner = os.pidfd_open(box.cleaner)
        self.watch(box.inner, box)

    def learn(self, box: Started) -> None:
        assert box.info is not None
        info = box.info
        if box.learn():
            self.forget(info)
            os.close(info)
            if box.inner_pid is not None:
                self.boxes[box.inner_pid] = box

    def end(self, box: Started) -> None:
        for pid in (box.pid, box.inner_pid, box.cleaner):
            if pid is not None and self.boxes.get(pid) is box:
                del self.boxes[pid]
        if box.inner is not None:
            self.forget(box.inner)
            os.close(box.inner)
        self.forget(box.life.fileno())
        answer(box.life, (box.status, box.cpu))
        box.life.close()

    def end_all(self) -> None:
        """Kill every child, known or come from a box, until there is none."""
        for box in self.boxes.values():
            box.kill()
        while True:
            for pid in children():
                os.kill(pid, signal.SIGKILL)
            try:
                os.wait4(-1, 0)
            except ChildProcessError:
                break
        for box in self.boxes.values():
            if box.folder is not None and os.path.isdir(box.folder):
                remove(box.folder)


def new_folder() -> str:
    """Closed to all others; /tmp because it is the one place where any user may make one."""
    while True:
        folder = f"/tmp/cohort-box-{os.urandom(8).hex()}"
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        return folder


def remove(top: str) -> None:
    """The folder, however deep and closed those in it are: what lies two deep is moved up, so that no path gets long.
    Nobody else writes to it by now."""
    while below := emptied(top):
        for folder in below:
            for deeper in emptied(folder):
                os.rename(deeper, f"{top}/{os.urandom(16).hex()}")
            os.rmdir(folder)
    os.rmdir(top)


def emptied(folder: str) -> list[str]:
    """Removes all but the folders in it; returns those."""
    os.chmod(folder, 0o700)
    with os.scandir(folder) as scan:
        entries = list(scan)
    below = []
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            below.append(entry.path)
        else:
            os.unlink(entry.path)
    return below


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def children() -> list[int]:
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:  # a kernel without that list
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(int(name)) == own]


def answer(life: socket.socket, report: tuple[int | str | None, float] | None) -> None:
    try:
        life.sendall(marshal.dumps(report))
    except (BrokenPipeError, ConnectionResetError):  # nobody waits for it
        return


_SIGNALS = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]


def checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def show(libc: ctypes.CDLL, mount_point: str, roots: list[str]) -> None:
    """Folders that only root can reach, shown at `mount_point`/0, /1, … to this process and its children alone."""
    checked(libc.unshare(CLONE_NEWNS), "a mount namespace for the sandbox's reaper")
    checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")
    checked(libc.mount(b"tmpfs", mount_point.encode(), b"tmpfs", 0, b"mode=0755,size=64k"), f"a tmpfs on {mount_point}")
    for number, root in enumerate(roots):
        os.mkdir(f"{mount_point}/{number}")
        checked(
            libc.mount(root.encode(), f"{mount_point}/{number}".encode(), None, MS_BIND | MS_REC, None),
            f"showing {root}",
        )


def main() -> None:
    asker = socket.socket(fileno=os.dup(0))
    settings = marshal.loads(asker.recv(1 << 20))
    parent = os.pidfd_open(settings["parent"])
    if os.getppid() != settings["parent"]:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    checked(libc.prctl(36, 1, 0, 0, 0), "becoming a subreaper")  # PR_SET_CHILD_SUBREAPER
    if settings["roots"]:
        show(libc, settings["place"], settings["roots"])
    if settings["user"] is not None:
        os.setgroups([])
        os.setresgid(settings["user"], settings["user"], settings["user"])
        os.setresuid(settings["user"], settings["user"], settings["user"])
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    while os.dup(null) < PLACEHOLDERS:  # os.dup gives descriptors that no child inherits
        pass
    asker.send(b"ready")
    reaper = Reaper(asker, parent)
    try:
        reaper.serve()
    finally:
        reaper.end_all()


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"the sandbox's reaper: {error}")

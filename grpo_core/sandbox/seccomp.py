"""The filter of system calls that every box runs under, assembled here as classic BPF for the kernel.

What it denies is what a judge or a solution never needs and an escape does: sockets with an address, looking into or
changing other processes, mounts, new namespaces, kernel features with a history of holes, and memory that no limit
counts. Calls that came after this list was made answer ENOSYS, so a new kernel opens nothing.

Source: seccomp(2), linux/seccomp.h, linux/bpf_common.h; numbers from asm/unistd_64.h and asm-generic/unistd.h.
"""

import errno
import struct

from grpo_core.errors import SandboxError

ALLOW, KILL = 0x7FFF0000, 0x80000000
_ERRNO = 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCH = 0, 4  # offsets in struct seccomp_data; argument i is at 16 + 8 * i (its lower half: both are LE)

LAST_KNOWN = 462
"""mseal. Above it are newer calls and, with a bit of their own, the x32 calls of x86_64: a second door to most."""

# name: (x86_64, aarch64); None where that machine has no such call.
DENIED: dict[str, tuple[int | None, int]] = {
    # sockets with an address; what is inherited or made by socketpair needs none of these
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "bind": (49, 200), "listen": (50, 201),
    "accept4": (288, 242),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "move_pages": (279, 239), "migrate_pages": (256, 238),
    # mounts and roots
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224),
    "swapoff": (168, 225), "mknod": (133, 33), "mknodat": (259, 33),
    # namespaces; clone with a new namespace and clone3 are looked at below
    "unshare": (272, 97), "setns": (308, 268), "setdomainname": (171, 162), "sethostname": (170, 161),
    # parts of the kernel that keep turning up in advisories
    "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "userfaultfd": (323, 282), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "personality": (135, 92),
    "modify_ldt": (154, 0xFFFF), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "vmsplice": (278, 75),
    "lsm_get_self_attr": (459, 459), "lsm_set_self_attr": (460, 460), "lsm_list_modules": (461, 461),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "acct": (163, 89), "syslog": (103, 116), "iopl": (172, 0xFFFF),
    "ioperm": (173, 0xFFFF), "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266),
    "adjtimex": (159, 171), "vhangup": (153, 58),
    # memory that neither the address space nor the size of /tmp bounds, and programs that lie in no file
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "mq_unlink": (241, 181), "execveat": (322, 281), "shmat": (30, 196),
    "shmctl": (31, 195), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192),
}  # fmt: skip
DENIED_SHARED: dict[str, tuple[int | None, int]] = {
    # the process group that ends a box
    "setpgid": (109, 154), "setsid": (112, 157),
    # what Landlock does not look at: owners, modes and times of files, and notices of their use
    "chmod": (90, 0xFFFF), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0xFFFF),
    "fchown": (93, 55), "lchown": (94, 0xFFFF), "fchownat": (260, 54), "utime": (132, 0xFFFF), "utimes": (235, 0xFFFF),
    "futimesat": (261, 0xFFFF), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "inotify_init": (253, 0xFFFF), "inotify_init1": (294, 26),
    # other processes of the same user
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}  # fmt: skip
"""Also denied where a box shares process numbers and the file tree with the machine."""
OWN_PID = 0x7FFFFFF1
"""Stands for the pid of the box's first process in such a filter, which alone may be signalled by number."""
_SIGNALS_TO_OWN = ((62, 129), (234, 131))  # kill, tgkill
# prlimit64, sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr: (call, argument that must be 0)
_ON_ITSELF = (((302, 261), 0), ((203, 122), 0), ((144, 119), 0), ((142, 118), 0), ((314, 274), 0),
              ((141, 140), 1), ((251, 30), 1))  # fmt: skip  # setpriority, ioprio_set
_FCNTL, _SET_OWNER = (72, 25), (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by way of a file
_SOCKETPAIR, _CLONE, _CLONE3, _IOCTL, _PRCTL = (53, 199), (56, 220), (435, 435), (16, 29), (157, 167)
_NEW_NAMESPACES = 0x7E020000 | 0x80  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET} and CLONE_NEWTIME
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_PR_SET_MM, _PR_SET_PTRACER = 35, 0x59616D61
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

Statement = tuple[int, int, int, int]


def program(machine: str, *, shared: bool = False) -> bytes:
    """The filter as the bytes of an array of struct sock_filter. Raises SandboxError for a machine that is not known.

    `shared`: for a box that shares process numbers and the file tree with the machine; `OWN_PID` is to be replaced.
    """
    if machine not in _MACHINES:
        raise SandboxError(f"no filter of system calls is known for {machine}")
    column, arch = _MACHINES[machine]
    made: list[Statement] = [
        (LOAD, 0, 0, ARCH), (EQUAL, 1, 0, arch), (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, LAST_KNOWN + 1), (RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]  # fmt: skip
    made += _when(_CLONE3[column], [(RETURN, 0, 0, _ERRNO | errno.ENOSYS)])  # its flags are out of a filter's sight
    flagged = [(LOAD, 0, 0, 16), (ANY_OF, 0, 1, _NEW_NAMESPACES), _deny(), (RETURN, 0, 0, ALLOW)]
    made += _when(_CLONE[column], flagged)
    made += _when(_SOCKETPAIR[column], [(LOAD, 0, 0, 16), (EQUAL, 1, 0, 1), _deny(), (RETURN, 0, 0, ALLOW)])
    refused = [
        (_IOCTL, 1, (_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP)),
        (_PRCTL, 0, (_PR_SET_MM, _PR_SET_PTRACER)),
    ]
    if shared:
        refused.append((_FCNTL, 1, _SET_OWNER))
        for calls, argument, value in (
            *((calls, 0, OWN_PID) for calls in _SIGNALS_TO_OWN),
            *((calls, argument, 0) for calls, argument in _ON_ITSELF),
        ):
            only = [(LOAD, 0, 0, 16 + 8 * argument), (EQUAL, 1, 0, value), _deny(), (RETURN, 0, 0, ALLOW)]
            made += _when(calls[column], only)
    for calls, argument, values in refused:
        tests: list[Statement] = [(LOAD, 0, 0, 16 + 8 * argument)]
        for value in values:
            tests += [(EQUAL, 0, 1, value), _deny()]
        made += _when(calls[column], [*tests, (RETURN, 0, 0, ALLOW)])
    for numbers in [*DENIED.values(), *(DENIED_SHARED.values() if shared else ())]:
        number = numbers[column]
        if number is not None and number != 0xFFFF:
            made += [(EQUAL, 0, 1, number), _deny()]
    made.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *statement) for statement in made)


def _deny() -> Statement:
    return (RETURN, 0, 0, _ERRNO | errno.EPERM)


def _when(call: int, statements: list[Statement]) -> list[Statement]:
    """Run the statements, which must end in a return, for that call only."""
    return [(EQUAL, 0, len(statements), call), *statements]

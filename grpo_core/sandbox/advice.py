"""What to do where no box can be made, from what really failed here. Text only; it changes nothing."""

import os
from pathlib import Path

_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
_CLONE = Path("/proc/sys/kernel/unprivileged_userns_clone")
_MOST = Path("/proc/sys/user/max_user_namespaces")


def for_bubblewrap(reason: str) -> str:
    """`reason`: why a box could not be made."""
    if "not installed" in reason:
        return "Install it: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora, RHEL)"
    if "Unknown option" in reason:
        return "This bubblewrap is too old: version 0.8 or newer is needed (Debian 12, Ubuntu 24.04)"
    if _number(_MOST) == 0:
        return "User namespaces are switched off: sysctl -w user.max_user_namespaces=10000"
    if _number(_CLONE) == 0:
        return "User namespaces are closed to users: sysctl -w kernel.unprivileged_userns_clone=1"
    if _number(_APPARMOR) == 1:
        return (
            "Ubuntu's AppArmor lets bubblewrap make no user namespace. As root, write /etc/apparmor.d/bwrap:\n"
            "  abi <abi/4.0>,\n  include <tunables/global>\n"
            "  profile bwrap /usr/bin/bwrap flags=(unconfined) {\n    userns,\n  }\n"
            "and load it: apparmor_parser -r /etc/apparmor.d/bwrap"
        )
    if _in_container():
        return (
            "The container's filter of system calls keeps bubblewrap from making namespaces. Start the worker's "
            "container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined, or with a profile that allows clone, unshare, mount, umount2 and pivot_root"
        )
    if "amespace" in reason or "uid map" in reason:
        return "This machine lets this user make no namespaces; ask whoever runs it, or run the worker elsewhere"
    return "Run `bwrap --unshare-all --unshare-user --ro-bind / / true` as the worker's user to see what fails"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    return "\nSeccomp:\t2\n" in status

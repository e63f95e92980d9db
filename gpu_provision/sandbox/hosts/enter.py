"""Runs a shell command with a directory as its root directory, in a mount namespace of its own.

    python -IS enter.py DIRECTORY user|root COMMAND

A program by itself, of the standard library and system calls alone: not every machine has a `mount` program. `user`
makes a user namespace, in which an ordinary user is root. DIRECTORY/.sandbox/mounts says what is mounted.
"""

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_CAPBSET_DROP = 24
_FORBIDDEN = (16, 17, 22, 25)  # CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT, CAP_SYS_TIME: those of the machine itself
_ENVIRONMENT = {
    "PATH": "/.sandbox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "LC_ALL": "C",
}
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        sys.exit(f"{name}: {os.strerror(ctypes.get_errno())}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib would double the time to start
        file.write(text)


def _unshare(*, is_root: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWNS if is_root else _CLONE_NEWNS | _CLONE_NEWUSER)
    if not is_root:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def _mount(directory: str) -> None:
    with open(f"{directory}/.sandbox/mounts", "rb") as file:  # noqa: PTH123 - as above
        fields = file.read().split(b"\0")[:-1]
    for source, target, options in zip(*(iter(fields),) * 3, strict=True):
        _call("mount", source, target, None, _MS_BIND | (_MS_REC if b"rbind" in options else 0), None)
        if b"ro" in options.split(b","):
            _call("mount", b"none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None)


def _main(directory: str, who: str, command: str) -> None:
    is_root = who == "root"
    _unshare(is_root=is_root)
    _mount(directory)
    for capability in _FORBIDDEN if is_root else ():
        _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.chroot(directory)
    os.chdir("/root" if os.path.isdir("/root") else "/")  # noqa: PTH112 - as above
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    os.execve("/bin/sh", ["/bin/sh", "-c", command], _ENVIRONMENT)  # noqa: S606 - running commands is its purpose


if __name__ == "__main__":
    _main(*sys.argv[1:])

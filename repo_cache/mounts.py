"""Which workspaces lie on file systems that other machines write to, of which the kernel does not tell."""

from __future__ import annotations

import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")

REMOTE_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "glusterfs"}
    | {"9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "drvfs"}  # folders of a virtual machine's host
)
LOCAL_FUSE_TYPES = frozenset({"fuse.fuse-overlayfs", "fuse.bindfs", "fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse"})


def remote_file_system(root: Path, mountinfo: Path = MOUNTINFO) -> str | None:
    """The type of a network mount that the root lies on or that lies in it ('nfs4'); None where there is none.

    Any FUSE file system counts (sshfs, s3fs, rclone) but those known to be local. Where the system has no such file,
    none is found. Format: proc(5), /proc/pid/mountinfo.
    """
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    under, inside = ("", ""), []
    for place, kind in map(_mount, lines):
        if root == Path(place) or root.is_relative_to(place):
            under = max((place, kind), under, key=lambda mount: len(mount[0]))  # of two at one place the later hides
        elif Path(place).is_relative_to(root):
            inside.append(kind)
    return next((kind for kind in [under[1], *inside] if _is_remote(kind)), None)


def _mount(line: str) -> tuple[str, str]:
    """Mount point and type: '36 35 98:0 /root /the\\040point rw - ext3 /dev/sda rw'."""
    before, _, behind = line.partition(" - ")
    place = before.split(" ")[4]
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place), behind.split(" ")[0]


def _is_remote(kind: str) -> bool:
    return kind in REMOTE_TYPES or (kind.startswith("fuse.") and kind not in LOCAL_FUSE_TYPES)

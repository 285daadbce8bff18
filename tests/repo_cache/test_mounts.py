"""Network mounts are recognised by the kernel's list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from repo_cache.fallback_watchers import find_remote_file_system

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /home/me/far rw,relatime shared:9 master:2 - nfs4 server:/home rw,vers=4.2
31 30 0:31 / /home/me/far/near rw - tmpfs tmpfs rw
32 22 0:32 / /mnt/my\040files rw - fuse.sshfs me@host:/ rw
33 22 0:33 / /var/layers rw - fuse.fuse-overlayfs overlay rw
34 22 0:34 / /work/shared rw - 9p host rw
35 22 0:35 / /srv rw - nfs server:/srv rw
36 35 0:36 / /srv rw - ext4 /dev/vdb rw
""".strip()


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        ("/home/me/project", None),
        ("/home/me/far/project", "nfs4"),
        ("/home/me/far", "nfs4"),
        ("/home/me/farther", None),
        ("/home/me/far/near/project", None),
        ("/mnt/my files/project", "fuse.sshfs"),
        ("/var/layers/project", None),
        ("/work", "9p"),
        ("/srv/project", None),
    ],
)
def test_the_mount_that_a_workspace_lies_on_or_holds_decides(tmp_path: Path, root: str, kind: str | None) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    assert find_remote_file_system(Path(root), tmp_path / "mountinfo") == kind


def test_a_system_without_such_a_list_has_no_network_mounts(tmp_path: Path) -> None:
    assert find_remote_file_system(Path("/"), tmp_path / "none") is None

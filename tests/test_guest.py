"""The kernel's own NBD client, in an emulated machine with Debian's kernel: file systems, fio, server restarts."""

import os
import shutil
import socket

from harness import places
from harness.case import ServerCase
from harness.guest import Guest
from harness.server import MIB, run

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
SIZE = 256 * MIB
# Emulation is slow, and the machine may be busy.
SECONDS = 900

FIO = (
    "fio --name=verified --filename=/mnt/f --size=24m --rw=randwrite --bsrange=512-64k --blockalign=512"
    " --ioengine=psync --direct=1 --numjobs=2 --offset_increment=24m --verify=crc32c --verify_fatal=1"
    " --verify_state_save=0"
)
# The first lines of fio's output are about the terminal; the last ones are parsed here.
FILE_SYSTEM = f"""
nbd-client 10.0.2.2 $PORT /dev/nbd0 -N v -C 4
mkfs.ext4 -q /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt
{FIO} --do_verify=1 --end_fsync=1 > /tmp/fio || {{ cat /tmp/fio; false; }}
rm /mnt/f
fstrim -v /mnt
echo GUEST: trimmed
echo kept > /mnt/kept
umount /mnt
e2fsck -fn /dev/nbd0
nbd-client -d /dev/nbd0
"""

RESTARTS = f"""
reconnect 10.0.2.2 $PORT v 4 &
while [ "$(cat /sys/block/nbd0/size)" = 0 ]; do sleep 1; done
mkfs.ext4 -q /dev/nbd0
mount -t ext4 /dev/nbd0 /mnt
echo GUEST: writes
{FIO} --do_verify=1 --time_based=0 --loops=2 > /tmp/fio || {{ cat /tmp/fio; false; }}
echo GUEST: written
sync
grep -q ' /mnt ext4 rw' /proc/mounts
umount /mnt
e2fsck -fn /dev/nbd0
"""


class KernelClient(ServerCase):
    """Four connections each."""

    def setUp(self):
        if not LONG:
            self.skipTest("emulates a machine, in `make test-long`")
        super().setUp()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def guest(self, script, *tools):
        return Guest(self, f"PORT={self.port}\n{script}", ("mkfs.ext4", "e2fsck", "fio", *tools))

    def server(self):
        server = self.serve(cache="32MiB", nbd=[f"tcp:127.0.0.1:{self.port}"])
        server.create("v", str(SIZE), "--sparse")
        return server

    def test_a_file_system_with_four_connections(self):
        server = self.server()
        guest = self.guest(FILE_SYSTEM, "nbd-client")
        guest.until_it_says("GUEST: passed", SECONDS)
        self.assertIn("GUEST: trimmed", guest.said())
        data = server.data / "disks/default/volumes/v.img"
        self.assertLess(os.stat(data).st_blocks * 512, SIZE // 2, "fstrim gave no space back")

    def test_restarts_under_a_file_system(self):
        server = self.server()
        # Acknowledged data is on the medium, so kill -9 loses nothing that the kernel considers written.
        server.cli("volume", "set", "v", "--write-cache", "none")
        tool = self.scratch / "reconnect"
        if not shutil.which("cc"):
            self.skipTest("needs a C compiler")
        run("cc", "-static", "-O1", "-o", tool, places.ROOT / "tests/guest/reconnect.c")
        guest = self.guest(RESTARTS, str(tool))
        guest.until_it_says("GUEST: writes", SECONDS)
        for round, end in enumerate((server.kill, server.stop, server.kill, server.stop)):
            end()
            server.start()
            for connection in range(4):
                guest.until_it_says(f"reconnect: connection {connection} is back", SECONDS, times=round + 1)
        self.assertNotIn("GUEST: written", guest.said(), "fio was over before the last restart")
        guest.until_it_says("GUEST: passed", SECONDS)
        self.assertEqual(guest.said().count("is back"), 16)

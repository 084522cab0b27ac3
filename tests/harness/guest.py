"""A machine with Debian's kernel, emulated (TCG), which reaches servers on this machine at 10.0.2.2.

Its file system is in memory: busybox, the tools and kernel modules that a test names, and what these need.
"""

import re
import shutil
import subprocess
import unittest
from pathlib import Path

from . import places
from .server import run
from .wait import until

# Where `scripts/setup long` unpacks Debian's kernel and mdadm.
KERNEL = places.TARGET / "guest"
MODULES = ("virtio_pci", "virtio_net", "nbd")
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs devtmpfs /dev; mkdir -p /mnt /run /tmp /dev/shm
for module in $(cat /modules/order); do insmod /modules/$module; done
ip link set lo up; ip link set eth0 up; ip address add 10.0.2.15/24 dev eth0
sh -e /script && echo GUEST: passed || echo GUEST: failed
poweroff -f
"""


class Guest:
    """Runs a script as root; `tools` are commands that it needs, `modules` more of the kernel's."""

    def __init__(self, case, script, tools, modules=()):
        qemu = shutil.which("qemu-system-x86_64")
        kernels = sorted(KERNEL.glob("boot/vmlinuz-*"))
        if not qemu or not kernels or not shutil.which("busybox"):
            raise unittest.SkipTest("needs qemu-system-x86_64, busybox and Debian's kernel: run `scripts/setup long`")
        self.log = case.scratch / "guest.log"
        root = case.scratch / "guest"
        self.fill(root, kernels[-1], script, tools, (*MODULES, *modules))
        archive = case.scratch / "guest.cpio"
        with open(archive, "wb") as out:
            names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
            more = {"input": names.encode(), "cwd": root, "stdout": out, "stderr": subprocess.DEVNULL}
            subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], check=True, **more)
        command = [qemu, "-accel", "tcg", "-cpu", "max", "-m", "1024", "-smp", "2", "-nographic", "-no-reboot"]
        command += ["-kernel", kernels[-1], "-initrd", archive, "-append", "console=ttyS0 quiet panic=-1"]
        command += ["-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n,romfile="]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        case.addCleanup(self.process.wait)
        case.addCleanup(self.process.kill)

    def fill(self, root, kernel, script, tools, modules):
        """Writes its file system."""
        for directory in ("bin", "proc", "sys", "dev", "etc", "modules"):
            (root / directory).mkdir(parents=True)
        shutil.copy(shutil.which("busybox"), root / "bin")
        for tool in tools:
            path = Path(shutil.which(tool, path=f"{KERNEL}/sbin:/usr/sbin:/usr/bin:/sbin:/bin") or tool)
            listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True).stdout
            for library in re.findall(r"(/\S+) \(0x", listed):
                (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, root / library[1:])
            shutil.copy(path, root / "bin")
        version = kernel.name.removeprefix("vmlinuz-")
        found = {path.name.split(".")[0]: path for path in (KERNEL / "lib/modules" / version).rglob("*.ko*")}
        order = []

        def add(module):
            path = found.get(module.replace("-", "_")) or found.get(module.replace("_", "-"))
            # Modules that are not found are built into the kernel.
            if path and path.name not in order:
                depends = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
                for other in filter(None, depends.group(1).decode().split(",")):
                    add(other)
                order.append(path.name)
                shutil.copy(path, root / "modules")

        for module in modules:
            add(module)
        (root / "modules/order").write_text("\n".join(order) + "\n")
        (root / "script").write_text(script)
        (root / "init").write_text(INIT)
        (root / "init").chmod(0o755)

    def said(self):
        """Its console so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def until_it_says(self, words, seconds, times=1):
        """Waits for a text on its console."""
        has_said = lambda: self.said().count(words) >= times
        until(f"the guest to say '{words}'", has_said, seconds, gone=lambda: not has_said() and self.gone())

    def gone(self):
        """Why nothing more is to be expected of it, if so."""
        if "GUEST: failed" in self.said():
            return f"its script failed:\n{self.tail()}"
        return f"the guest ended:\n{self.tail()}" if self.process.poll() is not None else None

    def tail(self):
        """The last lines of its console."""
        return "\n".join(self.said().splitlines()[-40:])

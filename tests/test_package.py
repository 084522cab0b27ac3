"""`make install` and `make deb`: installed, used and removed, in an overlay over this machine's system."""

import os
import re
import shutil
import unittest
from pathlib import Path

from harness import places
from harness.case import ServerCase
from harness.server import run

PACK_SECONDS = 280
INSTALL_SECONDS = 280

# In a mount namespace of its own: changes go to a tmpfs and end with the script.
IN_OVERLAY = r"""
set -euo pipefail
base=$1 package=$2
mount -t tmpfs tmpfs "$base"
mkdir "$base"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/root"
mount --rbind /proc "$base/root/proc"
mount --rbind /dev "$base/root/dev"
mount -t tmpfs tmpfs "$base/root/run"
cp "$package" "$base/root/root/aerogel.deb"
exec chroot "$base/root" bash -euxo pipefail -c '
    dpkg -i /root/aerogel.deb
    systemd-analyze verify /usr/lib/systemd/system/aerogel.service
    test -L /etc/systemd/system/multi-user.target.wants/aerogel.service
    man -l /usr/share/man/man1/aerogel-volume-create.1.gz | grep -A2 NAME
    # Completion works without the framework of bash-completion, too.
    bash -c ". /usr/share/bash-completion/completions/aerogel
             COMP_WORDS=(aerogel volume cr) COMP_CWORD=2
             _aerogel aerogel cr volume; echo completes \"\${COMPREPLY[@]}\""
    install -d -o aerogel -g aerogel -m 0750 /var/lib/aerogel
    # As the unit starts it, apart from its sandbox.
    as="setpriv --reuid aerogel --regid aerogel --clear-groups"
    $as aerogel serve --quiet --no-probe --config /etc/aerogel/aerogel.toml --data /var/lib/aerogel &
    for attempt in $(seq 300); do
        $as aerogel status --data /var/lib/aerogel >/dev/null 2>&1 && break
        kill -0 $!
        sleep 0.1
    done
    $as aerogel volume create v 1MiB --data /var/lib/aerogel
    kill $!
    wait $!
    dpkg -r aerogel
    test -e /etc/aerogel/aerogel.toml
    dpkg -P aerogel
    test ! -e /etc/aerogel
    # The data of tenants is never removed.
    test -e /var/lib/aerogel/disks/default/volumes/v.img
    echo removed as it should be
'
"""


class Package(ServerCase):
    """The files that are installed."""

    def setUp(self):
        super().setUp()
        if not os.environ.get("AEROGEL_TEST_LONG"):
            self.skipTest("stripping and packing take a minute, in `make test-long`")

    def test_install_into_a_directory(self):
        root = self.scratch / "root"
        env = {**os.environ, "PREFIX": "/opt/a", "DESTDIR": str(root)}
        run(places.ROOT / "scripts/install", places.binary(), seconds=PACK_SECONDS, env=env)
        files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        for name in ("bin/aerogel", "share/man/man1/aerogel.1.gz", "share/bash-completion/completions/aerogel",
                     "share/zsh/vendor-completions/_aerogel", "lib/systemd/system/aerogel.service"):  # fmt: skip
            self.assertIn(f"opt/a/{name}", files)
        self.assertTrue(all(name.startswith("opt/a/") for name in files), files)
        unit = (root / "opt/a/lib/systemd/system/aerogel.service").read_text()
        self.assertIn("ExecStart=/opt/a/bin/aerogel serve", unit)

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "needs dpkg-dev, which `make test-long` installs")
    def test_package_installs_runs_and_goes(self):
        said = run(places.ROOT / "scripts/deb", places.binary(), self.scratch, seconds=PACK_SECONDS)
        package = Path(said.stdout.strip())
        if shutil.which("lintian"):
            found = run("lintian", package, check=False, seconds=PACK_SECONDS).stdout
            self.assertNotRegex(found, re.compile("^[EW]: ", re.MULTILINE))
        if os.geteuid() != 0:
            self.skipTest("root is needed for an overlay; `make test-long` as root")
        base = self.scratch / "overlay"
        base.mkdir()
        command = ("unshare", "--mount", "--propagation", "private", "bash", "-c", IN_OVERLAY, "-", base, package)
        done = run(*command, seconds=INSTALL_SECONDS, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        self.assertIn("removed as it should be", done.stdout)
        self.assertIn("completes create", " ".join(done.stdout.split()))
        self.assertFalse(Path("/usr/bin/aerogel").exists(), "the machine itself has it now")

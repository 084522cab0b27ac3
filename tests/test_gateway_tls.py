"""Gateway volumes whose server is reached over TLS: ours, nbdkit and qemu-nbd; certificates that are wrong or
replaced."""

import shutil
import subprocess

from harness.proxy import Proxy
from harness.server import MIB
from harness.wait import until
from test_tls import TlsCase

DATA = bytes(range(256)) * 256
SIZE = 64 * MIB


class GatewayTls(TlsCase):
    """A gateway in front of a server with TLS."""

    def behind(self, **more):
        self.server_behind = self.tls(name="behind", **more)
        self.gateway = self.serve(name="gateway")
        return self.server_behind

    def from_uri(self, port=None, host="localhost"):
        return f"nbds://{host}:{port or self.server_behind.tcp()[1]}/v"

    def create(self, uri, *more):
        return self.gateway.cli("volume", "create", "gw", "--from", uri, *more)

    def refused(self, uri, *more):
        said = self.gateway.refused("volume", "create", "gw", "--from", uri, *more)
        self.assertEqual(self.gateway.json("volume", "list"), [])
        return said

    def upstream(self):
        return self.gateway.json("volume", "show", "gw")["upstream"]

    def online(self):
        until("a session to be open", lambda: self.upstream()["state"] == "online", 60)

    def work(self, behind):
        """Writes more than the cache has, and reads it at both servers."""
        gateway = self.gateway.open("gw")
        for at in range(0, 8 * MIB, len(DATA)):
            gateway.pwrite(DATA, at)
        gateway.flush()
        behind = behind()
        for at in (0, 4 * MIB, 8 * MIB - len(DATA)):
            self.assertEqual(behind.pread(len(DATA), at), DATA)
            self.assertEqual(gateway.pread(len(DATA), at), DATA)
        return gateway

    def test_our_server_with_client_certificates(self):
        behind = self.behind()
        self.create(self.from_uri(), "--tls-certificates", self.good, "--cache", "4MiB")
        self.work(lambda: behind.open("v"))
        self.assertEqual((self.upstream()["state"], self.upstream()["failure"]), ("online", None))
        self.assertGreater(self.upstream()["connections"], 1)
        spec = self.gateway.json("volume", "show", "gw")["spec"]
        self.assertEqual(spec["tls_certificates"], str(self.good))
        # After a restart of the gateway, and of the server.
        self.gateway.restart()
        self.online()
        gateway = self.gateway.open("gw")
        self.assertEqual(gateway.pread(len(DATA), MIB), DATA)
        gateway.pwrite(b"x" * 4096, 0)
        behind.kill()
        until("the gateway to notice", lambda: self.upstream()["state"] == "connecting", 30)
        behind.start()
        # A port of its own choice.
        self.gateway.cli("volume", "delete", "gw", "--yes", "--force")

    def test_without_client_certificates_and_with_parameters_of_the_uri(self):
        behind = self.behind(clients=False)
        self.create(f"{self.from_uri(host='127.0.0.1')}?tls-certificates={self.missing}&tls-hostname=localhost")
        self.work(lambda: behind.open("v"))

    def test_what_is_refused_changes_nothing(self):
        self.behind()
        uri = self.from_uri()
        self.assertIn("--tls-certificates DIR", self.refused(uri))
        clear = uri.replace("nbds:", "nbd:")
        self.assertIn("write nbds://", self.refused(clear, "--tls-certificates", self.good))
        self.assertIn("write nbds://", self.refused(clear))
        nothing = self.refused(uri, "--tls-certificates", self.scratch / "none")
        self.assertIn(f"{self.scratch}/none/ca-cert.pem", nothing)
        self.assertIn("client-key.pem", nothing)
        stranger = self.scratch / "stranger"
        stranger.mkdir()
        shutil.copy(self.other.certificate, stranger / "ca-cert.pem")
        said = self.refused(uri, "--tls-certificates", stranger)
        self.assertIn(f"not signed by an authority in {stranger}/ca-cert.pem", said)
        self.assertIn("put the certificate of the server's authority", said)
        said = self.refused(uri, "--tls-certificates", self.good, "--tls-hostname", "storage9")
        self.assertIn("for other names than 'storage9'", said)
        self.assertIn("--tls-hostname", said)
        for certificates in (self.missing, self.wrong, self.expired):
            said = self.refused(uri, "--tls-certificates", certificates)
            self.assertIn("client-cert.pem", said, certificates.name)
        half = self.scratch / "half"
        shutil.copytree(self.good, half)
        (half / "client-key.pem").unlink()
        self.assertIn("there is no", self.refused(uri, "--tls-certificates", half))
        done = self.gateway.cli("volume", "create", "x", "1MiB", "--tls-certificates", self.good, check=False)
        self.assertEqual(done.returncode, 2)

    def test_certificates_are_read_anew_and_a_refusal_is_shown(self):
        behind = self.behind()
        proxy = Proxy(("127.0.0.1", 0), behind.tcp())
        self.addCleanup(proxy.close)
        pki = self.scratch / "pki"
        shutil.copytree(self.good, pki)
        self.create(self.from_uri(proxy.at[1]), "--tls-certificates", pki)
        self.online()
        for name in ("client-cert.pem", "client-key.pem"):
            shutil.copy(self.wrong / name, pki / name)
        proxy.cut()
        until("the refusal to be shown", lambda: "client certificate" in (self.upstream()["failure"] or ""), 30)
        self.assertIn("is away", self.gateway.cli("volume", "show", "gw").stdout)
        (pki / "client-key.pem").unlink()
        until("the file to be missed", lambda: "there is no" in (self.upstream()["failure"] or ""), 30)
        for name in ("client-cert.pem", "client-key.pem"):
            shutil.copy(self.good / name, pki / name)
        self.online()

    def test_connections_are_cut_under_load(self):
        behind = self.behind()
        proxy = Proxy(("127.0.0.1", 0), behind.tcp())
        self.addCleanup(proxy.close)
        self.create(self.from_uri(proxy.at[1]), "--tls-certificates", self.good, "--cache", "4MiB")
        gateway = self.gateway.open("gw")
        for at in range(0, 16 * MIB, len(DATA)):
            gateway.pwrite(DATA, at)
            if at % (2 * MIB) == 0:
                proxy.cut()
        gateway.flush()
        self.assertGreater(self.upstream()["reconnects"], 0)
        at_server = behind.open("v")
        for at in range(0, 16 * MIB, len(DATA)):
            self.assertEqual(at_server.pread(len(DATA), at), DATA, at)

    def stranger(self, *command):
        """A server of another make, which is killed and started again under the gateway."""
        sock, image = self.scratch / "stranger.sock", self.scratch / "stranger.img"
        with image.open("wb") as file:
            file.truncate(SIZE)
        process = None

        def start():
            sock.unlink(missing_ok=True)
            process = subprocess.Popen([str(word) for word in (*command, image)], stdin=subprocess.DEVNULL)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            until("the server to listen", sock.is_socket, 90)
            return process

        process = start()
        self.gateway = self.serve(name="gateway")
        uri = f"nbds+unix:///?socket={sock}"
        self.assertIn("client-cert.pem", self.refused(uri, "--tls-certificates", self.missing))
        self.create(uri, "--tls-certificates", self.good, "--cache", "4MiB")
        gateway = self.gateway.open("gw")
        for at in range(0, 8 * MIB, len(DATA)):
            gateway.pwrite(DATA, at)
        process.kill()
        process.wait()
        start()
        gateway.flush()
        for at in range(0, 8 * MIB, len(DATA)):
            self.assertEqual(gateway.pread(len(DATA), at), DATA, at)
        self.assertGreater(self.upstream()["reconnects"], 0)
        self.assertEqual(self.gateway.stop(), 0)
        content = image.read_bytes()
        for at in range(0, 8 * MIB, len(DATA)):
            self.assertEqual(content[at : at + len(DATA)], DATA, at)

    def test_nbdkit(self):
        self.stranger(
            *("nbdkit", "--foreground", "--unix", self.scratch / "stranger.sock", "--tls=require"),
            *(f"--tls-certificates={self.server_files}", "--tls-verify-peer", "file"),
        )

    def test_qemu_nbd(self):
        credentials = f"tls-creds-x509,id=tls,endpoint=server,dir={self.server_files},verify-peer=on"
        self.stranger(
            *("qemu-nbd", "--persistent", "--shared=64", "--format=raw", "--object", credentials),
            *("--tls-creds", "tls", "--socket", self.scratch / "stranger.sock"),
        )

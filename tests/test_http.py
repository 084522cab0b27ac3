"""The HTTP API with misbehaving clients."""

import http.client
import json
import os
import resource
import socket
import time

from harness.case import ServerCase
from harness.server import MIB, UnixHTTP, memory_of
from harness.wait import until

# For `tests/run.py`.
LANE = 1

ATTACKERS = 2000
# On an idle machine a command takes 50 ms and an open 5 ms.
CLI_SECONDS, OPEN_SECONDS = 1, 0.1


def best(measure, times=5):
    """The shortest of several durations, since other programs on the machine only add to them."""
    took = []
    for _ in range(times):
        started = time.monotonic()
        measure()
        took.append(time.monotonic() - started)
    return min(took)


class Attacked(ServerCase):
    """More connections than the limit."""

    def setUp(self):
        super().setUp()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * ATTACKERS), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def attack(self, family, address, count=ATTACKERS):
        """Silent connections, half of them with half a head; as many as the kernel accepts."""
        sockets = []
        self.addCleanup(lambda: [attacker.close() for attacker in sockets])
        for i in range(count):
            attacker = socket.socket(family)
            attacker.setblocking(False)
            sockets.append(attacker)
            attacker.connect_ex(address)
            if i % 2:
                try:
                    attacker.send(b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX: ")
                except OSError:
                    pass
        return sockets

    def serves_others(self, server, alone):
        cli = best(lambda: server.cli("status"))
        opening = best(lambda: server.open("db"))
        self.assertLess(cli, max(CLI_SECONDS, 3 * alone[0]))
        self.assertLess(opening, max(OPEN_SECONDS, 3 * alone[1]))

    def alone(self, server):
        return best(lambda: server.cli("status")), best(lambda: server.open("db"))

    def test_silent_connections_over_tcp(self):
        server = self.serve(http=["tcp:127.0.0.1:0"])
        server.create("db", "1MiB")
        port = int(server.json("status")["http"][-1].rsplit(":", 1)[1])
        alone, memory = self.alone(server), memory_of(server.pid, "VmRSS")
        attackers = self.attack(socket.AF_INET, ("127.0.0.1", port))
        self.serves_others(server, alone)
        self.assertLess(memory_of(server.pid, "VmRSS") - memory, 16 * MIB)
        self.assertLess(len(os.listdir(f"/proc/{server.pid}/fd")), 200)
        for attacker in attackers:
            attacker.close()

        def answers():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200

        until("the listener to serve again", answers, 60)

    def test_few_descriptors(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        server = self.serve()
        server.create("db", "1MiB")
        server.stop()
        server.start(preexec_fn=few)
        alone = self.alone(server)
        # Connections to volumes, which keep their descriptors.
        opened = []
        for _ in range(300):
            try:
                opened.append(server.open("db"))
            except Exception:  # noqa: BLE001  libnbd reports closed connections with various errors
                break
        self.assertGreater(len(opened), 50)
        self.assertLess(len(opened), 250)
        self.attack(socket.AF_UNIX, str(server.http_socket), 200)
        cli = best(lambda: server.cli("status"))
        self.assertLess(cli, max(CLI_SECONDS, 3 * alone[0]))
        server.cli("volume", "create", "another", "1MiB")
        self.assertLess(server.log().count("cannot be accepted"), 20, "the log is flooded")


class Bodies(ServerCase):
    """Invalid requests are refused in JSON, with the reason."""

    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.server.create("db", "1MiB")

    def ask(self, method, path, body=b"", kind="application/json", headers=()):
        connection = UnixHTTP(self.server.data / "api.sock")
        self.addCleanup(connection.close)
        connection.putrequest(method, path, skip_host=True)
        given = {"Host": "localhost", "Content-Type": kind, "Content-Length": str(len(body)), **dict(headers)}
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders()
        try:
            connection.send(body)
        except BrokenPipeError:
            pass  # The server answered before the end of the body.
        answer = connection.getresponse()
        return answer.status, answer.read()

    def test_bodies_that_make_no_sense(self):
        deep = b"[" * 100_000
        bodies = [
            b"", b"null", b"[]", b"1", b"{", deep, b"\xff\xfe", b'{"name":"\xff"}', b'{"name":"x","size":"1MiB"} x',
            b'{"name":"x","size":1e400}', b'{"name":"x","size":-1}', b'{"name":"x","size":99999999999999999999999}',
            b'{"name":"x","size":1.5}', b'{"name":"x","size":true}', b'{"name":"x","size":[]}', b'{"name":{},"size":1}',
            b'{"name":"x","name":"y","size":"1MiB"}', b'{"name":"../x","size":"1MiB"}', b'{"name":"","size":"1MiB"}',
            b'{"name":"x\\u0000","size":"1MiB"}', b'{"name":"x","size":"1MiB","allow":[]}',
            b'{"name":"x","size":"1MiB","allow":"any"}', b'{"name":"x","size":"1MiB","allow":["root"]}',
            b'{"name":"x","size":"1MiB","description":"a\\nb"}', b'{"name":"x","size":"1MiB","read_only":1}',
            json.dumps({"name": "x", "size": "1MiB", "description": "x" * 256}).encode(),
            json.dumps({"name": "x", "size": "1MiB", "allow": ["any"] * 65}).encode(),
        ]
        for body in bodies:
            status, answer = self.ask("POST", "/v1/volumes", body)
            self.assertIn(status, (400, 413, 415, 422), (body[:80], answer))
            self.assertTrue(json.loads(answer)["error"], body[:80])
        self.assertEqual(self.ask("POST", "/v1/volumes", b" " * (256 << 10))[0], 413)
        self.assertEqual(self.ask("POST", "/v1/volumes", b'{"name":"x"}', kind="text/plain")[0], 415)
        self.assertEqual([volume["name"] for volume in self.server.json("volume", "list")], ["db"])

    def test_paths_that_make_no_sense(self):
        paths = ["/v1/volumes/%ff", "/v1/volumes/%2e%2e%2fdb", "/v1/volumes/" + "x" * 5000, "/v1/volumes/a%00b"]
        paths += ["/v1/volumes/%", "/v1/top?disk=%ff", "/v1/top?disk=a/b", "/v1/top?disk=default&disk=default"]
        paths += ["/v1/volumes/db/curve?policy=%ff", "/v1/volumes/d%0ab", "//v1/status", "/v1/volumes/"]
        for path in paths:
            status, answer = self.ask("GET", path)
            self.assertIn(status, (400, 404, 405), (path[:80], answer))
            self.assertTrue(json.loads(answer)["error"], path[:80])
        status, answer = self.ask("DELETE", "/v1/disks/default?force=maybe")
        self.assertEqual(status, 400)
        self.assertTrue(json.loads(answer)["error"])

    def test_a_body_that_does_not_come(self):
        status, answer = self.ask("POST", "/v1/volumes", b"{", headers={"Content-Length": "100"}.items())
        self.assertEqual(status, 408, answer)
        self.assertTrue(json.loads(answer)["error"])

    def test_lengths_that_contradict_each_other(self):
        for head in (
            b"Content-Length: 5\r\nContent-Length: 6\r\n",
            b"Content-Length: -1\r\n",
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: chunked, x\r\n",
            b"Content-Length: 99999999999999999999999\r\n",
        ):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(30)
                client.connect(str(self.server.data / "api.sock"))
                start = b"POST /v1/volumes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                client.sendall(start + head + b"\r\n{}")
                answer = b""
                while part := client.recv(65536):
                    answer += part
                status = answer.split(b" ", 2)[1:2]
                self.assertTrue(status and status[0].startswith(b"4"), (head, answer[:200]))
        self.assertEqual(len(self.server.json("volume", "list")), 1)

    def test_health(self):
        self.assertEqual(self.ask("GET", "/healthz")[0], 200)
        self.assertEqual(self.ask("GET", "/readyz")[0], 200)
        self.server.cli("disk", "add", "second", self.scratch / "second", "--force")
        self.server.stop()
        os.rename(self.scratch / "second", self.scratch / "elsewhere")
        self.server.start()
        status, answer = self.ask("GET", "/readyz")
        self.assertEqual(status, 503)
        self.assertIn("second", json.loads(answer)["error"])
        self.assertEqual(self.ask("GET", "/healthz")[0], 200)


class Defaults(ServerCase):
    """By default, there is no TCP listener for HTTP."""

    def test_no_tcp_for_http(self):
        server = self.serve()
        self.assertFalse([at for at in server.json("status")["http"] if at.startswith("tcp:")])
        shown = server.cli("serve", "--help", check=False).stdout
        self.assertIn("unix:PATH or tcp:HOST:PORT; may be repeated [default: none]", " ".join(shown.split()))

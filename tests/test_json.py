"""`--json` prints what the API's document describes, and values that are shown are accepted in requests under the
same names."""

import json

from harness.case import ServerCase
from harness.document import Document
from harness.server import Failed, UnixHTTP

SECONDS = 2


class Json(ServerCase):
    """All commands with an answer, on one server with two disks."""

    def setUp(self):
        super().setUp()
        self.server = self.serve()
        self.document = Document(self.ask("GET", "/openapi.json"))

    def http(self, method, path, body=None):
        """(status, answer) of a request."""
        connection = UnixHTTP(self.server.data / "api.sock")
        self.addCleanup(connection.close)
        headers = {"Host": "localhost", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def ask(self, method, path, body=None):
        status, answer = self.http(method, path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def given(self, method, path, *words):
        """The output of a command with --json, checked against the document's description of this request."""
        answer = json.loads(self.server.cli(*words, "--json").stdout)
        faults = self.document.faults(answer, self.document.answer(method, path))
        self.assertEqual(faults, [], f"`aerogel {' '.join(words)} --json`")
        return answer

    def takes(self, method, path, body):
        """The document allows this body."""
        self.assertEqual(self.document.faults(body, self.document.body(method, path)), [], f"body of {method} {path}")

    def test_every_command(self):
        volumes, volume = "/v1/volumes", "/v1/volumes/{name}"
        tenants, tenant = "/v1/tenants", "/v1/tenants/{name}"
        disks, disk, faults = "/v1/disks", "/v1/disks/{name}", "/v1/disks/{name}/faults"
        add = ("disk", "add", "hdd", "sim:barracuda-7200.9", "--size", "1GiB", "--insulation", "0.8",
               "--max-round", "1s", "--policy", "none", "--fault", "error read 1% after=30m")  # fmt: skip
        self.given("post", disks, *add)
        create = ("volume", "create", "v", "16MiB", "--disk", "hdd", "--share", "1/4", "--cache", "8MiB", "--sparse",
                  "--allow", "user:0", "--eviction", "sieve", "--description", "text")  # fmt: skip
        self.given("post", "/v1/plan", *create, "--dry-run")
        self.given("post", volumes, *create)
        self.server.open("v").pread(4096, 0)
        self.given("post", "/v1/stores", *"store create s --size 17MiB --disk default --share 9% --allow any".split())
        for method, path, words in (
            ("get", "/v1/status", "status"),
            ("get", "/v1/top", "top --once"),
            ("get", volumes, "volume list"),
            ("get", volume, "volume show v"),
            ("get", volume + "/curve", "volume curve v"),
            ("get", volume + "/curve", "volume curve v --policy lru"),
            ("patch", volume, "volume set v --share 1/8 --cache none --write-cache none"),
            ("post", volume + "/grow", "volume grow v 32MiB"),
            ("post", volume + "/clear", "volume clear v --yes"),
            ("get", "/v1/stores", "store list"),
            ("get", "/v1/stores/{name}", "store show s"),
            ("patch", "/v1/stores", "store set --disk default --share 1/8"),
            ("get", tenants, "tenant list"),
            ("get", tenant, "tenant show @stores"),
            ("delete", "/v1/stores/{name}", "store delete s --yes"),
            ("get", tenant, "tenant show v"),
            ("put", tenant, "tenant set v --share 1/8 --cache 8MiB --eviction lru"),
            ("get", disks, "disk list"),
            ("get", disk, "disk show hdd"),
            ("patch", disk, "disk set hdd --policy default --profile switch_cost_p50_ns=5000000"),
            ("get", faults, "disk fault list hdd"),
            ("post", faults, "disk fault add hdd delay write by=1ms"),
            ("delete", faults, "disk fault clear hdd --id 2"),
        ):
            with self.subTest(command=words):
                self.given(method, path, *words.split())
        with self.subTest(command="what is shown can be asked for"):
            self.ask_for_what_is_shown()
        self.given("delete", volume, "volume", "delete", "v", "--yes", "--force")
        self.given("delete", disk, "disk", "remove", "hdd")

    def ask_for_what_is_shown(self):
        shown, disk = (self.server.json(kind, "show", name) for kind, name in (("volume", "v"), ("disk", "hdd")))
        self.takes("post", "/v1/volumes", shown["spec"])
        self.takes("post", "/v1/disks", disk["spec"])
        # Setting everything that can be set to its present value changes nothing.
        for path, spec in (("/v1/volumes/{name}", shown["spec"]), ("/v1/disks/{name}", disk["spec"])):
            names = self.document.schemas[self.document.body("patch", path)["$ref"].rsplit("/", 1)[1]]["properties"]
            body = {name: value for name, value in spec.items() if name in names}
            self.takes("patch", path, body)
            self.ask("PATCH", path.format(name=spec["name"]), body)
        tenant = self.server.json("tenant", "show", "v")
        self.takes("put", "/v1/tenants/{name}", tenant["disks"][0]["spec"])
        self.ask("PUT", "/v1/tenants/v", tenant["disks"][0]["spec"])
        self.assertEqual(self.server.json("tenant", "show", "v")["disks"][0]["spec"], tenant["disks"][0]["spec"])
        body = {"write_cache": shown["write_cache"], "allow": shown["allow"], "read_only": shown["read_only"]}
        self.takes("patch", "/v1/volumes/{name}", body)
        self.ask("PATCH", "/v1/volumes/v", body)
        self.assertEqual(self.server.json("volume", "show", "v")["spec"], shown["spec"])
        self.assertEqual(self.server.json("disk", "show", "hdd")["spec"], disk["spec"])
        self.ask("POST", "/v1/disks/hdd/faults", {"fault": disk["faults"][0]["fault"]})
        # Created again from what was shown; the disk with another name and directory.
        self.server.cli("volume", "delete", "v", "--yes", "--force")
        self.ask("POST", "/v1/volumes", shown["spec"])
        self.assertEqual(self.server.json("volume", "show", "v")["spec"], shown["spec"])
        own = {"name": "other", "directory": str(self.scratch / "other")}
        self.ask("POST", "/v1/disks", {**disk["spec"], **own})
        self.assertEqual(self.server.json("disk", "show", "other")["spec"], {**disk["spec"], **own})

    def test_a_probe(self):
        probe = "/v1/disks/{name}/probe"
        self.given("post", probe, "disk", "probe", "default", "--seconds", str(SECONDS))

    def test_errors_are_those_of_the_api(self):
        with self.assertRaises(Failed) as failed:
            self.server.cli("volume", "show", "absent", "--json")
        error = json.loads(failed.exception.err)
        self.assertEqual(self.document.faults(error, {"$ref": "#/components/schemas/Problem"}), [])
        self.assertEqual(self.http("GET", "/v1/volumes/absent"), (404, error))

"""Answers of a server against the OpenAPI document that it serves itself."""

import json

import jsonschema

from harness.case import ServerCase
from harness.server import UnixHTTP

# For `tests/run.py`.
LANE = 1

# The directory of a second disk: the test has its path.
SECOND = object()

# Requests for volumes and tenants: creates the volume `db`.
VOLUMES = (
    ("GET", "/v1/status", None, 200),
    ("GET", "/v1/disks", None, 200),
    ("GET", "/v1/disks/default", None, 200),
    ("GET", "/v1/disks/absent", None, 404),
    ("GET", "/v1/disks/%2e%2e", None, 400),
    ("POST", "/v1/plan", {"name": "db", "size": "1MiB", "share": "1/4", "tenant": "team"}, 200),
    ("POST", "/v1/volumes", {"name": "db", "size": "1MiB", "share": "1/4", "tenant": "team"}, 200),
    ("POST", "/v1/plan", {"name": "db", "size": "1MiB", "share": "1/4", "tenant": "team"}, 409),
    ("POST", "/v1/plan", {"name": "x", "size": 512, "share": "4/5"}, 409),
    ("POST", "/v1/plan", {"name": "x", "size": 512, "like": "absent"}, 400),
    ("POST", "/v1/volumes", {"name": "x", "size": 512, "like": "db", "cache": "1MiB"}, 400),
    ("POST", "/v1/volumes", {"name": "db", "size": "1MiB", "share": "1/4", "tenant": "team"}, 409),
    ("POST", "/v1/volumes", {"name": "x", "size": 513}, 400),
    ("POST", "/v1/volumes", {"name": "x", "size": "1MB"}, 422),
    ("POST", "/v1/volumes", {"name": "x", "size": 512, "share": "4/5"}, 409),
    ("POST", "/v1/volumes", {"name": "x", "size": 512, "disk": "absent"}, 404),
    ("POST", "/v1/volumes", {"name": "x", "size": 512, "colour": "red"}, 422),
    ("POST", "/v1/volumes", {"name": "x"}, 400),
    ("POST", "/v1/volumes", {"name": "x", "size": 512, "force": True}, 400),
    ("POST", "/v1/volumes", {"name": "x", "device": "/dev/there-is-none"}, 400),
    ("POST", "/v1/volumes", {"name": "x", "device": "sdb"}, 400),
    ("POST", "/v1/volumes", {"name": "x", "device": "/dev/null"}, 400),
    ("POST", "/v1/volumes", {"name": "x", "size": 512, "shared": True}, 400),
    ("POST", "/v1/volumes", {"name": "x", "from": "http://h/x"}, 422),
    ("POST", "/v1/volumes", {"name": "x", "from": "nbd+unix:///x?socket=/none"}, 502),
    ("POST", "/v1/plan", {"name": "x", "from": "nbd+unix:///x?socket=/none"}, 400),
    ("PATCH", "/v1/volumes/db", {"upstream_connections": 2}, 400),
    ("GET", "/v1/volumes", None, 200),
    ("GET", "/v1/volumes/db", None, 200),
    ("GET", "/v1/volumes/absent", None, 404),
    ("GET", "/v1/tenants", None, 200),
    ("GET", "/v1/tenants/team", None, 200),
    ("GET", "/v1/tenants/absent", None, 404),
    ("PUT", "/v1/tenants/team", {"share": "1/8", "cache": "8MiB", "eviction": "sieve"}, 200),
    ("PUT", "/v1/tenants/team", {"disk": "default", "cache": "none"}, 200),
    ("PUT", "/v1/tenants/team", {"disk": "absent", "cache": "none"}, 404),
    ("PUT", "/v1/tenants/team", {}, 400),
    ("PUT", "/v1/tenants/team", {"share": "2"}, 422),
    ("PUT", "/v1/tenants/team", {"cache": "1EiB"}, 409),
    ("PUT", "/v1/tenants/absent", {"share": "1/8"}, 404),
    ("PATCH", "/v1/volumes/db", {"share": "none", "write_cache": "none", "eviction": "sieve"}, 200),
    ("PATCH", "/v1/volumes/db", {"eviction": "random"}, 422),
    ("PATCH", "/v1/volumes/db", {"write_cache": "unsafe"}, 400),
    ("PATCH", "/v1/volumes/db", {}, 400),
    ("PATCH", "/v1/volumes/db", {"write_cache": "unsafe", "accept_data_loss": True}, 200),
    ("POST", "/v1/volumes/db/grow", {"size": "2MiB"}, 200),
    ("POST", "/v1/volumes/db/grow", {"size": "1MiB"}, 400),
    ("POST", "/v1/volumes/db/grow", {}, 400),
    ("POST", "/v1/volumes/db/clear", None, 200),
    ("GET", "/v1/volumes/db/curve", None, 200),
    ("GET", "/v1/volumes/db/curve?policy=lru", None, 200),
    ("GET", "/v1/volumes/db/curve?policy=random", None, 400),
    ("GET", "/v1/volumes/absent/curve", None, 404),
)

# Then requests for stores, which leave none.
STORES = (
    ("GET", "/v1/stores", None, 200),
    ("PATCH", "/v1/stores", {"share": "1/10"}, 404),
    ("POST", "/v1/stores", {"name": "spare", "size": "17MiB"}, 200),
    ("POST", "/v1/stores", {"name": "spare", "size": "17MiB"}, 409),
    ("POST", "/v1/stores", {"name": "x", "size": "16MiB"}, 400),
    ("POST", "/v1/stores", {"name": "x", "size": 2**64 - 1}, 400),
    ("POST", "/v1/stores", {"name": "x", "size": "17MiB", "tenant": "team"}, 422),
    ("POST", "/v1/volumes", {"name": "x", "size": "1MiB", "tenant": "@stores"}, 422),
    ("GET", "/v1/stores", None, 200),
    ("GET", "/v1/stores/spare", None, 200),
    ("GET", "/v1/stores/db", None, 400),
    ("GET", "/v1/stores/absent", None, 404),
    ("GET", "/v1/volumes/spare", None, 200),
    ("GET", "/v1/volumes/spare/curve", None, 400),
    ("GET", "/v1/tenants", None, 200),
    ("GET", "/v1/tenants/@stores", None, 200),
    ("PATCH", "/v1/stores", {"share": "1/10"}, 200),
    ("PATCH", "/v1/stores", {"share": "1/10", "disk": "absent"}, 404),
    ("PATCH", "/v1/stores", {}, 422),
    ("PUT", "/v1/tenants/@stores", {"share": "1/8"}, 400),
    ("PATCH", "/v1/volumes/spare", {"allow": ["nobody"], "description": "logs"}, 200),
    ("PATCH", "/v1/volumes/spare", {"write_cache": "volatile"}, 400),
    ("POST", "/v1/volumes/spare/grow", {"size": "2MiB"}, 400),
    ("DELETE", "/v1/volumes/spare", None, 400),
    ("DELETE", "/v1/stores/db", None, 400),
    ("DELETE", "/v1/stores/spare", None, 200),
    ("DELETE", "/v1/stores/spare", None, 404),
    ("GET", "/v1/tenants/@stores", None, 404),
)

# Then requests about off-loading, which enable none: the server does not listen, and so reaches no store of its own.
OFFLOAD = (
    ("GET", "/v1/offload", None, 200),
    ("GET", "/v1/offload/default", None, 404),
    ("GET", "/v1/offload/absent", None, 404),
    ("PUT", "/v1/offload/default", {}, 400),
    ("PUT", "/v1/offload/default", {"stores": ["db"]}, 400),
    ("PUT", "/v1/offload/default", {"stores": ["absent"]}, 404),
    ("PUT", "/v1/offload/default", {"stores": ["nbd+unix:///x?socket=/none"]}, 502),
    ("PUT", "/v1/offload/default", {"stores": ["http://h/x"]}, 422),
    ("PUT", "/v1/offload/default", {"stores": ["nbd+unix:///x?socket=/none"], "copies": 0}, 400),
    ("PUT", "/v1/offload/default", {"stores": ["nbd+unix:///x?socket=/none"], "colour": "red"}, 422),
    ("PUT", "/v1/offload/default", {"stores": ["nbd+unix:///x?socket=/none"], "except": ["absent"]}, 404),
    ("PUT", "/v1/offload/absent", {"stores": ["nbd+unix:///x?socket=/none"]}, 404),
    ("POST", "/v1/offload/default/remove-store", {"store": "spare"}, 404),
    ("POST", "/v1/offload/default/remove-store", {"store": "spare", "lost": True}, 404),
    ("POST", "/v1/offload/default/remove-store", {}, 422),
    ("DELETE", "/v1/offload/default", None, 404),
    ("DELETE", "/v1/offload/absent", None, 404),
)

# Then requests for named policies, which leave none.
POLICIES = (
    ("GET", "/v1/policies", None, 200),
    ("POST", "/v1/policies", {"name": "gold", "share": "1/4", "max_iops": "500"}, 200),
    ("POST", "/v1/policies", {"name": "gold", "share": "1/4"}, 409),
    ("POST", "/v1/policies", {"name": "x"}, 400),
    ("POST", "/v1/policies", {"name": "none", "share": "1/4"}, 400),
    ("POST", "/v1/policies", {"name": "x", "cache": "1MiB"}, 422),
    ("PUT", "/v1/tenants/team", {"policy": "absent"}, 404),
    ("PUT", "/v1/tenants/team", {"policy": "gold"}, 200),
    ("PUT", "/v1/tenants/team", {"share": "1/8"}, 409),
    ("GET", "/v1/policies/gold", None, 200),
    ("PUT", "/v1/policies/gold", {"share": "1/3"}, 200),
    ("PUT", "/v1/policies/gold", {}, 400),
    ("PUT", "/v1/policies/gold", {"min_bandwidth": "1GiB/s"}, 400),
    ("PUT", "/v1/policies/absent", {"share": "1/3"}, 404),
    ("DELETE", "/v1/policies/gold", None, 409),
    ("PATCH", "/v1/volumes/db", {"policy": "none"}, 200),
    ("DELETE", "/v1/policies/gold", None, 200),
    ("GET", "/v1/policies/absent", None, 404),
    ("PATCH", "/v1/volumes/db", {"share": "none", "max_iops": "none"}, 200),
)

# Then requests for disks and plans: adds the disk `second`, and removes it and `db` in the end.
DISKS = (
    ("POST", "/v1/disks", {"name": "second", "path": SECOND}, 409),
    ("POST", "/v1/disks", {"name": "second", "path": SECOND, "force": True}, 200),
    ("POST", "/v1/disks", {"name": "s", "path": "sim:drive"}, 400),
    (
        "PATCH",
        "/v1/disks/default",
        {"profile": {"needs_slices": "1", "rotation_period_ns": "none"}},
        200,
    ),
    ("PATCH", "/v1/disks/default", {"profile": {"colour": "1"}}, 400),
    ("PATCH", "/v1/disks/default", {"colour": 1}, 422),
    (
        "PATCH",
        "/v1/disks/default",
        {"policy": "insulated", "insulation": "95%", "max_round": "1s"},
        200,
    ),
    ("PATCH", "/v1/disks/default", {"policy": "fair"}, 422),
    ("PATCH", "/v1/disks/default", {"insulation": "1"}, 422),
    ("PATCH", "/v1/disks/default", {"max_round": "1ms"}, 400),
    ("GET", "/v1/top", None, 200),
    ("GET", "/v1/top?disk=absent", None, 404),
    ("DELETE", "/v1/disks/default?force=null", None, 400),
    ("DELETE", "/v1/disks/default/faults?id=-1", None, 400),
    ("GET", "/v1/top?disk=default", None, 200),
    ("GET", "/v1/volumes/db", None, 200),
    ("POST", "/v1/plan", {"name": "x", "size": 512, "like": "db"}, 200),
    ("POST", "/v1/volumes", {"name": "x", "size": 4096, "like": "db"}, 200),
    ("DELETE", "/v1/volumes/x", None, 200),
    ("PATCH", "/v1/disks/default", {"policy": "default", "insulation": "default"}, 200),
    ("GET", "/v1/disks/default", None, 200),
    ("GET", "/v1/disks/default/probe", None, 200),
    ("DELETE", "/v1/disks/default/probe", None, 409),
    ("POST", "/v1/disks/default/probe", {"seconds": 1}, 400),
    ("POST", "/v1/disks/default/probe", {"seconds": 100}, 200),
    ("POST", "/v1/disks/default/probe", {}, 409),
    ("GET", "/v1/disks/default/probe", None, 200),
    ("DELETE", "/v1/disks/default/probe", None, 200),
    ("POST", "/v1/disks/absent/probe", {}, 404),
    ("GET", "/v1/status", None, 200),
    ("DELETE", "/v1/disks/second", None, 200),
    ("DELETE", "/v1/volumes/db", None, 200),
    ("DELETE", "/v1/volumes/db", None, 404),
    ("GET", "/healthz", None, 200),
    ("GET", "/readyz", None, 200),
    ("GET", "/openapi.json", None, 200),
)

# Requests about a cluster, of which this server is no part.
CLUSTER = (
    ("GET", "/v1/cluster", None, 400),
    ("GET", "/v1/cluster/schedule", None, 400),
    ("POST", "/v1/cluster/plan", {"name": "x", "size": 4096, "share": "1/4", "servers": 2}, 400),
    ("PUT", "/v1/cluster/draining/absent", None, 400),
    ("DELETE", "/v1/cluster/draining/absent", None, 400),
    ("POST", "/v1/volumes", {"name": "x", "size": 4096, "share": "1/4", "servers": 2}, 400),
    ("POST", "/v1/volumes", {"name": "x", "size": 4096, "on": ["s1"]}, 400),
    ("POST", "/v1/plan", {"name": "x", "size": 4096, "share": "1/4", "servers": 2}, 400),
)


# Names in paths, which the document has parameters for.
NAMES = {"db", "team", "default", "second", "absent", "%2e%2e", "x", "gold", "spare", "@stores"}


def described(path):
    """The path of the document that `path` is an instance of."""
    path = path.split("?")[0]
    name = "{disk}" if path.startswith("/v1/offload") else "{name}"
    return "/".join(name if part in NAMES else part for part in path.split("/"))


class OpenApi(ServerCase):
    def ask(self, method, path, body):
        """(status, answer) of a request. The answer is text if it is not JSON."""
        body = body and {key: str(self.scratch / "second") if value is SECOND else value for key, value in body.items()}
        connection = UnixHTTP(self.server.http_socket)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Host": "localhost", "Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except json.JSONDecodeError:
            return answer.status, text

    def check(self, method, path, status, answer):
        """That the document describes this answer."""
        responses = self.document["paths"][described(path)][method.lower()]["responses"]
        response = responses.get(str(status)) or responses.get(f"{status // 100}XX")
        self.assertIsNotNone(response, f"{method} {path}: {status} is not described: {answer}")
        schema = {**response["content"]["application/json"]["schema"], "components": self.document["components"]}
        validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
        errors = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(answer)]
        self.assertEqual(errors, [], f"{method} {path}: {answer}")

    def test_answers_are_what_the_document_says(self):
        self.server = self.serve(cache="64MiB")
        self.document = self.ask("GET", "/openapi.json", None)[1]
        for method, path, body, expected in VOLUMES + STORES + OFFLOAD + POLICIES + CLUSTER + DISKS:
            with self.subTest(method=method, path=path, body=body):
                status, answer = self.ask(method, path, body)
                self.assertEqual(status, expected, answer)
                self.check(method, path, status, answer)

    def test_what_the_document_does_not_say_is_found(self):
        self.server = self.serve(cache="64MiB")
        self.document = self.ask("GET", "/openapi.json", None)[1]
        status, answer = self.ask("GET", "/v1/status", None)
        self.check("GET", "/v1/status", status, answer)
        for broken in ({**answer, "version": 1}, {key: answer[key] for key in answer if key != "version"}):
            with self.assertRaises(AssertionError):
                self.check("GET", "/v1/status", status, broken)

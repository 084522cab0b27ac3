"""Schemathesis: requests that the API's document allows, and many that it does not, are answered as the document
describes."""

import os
import socket

from harness import places
from harness.case import ServerCase
from harness.server import run

LONG = bool(os.environ.get("AEROGEL_TEST_LONG"))
EXAMPLES = 60
TOKEN = "0123456789abcdef0123456789abcdef"
# `POST /v1/disks` creates directories wherever the request says.
EXCLUDED = "POST /v1/disks"


class Document(ServerCase):
    """A server whose token the tool knows."""

    def test_schemathesis(self):
        if not LONG:
            self.skipTest("asks for minutes, in `make test-long`")
        tool = places.TARGET / "venv" / "bin" / "st"
        if not tool.exists():
            self.skipTest("needs schemathesis: run `scripts/setup long`")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        token = self.scratch / "token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        server = self.serve(http=[f"tcp:127.0.0.1:{port}"], config=f'http_token_file = "{token}"')
        server.create("v", "4MiB")
        checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
        done = run(
            tool, "run", f"http://127.0.0.1:{port}/openapi.json",
            "--header", f"Authorization: Bearer {TOKEN}",
            "--checks", checks, "--max-examples", EXAMPLES, "--seed", 1, "--phases", "examples,coverage,fuzzing",
            "--exclude-name", EXCLUDED,
            check=False, seconds=1500, cwd=self.scratch,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout[-6000:])
        self.assertIsNone(server.ended())

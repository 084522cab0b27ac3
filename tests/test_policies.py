"""Named policies of tenants, as an operator uses them."""

import json

from harness.case import ServerCase


class Policies(ServerCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def cli(self, *words):
        return json.loads(self.server.cli(*words, "--json").stdout)

    def share(self, tenant):
        [on] = self.cli("tenant", "show", tenant)["disks"]
        return on["share"]["requested"]

    def test_a_policy_is_changed_for_all_users_or_for_none_and_survives_a_crash(self):
        self.cli("policy", "create", "gold", "--share", "1/4", "--max-iops", "500")
        self.cli("volume", "create", "a", "4MiB", "--policy", "gold")
        self.cli("volume", "create", "b", "4MiB")
        self.cli("tenant", "set", "b", "--policy", "gold")
        self.cli("policy", "set", "gold", "--share", "1/3")
        self.assertEqual([self.share("a"), self.share("b")], ["1/3", "1/3"])
        refused = self.server.cli("policy", "set", "gold", "--share", "3/5", check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("tenant 'a' on disk 'default'", refused.stderr)
        self.assertEqual([self.share("a"), self.share("b")], ["1/3", "1/3"])
        self.server.kill()
        self.server.start()
        self.assertEqual([self.share("a"), self.share("b")], ["1/3", "1/3"])
        [gold] = self.cli("policy", "list")
        self.assertEqual([user["tenant"] for user in gold["users"]], ["a", "b"])
        self.assertIn("gold", self.server.cli("volume", "show", "a").stdout)
        for words in (("policy", "delete", "gold"), ("tenant", "set", "a", "--share", "1/8")):
            self.assertEqual(self.server.cli(*words, check=False).returncode, 1, words)
        self.cli("volume", "set", "a", "--policy", "none", "--share", "1/8")
        self.cli("tenant", "set", "b", "--policy", "none")
        self.cli("policy", "delete", "gold")
        self.assertEqual([self.share("a"), self.share("b")], ["1/8", "1/3"])
        self.assertEqual(self.cli("policy", "list"), [])

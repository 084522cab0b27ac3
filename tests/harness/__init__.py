"""What the tests with real clients share: a private server, a bare NBD client, verified load, scratch file systems."""

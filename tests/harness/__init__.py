"""Common parts of the tests with real clients: a private server, a bare NBD client, verified load, scratch file
systems."""

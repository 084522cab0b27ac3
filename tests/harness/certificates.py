"""Certificates for tests, made with openssl as docs/manual/security.md does."""

from .server import run

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """A certificate authority in a directory of its own, which signs others."""

    def __init__(self, directory, name="authority"):
        directory.mkdir()
        self.certificate, self.key = directory / "ca-cert.pem", directory / "ca-key.pem"
        run("openssl", "req", "-x509", *EC, "-days", "30", "-subj", f"/CN={name}",
            "-addext", "keyUsage=critical,keyCertSign", "-keyout", self.key, "-out", self.certificate)  # fmt: skip

    def sign(self, directory, role, subject, names, days="1", trusts=None):
        """A certificate for a 'server' or a 'client', in a directory as libnbd and qemu expect it."""
        directory.mkdir(exist_ok=True)
        key, request, certificate = (directory / f"{role}{end}" for end in ("-key.pem", ".csr", "-cert.pem"))
        extensions = directory / "extensions"
        extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage={role}Auth\nkeyUsage=digitalSignature\n")
        run("openssl", "req", "-new", *EC, "-subj", subject, "-keyout", key, "-out", request)
        run("openssl", "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
            *("-days", days, "-extfile", extensions, "-out", certificate))  # fmt: skip
        (directory / "ca-cert.pem").write_bytes((trusts or self).certificate.read_bytes())
        return directory

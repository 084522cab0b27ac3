"""A proxy between a gateway and its server, with which a test loses and delays bytes of connections."""

import contextlib
import socket
import threading


class Link:
    """One forwarded connection."""

    def __init__(self, client, server):
        self.client, self.server = client, server
        self.lock = threading.Lock()
        # What the client has sent since `hold`, if that was called.
        self.held = None
        self.has_ended = threading.Event()
        for work in (self.requests, self.replies):
            threading.Thread(target=work, daemon=True).start()

    def requests(self):
        with contextlib.suppress(OSError):
            while data := self.client.recv(1 << 16):
                with self.lock:
                    if self.held is not None:
                        self.held += data
                        continue
                    self.server.sendall(data)
        with self.lock, contextlib.suppress(OSError):
            if self.held is None:
                self.server.shutdown(socket.SHUT_WR)

    def replies(self):
        with contextlib.suppress(OSError):
            while data := self.server.recv(1 << 16):
                with contextlib.suppress(OSError):
                    self.client.sendall(data)
        self.has_ended.set()
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Listens where `at` says, a Unix socket's path or a TCP (host, port), and forwards to `server`."""

    def __init__(self, at, server):
        self.server, self.links = server, []
        self.listener = socket.create_server(at) if isinstance(at, tuple) else self.unix(at)
        self.at = self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def unix(self, path):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        return listener

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                family = socket.AF_INET if isinstance(self.server, tuple) else socket.AF_UNIX
                server = socket.socket(family)
                try:
                    server.connect(self.server if isinstance(self.server, tuple) else str(self.server))
                except OSError:
                    client.close()
                    continue
                self.links.append(Link(client, server))

    def hold(self):
        """Keeps what is sent on the present connections from now on."""
        for link in self.links:
            with link.lock:
                link.held = link.held or bytearray()

    def held(self):
        """Bytes that are kept."""
        return sum(len(link.held or b"") for link in self.links)

    def cut(self):
        """Ends the present connections for the clients; the server does not notice."""
        for link in self.links:
            with contextlib.suppress(OSError):
                link.client.shutdown(socket.SHUT_RDWR)

    def release(self):
        """What was kept reaches the server, on its old connection. Returns how many connections accepted it."""
        accepted = 0
        for link in self.links:
            with contextlib.suppress(OSError):
                if link.held:
                    link.server.sendall(link.held)
                    accepted += 1
            link.held = None if link.held is None else bytearray()
        return accepted

    def close(self):
        """Ends everything."""
        self.listener.close()
        for link in self.links:
            for end in (link.client, link.server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

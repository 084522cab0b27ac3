"""Every signal that would end a process drains the server; a server that loses its terminal or its log's reader
continues."""

import fcntl
import os
import signal
import subprocess
import termios
import time

from harness.case import ServerCase
from harness.server import MIB, STOP_SECONDS
from harness.wait import until

# One of each kind: terminal, user, timers, limits, power, real time.
ENDING = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGALRM,
    signal.SIGXCPU,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGRTMIN + 3,
    signal.SIGRTMAX,
)


class Signals(ServerCase):
    def setUp(self):
        super().setUp()
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            # Under nohup the server would ignore SIGHUP, too. A handler is reset by exec, so the server has the
            # default.
            signal.signal(signal.SIGHUP, lambda *_: None)
            self.addCleanup(signal.signal, signal.SIGHUP, signal.SIG_IGN)

    def write(self, server, byte):
        """Writes data that is acknowledged and not flushed."""
        server.open("v").pwrite(byte * MIB, 0)

    def test_every_signal_that_ends_a_process_drains(self):
        server = self.serve(config='[limits]\ndirty_age = "60s"')
        server.create("v", "4MiB")
        for number, sent in enumerate(ENDING):
            with self.subTest(signal=sent):
                self.write(server, bytes([number + 1]))
                server.process.send_signal(sent)
                self.assertEqual(server.process.wait(STOP_SECONDS), 0)
                server.start()
                self.assertEqual(server.open("v").pread(MIB, 0), bytes([number + 1]) * MIB)

    def test_signals_about_writes_that_fail_end_nothing(self):
        server = self.serve()
        server.create("v", "4MiB")
        for sent in (signal.SIGPIPE, signal.SIGXFSZ):
            server.process.send_signal(sent)
        self.write(server, b"w")
        self.assertEqual(server.stop(), 0)

    def draining(self):
        """A server that takes some seconds to drain, and when it got the signal."""
        server = self.serve(config='[limits]\ndirty_age = "60s"')
        server.create("v", "4MiB")
        server.cli("disk", "fault", "add", "default", "delay flush by=4s volume=v", "--yes")
        self.write(server, b"d")
        server.process.send_signal(signal.SIGINT)
        told = time.monotonic()
        until("the server to drain", lambda: "shutting down" in server.log(), gone=server.ended)
        return server, told

    def test_a_second_signal_at_once_is_the_first_again(self):
        server, _ = self.draining()
        for sent in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            server.process.send_signal(sent)
        self.assertEqual(server.process.wait(STOP_SECONDS), 0, server.log_tail())
        server.start()
        self.assertEqual(server.open("v").pread(MIB, 0), b"d" * MIB)

    def test_a_second_signal_later_ends_at_once(self):
        server, told = self.draining()
        until("a second to be over", lambda: time.monotonic() > told + 1.2)
        # SIGHUP of a terminal that closes meanwhile does not end the server at once.
        server.process.send_signal(signal.SIGHUP)
        until("it to be ignored", lambda: "already shutting down" in server.log(), gone=server.ended)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(STOP_SECONDS), 1)
        self.assertIn("stopped at once", server.log())

    def on_a_terminal(self, prepare=lambda: None):
        """A server in the foreground of a terminal of its own, and the other end of the terminal."""
        server = self.serve(config='[limits]\ndirty_age = "60s"')
        server.create("v", "4MiB")
        self.assertEqual(server.stop(), 0)
        terminal, its = os.openpty()

        def session():
            os.setsid()
            fcntl.ioctl(its, termios.TIOCSCTTY, 0)
            prepare()

        server.process = subprocess.Popen(server.command(), stdin=its, stdout=its, stderr=its, preexec_fn=session)
        os.close(its)
        until("the server to be ready", server.ready, gone=server.ended)
        self.write(server, b"t")
        return server, terminal

    def test_a_closed_terminal_drains(self):
        server, terminal = self.on_a_terminal()
        os.close(terminal)
        self.assertEqual(server.process.wait(STOP_SECONDS), 0)
        server.start()
        self.assertEqual(server.open("v").pread(MIB, 0), b"t" * MIB)

    def test_with_nohup_it_goes_on_without_its_terminal(self):
        server, terminal = self.on_a_terminal(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        os.close(terminal)
        # Each of these is logged, without a reader.
        for name in ("a", "b"):
            server.create(name, "1MiB")
        self.write(server, b"n")
        self.assertEqual(server.stop(), 0)
        server.start()
        self.assertEqual(server.open("v").pread(MIB, 0), b"n" * MIB)

    def test_a_log_without_reader_ends_nothing(self):
        server = self.serve()
        server.create("v", "4MiB")
        self.assertEqual(server.stop(), 0)
        for kind in ("text", "json"):
            with self.subTest(log=kind):
                reader, writer = os.pipe()
                command = [*server.command(), "--log-format", kind]
                server.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
                os.close(writer)
                os.close(reader)
                until("the server to be ready", server.ready, gone=server.ended)
                server.create(kind, "1MiB")
                self.write(server, kind[:1].encode())
                self.assertEqual(server.stop(), 0)
                server.start()
                self.assertEqual(server.open("v").pread(1, 0), kind[:1].encode())
                self.assertEqual(server.stop(), 0)

# ctest: timeout=120
"""devserverd as a process: exit statuses, signals, the port file, restarts on the same port."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import grpc

SOURCE = pathlib.Path(os.environ.get("DEVSERVER_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
DAEMON = pathlib.Path(os.environ.get("DEVSERVER_BUILD_DIR", SOURCE / "build")) / "bin" / "devserverd"
# A sanitizer makes the daemon's own part of a wait longer, not the configured one.
SLOWNESS = 5 if "asan" in DAEMON.parts[-3] else 1
SERVING = b"\x08\x01"
START_SECONDS = 20 * SLOWNESS


def health(address):
    with grpc.insecure_channel(address) as channel:
        return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)


class Daemon:
    """A running devserverd; killed at the end of the with block if it still runs."""

    def __init__(self, folder, *flags, listen="127.0.0.1:0"):
        self.port_file = pathlib.Path(folder) / "port"
        self.port_file.unlink(missing_ok=True)
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [DAEMON, "--listen", listen, "--port-file", self.port_file, *flags], stderr=self.log)

    def __enter__(self):
        deadline = time.monotonic() + START_SECONDS
        while not self.port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"devserverd did not start: {self.said()}")
            time.sleep(0.01)
        self.port = int(self.port_file.read_text())
        self.address = f"127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self, seconds, number=signal.SIGTERM):
        """Sends the signal; the exit status and how long that took."""
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(timeout=seconds)
        return status, time.monotonic() - began


class DaemonTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_to_end(self, *flags):
        return subprocess.run([DAEMON, *flags], capture_output=True, text=True, timeout=START_SECONDS)

    def config(self, text):
        path = self.folder / "devserverd.toml"
        path.write_text(text)
        return "--config", path

    def open_silent_stream(self, address, method):
        """A call that was opened and then says nothing; it stays open until the server ends it."""
        channel = grpc.insecure_channel(address)
        self.addCleanup(channel.close)
        forever = threading.Event()
        self.addCleanup(forever.set)

        def requests():
            forever.wait()
            yield b""
        call = channel.stream_stream(method)(requests(), wait_for_ready=True)
        grpc.channel_ready_future(channel).result(timeout=5)
        return call

    def open_watch(self, address):
        """A WatchDevices stream from which one reply was read: it is certainly running."""
        channel = grpc.insecure_channel(address)
        self.addCleanup(channel.close)
        call = channel.unary_stream("/devserver.v1.DeviceService/WatchDevices")(b"")
        next(call)
        return call

    def test_wrong_flags_and_configuration_exit_with_2_and_say_why(self):
        for said, flags in (("--bogus", ["--bogus"]),
                            ("/nonexistent.toml", ["--config", "/nonexistent.toml"]),
                            ("did you mean limits.sessions", self.config("[limits]\nsesions = 1\n")),
                            ("--insecure", ["--listen", "0.0.0.0:0"]),
                            ("V100-SXM2-16GB", ["--simulate", "Voodoo:2"])):
            with self.subTest(said):
                ended = self.run_to_end(*flags)
                self.assertEqual(ended.returncode, 2)
                self.assertIn(said, ended.stderr)

    def test_check_config_prints_what_it_would_use_and_runs_nothing(self):
        ended = self.run_to_end(*self.config("[limits]\nsessions = 7\n"), "--check-config")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("sessions = 7", ended.stdout)

    def test_a_port_that_is_taken_exits_with_1_and_names_it(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            ended = self.run_to_end("--listen", address)
        self.assertEqual(ended.returncode, 1)
        self.assertIn(address, ended.stderr)

    def test_the_port_file_appears_when_health_says_serving(self):
        with Daemon(self.folder) as daemon:
            self.assertEqual(health(daemon.address), SERVING)

    def test_the_log_says_version_devices_limits_and_addresses_at_the_start(self):
        with Daemon(self.folder, "--simulate", "T4:2") as daemon:
            said = daemon.said()
        for words in ("devserverd 0.", "cpu:0", "gpu:1", "T4", "limits: 256 sessions", daemon.address):
            self.assertIn(words, said)

    def test_sigterm_and_sigint_stop_an_idle_daemon_at_once_with_0(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number), Daemon(self.folder) as daemon:
                status, seconds = daemon.stop(START_SECONDS, number)
                self.assertEqual(status, 0, daemon.said())
                self.assertLess(seconds, 1 * SLOWNESS)

    def test_sigterm_with_open_streams_exits_within_the_grace_time(self):
        with Daemon(self.folder, *self.config("[limits]\ngrace_seconds = 1\n")) as daemon:
            self.open_silent_stream(daemon.address, "/devserver.v1.ComputeService/Execute")
            self.open_silent_stream(daemon.address, "/devserver.v1.TensorService/Upload")
            self.open_watch(daemon.address)
            status, seconds = daemon.stop(START_SECONDS)
            self.assertEqual(status, 0, daemon.said())
            self.assertLess(seconds, 1 + 1 * SLOWNESS)

    def test_a_second_signal_ends_a_drain_at_once_with_1(self):
        with Daemon(self.folder, *self.config("[limits]\ngrace_seconds = 60\n")) as daemon:
            watch = self.open_watch(daemon.address)
            daemon.process.send_signal(signal.SIGTERM)
            # The drain has begun when a new call is refused; the watch keeps it from ending.
            with grpc.insecure_channel(daemon.address) as channel:
                deadline = time.monotonic() + START_SECONDS
                while time.monotonic() < deadline:
                    try:
                        channel.unary_unary("/devserver.v1.DeviceService/ListDevices")(b"", timeout=5)
                    except grpc.RpcError:
                        break
            self.assertIsNone(daemon.process.poll())
            status, seconds = daemon.stop(START_SECONDS)
            self.assertEqual(status, 1)
            self.assertLess(seconds, 1 * SLOWNESS)
            watch.cancel()

    def test_it_restarts_on_the_same_port_within_a_second(self):
        with Daemon(self.folder) as first:
            watch = self.open_watch(first.address)  # So that the port has connections that linger.
            first.process.kill()
            first.process.wait()
            began = time.monotonic()
            with Daemon(self.folder, listen=first.address) as second:
                self.assertEqual(health(second.address), SERVING)
                self.assertLess(time.monotonic() - began, 1 * SLOWNESS)
                watch.cancel()

    def test_a_unix_socket_left_by_a_killed_daemon_is_taken_over(self):
        path = self.folder / "socket"
        with Daemon(self.folder, "--unix-socket", path) as first:
            self.assertEqual(health(f"unix:{path}"), SERVING)
            first.process.kill()
        with Daemon(self.folder, "--unix-socket", path) as second:
            self.assertEqual(health(f"unix:{path}"), SERVING)
            self.assertEqual(second.stop(START_SECONDS)[0], 0)
        self.assertFalse(path.exists())

    def test_ipv6_loopback_is_served(self):
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6):
                pass
        except OSError as error:
            self.skipTest(f"no IPv6 here: {error}")
        with Daemon(self.folder, listen="[::1]:0") as daemon:
            self.assertEqual(health(f"[::1]:{daemon.port}"), SERVING)

    def test_openmp_waits_passively_unless_told_otherwise(self):
        for given, expected in ((None, "passive"), ("active", "active")):
            environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
            if given:
                environment["OMP_WAIT_POLICY"] = given
            with self.subTest(given), unittest.mock.patch.dict(os.environ, environment, clear=True), \
                    Daemon(self.folder) as daemon:
                variables = pathlib.Path(f"/proc/{daemon.process.pid}/environ").read_text().split("\0")
                self.assertIn(f"OMP_WAIT_POLICY={expected}", variables)


if __name__ == "__main__":
    if not DAEMON.exists():
        sys.exit(f"there is no {DAEMON}")
    unittest.main(verbosity=2)

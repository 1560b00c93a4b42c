# ctest: serial, timeout=120
"""devserverd's end and its next beginning: SIGTERM with open streams, a restart on the same port, a port that is taken."""

import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dynamic_client import DAEMON, Client, Daemon, Refused, wait_for  # noqa: E402

V1 = "devserver.v1."


class DrainTest(unittest.TestCase):
    def stop(self, daemon, seconds):
        """SIGTERM; how long it took to end, which must be with status 0 within `seconds`."""
        daemon.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        daemon.process.wait(seconds)
        self.assertEqual(daemon.process.returncode, 0, daemon.log())
        return time.monotonic() - began

    def is_unavailable(self, client):
        try:
            client.call(V1 + "TensorService/ListTensors", {})  # Described before: reflection drains too.
        except Refused as refused:
            # CANCELLED is gRPC's own word for a call that meets the end of its connection.
            self.assertIn(refused.code, ("UNAVAILABLE", "CANCELLED"))
            return True
        return False

    def test_idle_streams_do_not_hold_up_the_end(self):
        with Daemon(config="[limits]\ngrace_seconds = 10\n") as daemon, Client(daemon.address) as client:
            token = client.call(V1 + "SessionService/OpenSession", {"name": "idle"})["token"]
            with Client(daemon.address, token) as own:
                own.call(V1 + "TensorService/CreateTensor", {"shape": [1000], "device": "gpu:0"})
                execute, _ = own.start(V1 + "ComputeService/Execute", {"commands": [{"number": 1, "sync": {}}]}, keep_open=True)
                next(execute)
                watch, _ = client.start(V1 + "DeviceService/WatchDevices", {"intervalSeconds": 0.1})
                next(watch)
                took = self.stop(daemon, 15)
                print(f"ended after {took:.2f} s, with a grace time of 10 s")
                self.assertLess(took, 5)
                self.assertNotEqual(execute.code().name, "OK")

    def test_streams_that_stay_open_are_cut_at_the_grace_time(self):
        with Daemon(config="[limits]\ngrace_seconds = 1\n") as daemon, Client(daemon.address) as client:
            tensor = client.call(V1 + "TensorService/CreateTensor", {"shape": [32 << 20]})["tensor"]["id"]
            download, _ = client.start(V1 + "TensorService/Download", {"id": tensor})
            next(download)
            header = {"header": {"shape": [1000]}}
            client.start(V1 + "TensorService/Upload", header, keep_open=True)
            health, _ = client.start("grpc.health.v1.Health/Watch", {})
            self.assertEqual(client.dict_of(next(health)), {"status": "SERVING"})
            took = self.stop(daemon, 10)
            print(f"ended after {took:.2f} s, with a grace time of 1 s")
            self.assertGreater(took, 0.5)
            self.assertLess(took, 1 + 1.5)

    def test_a_second_signal_ends_it_at_once(self):
        with Daemon(config="[limits]\ngrace_seconds = 60\n") as daemon, Client(daemon.address) as client:
            tensor = client.call(V1 + "TensorService/CreateTensor", {"shape": [32 << 20]})["tensor"]["id"]
            download, _ = client.start(V1 + "TensorService/Download", {"id": tensor})
            next(download)
            health, _ = client.start("grpc.health.v1.Health/Watch", {})
            next(health)
            daemon.process.send_signal(signal.SIGTERM)
            self.assertEqual(client.dict_of(next(health)), {"status": "NOT_SERVING"})  # It drains.
            wait_for(lambda: self.is_unavailable(client), "new calls are refused")
            daemon.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            daemon.process.wait(10)
            self.assertLess(time.monotonic() - began, 2)
            self.assertNotEqual(daemon.process.returncode, 0)

    def test_a_restart_serves_on_the_same_port_within_a_second(self):
        with Daemon() as first:
            with Client(first.address) as client:
                server_id = client.call(V1 + "SessionService/OpenSession", {})["serverId"]
                client.call(V1 + "TensorService/CreateTensor", {"shape": [1000], "device": "gpu:0"})
                self.stop(first, 15)
                began = time.monotonic()
                with Daemon(listen=first.address) as second, Client(second.address) as again:
                    self.assertEqual(again.call("grpc.health.v1.Health/Check", {}), {"status": "SERVING"})
                    took = time.monotonic() - began
                    print(f"serves {took:.2f} s after the restart")
                    self.assertLess(took, 1)
                    self.assertNotEqual(again.call(V1 + "SessionService/OpenSession", {})["serverId"], server_id)

    def test_a_killed_server_can_be_restarted_on_its_port(self):
        with Daemon() as first, Client(first.address) as client:
            execute, _ = client.start(V1 + "ComputeService/Execute", {"commands": [{"number": 1, "sync": {}}]}, keep_open=True)
            next(execute)
            first.process.kill()
            first.process.wait()
            with Daemon(listen=first.address) as second, Client(second.address) as again:
                again.call(V1 + "TensorService/CreateTensor", {"fill": 1})

    def test_a_port_that_is_taken_is_refused_clearly(self):
        with Daemon() as first, tempfile.TemporaryDirectory() as folder:
            second = subprocess.run(
                [DAEMON, "--listen", first.address, "--port-file", f"{folder}/port"], capture_output=True, text=True,
                timeout=30)
            self.assertEqual(second.returncode, 1)
            self.assertIn(first.address, second.stderr)
            self.assertIn("in use", second.stderr)
            self.assertFalse(pathlib.Path(folder, "port").exists())
            with Client(first.address) as client:
                client.call(V1 + "TensorService/CreateTensor", {"fill": 1})


if __name__ == "__main__":
    unittest.main()

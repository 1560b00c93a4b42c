# ctest: serial, nosanitizer, timeout=120
"""Clients that die or stall: what they held is back in time, and it costs the server nothing meanwhile."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dynamic_client import Client, Daemon, Refused, wait_for  # noqa: E402

V1 = "devserver.v1."
LEASE_SECONDS = 2
GIB = 1 << 30
MIB = 1 << 20


def used_bytes(client):
    devices = client.call(V1 + "DeviceService/ListDevices", {})["devices"]
    return sum(int(device.get("memoryUsedBytes", 0)) for device in devices)


def hold(address):
    """The child: takes 1 GiB on gpu:1 in a session, leaves a stream and an upload open, and waits to be killed."""
    client = Client(address)
    session = client.call(V1 + "SessionService/OpenSession", {"name": "victim", "leaseSeconds": LEASE_SECONDS})
    with Client(address, session["token"]) as own:
        for _ in range(4):
            own.call(V1 + "TensorService/CreateTensor", {"shape": [64 * MIB], "device": "gpu:1", "fill": 1})
        header = {"header": {"shape": [MIB], "device": "gpu:0"}}
        own.start(V1 + "TensorService/Upload", header, {"chunk": ""}, keep_open=True)
        stream, _ = own.start(V1 + "ComputeService/Execute", {"commands": [{"number": 1, "sync": {}}]}, keep_open=True)
        next(stream)
        print("held", flush=True)
        signal.pause()


class KillTest(unittest.TestCase):
    def test_a_killed_client_that_held_a_gibibyte_gives_it_back_within_its_lease_and_a_second(self):
        with Daemon() as daemon, Client(daemon.address) as client:
            kept = client.call(V1 + "TensorService/CreateTensor", {"shape": [1000], "device": "gpu:1"})
            baseline = used_bytes(client)
            child = subprocess.Popen([sys.executable, __file__, "hold", daemon.address], stdout=subprocess.PIPE, text=True)
            try:
                self.assertEqual(child.stdout.readline(), "held\n")
                self.assertGreaterEqual(used_bytes(client), baseline + GIB)
                child.kill()
                child.wait()
                killed = time.monotonic()
                wait_for(lambda: used_bytes(client) == baseline, "the killed client's memory is back")
                took = time.monotonic() - killed
            finally:
                child.kill()
                child.wait()
                child.stdout.close()
            print(f"back {took:.2f} s after the kill, with a lease of {LEASE_SECONDS} s")
            self.assertLessEqual(took, LEASE_SECONDS + 1)
            # Nobody else noticed.
            client.call(V1 + "TensorService/FetchTensor", {"id": kept["tensor"]["id"]})
            sessions = client.call(V1 + "SessionService/ListSessions", {})["sessions"]
            self.assertEqual([session.get("isDefault", False) for session in sessions], [True])

    def test_a_stalled_reader_of_512_mib_costs_little_memory_and_is_ended(self):
        config = "[limits]\nstall_seconds = 3\n"
        with Daemon(config=config) as daemon, Client(daemon.address) as client, Client(daemon.address) as reader:
            tensor = client.call(V1 + "TensorService/CreateTensor",
                                 {"shape": [128 * MIB], "device": "gpu:0", "fill": 1})["tensor"]["id"]
            # What a first download of any size costs (threads, buffers) is not this one's.
            small = client.call(V1 + "TensorService/CreateTensor", {"shape": [8 * MIB]})["tensor"]["id"]
            client.call(V1 + "TensorService/Download", {"id": small})
            before = daemon.rss_bytes()
            download, _ = reader.start(V1 + "TensorService/Download", {"id": tensor})
            self.assertIn("header", reader.dict_of(next(download)))
            # Nothing more is read. The tensor is deleted: its memory is there for as long as the stream is.
            client.call(V1 + "TensorService/DeleteTensors", {"ids": [tensor, small]})
            most = before
            began = time.monotonic()
            while used_bytes(client) > 0 and time.monotonic() - began < 30:
                most = max(most, daemon.rss_bytes())
            took = time.monotonic() - began
            print(f"{(most - before) / MIB:.1f} MiB more at the most, ended after {took:.1f} s")
            self.assertLess(most - before, 8 * MIB)
            self.assertGreater(took, 3 - 1)
            self.assertLess(took, 3 + 2)
            with self.assertRaises(grpc.RpcError):
                for _ in download:
                    pass
            self.assertEqual(download.code().name, "CANCELLED")

    def test_a_message_of_a_gibibyte_costs_what_the_transport_may_hold_and_is_refused(self):
        limit = 64 * MIB
        with Daemon(config='[limits]\ntransport_bytes = "64MiB"\n') as daemon, Client(daemon.address) as client:
            kept = client.call(V1 + "TensorService/CreateTensor", {"shape": [3], "fill": 7})["tensor"]["id"]
            before = daemon.rss_bytes()
            for method in ("TensorService/CreateTensor", "ComputeService/Execute", "TensorService/Upload"):
                with grpc.insecure_channel(daemon.address, options=[("grpc.max_send_message_length", -1)]) as channel:
                    send = channel.stream_unary(f"/{V1}{method}")
                    with self.assertRaises(grpc.RpcError) as refused:
                        send(iter([bytes(GIB)]), timeout=60)
                    self.assertEqual(refused.exception.code().name, "RESOURCE_EXHAUSTED", method)
            most = daemon.peak_rss_bytes() - before
            print(f"{most / MIB:.1f} MiB more at the most")
            self.assertLess(most, 2 * limit)
            fetched = client.call(V1 + "TensorService/FetchTensor", {"id": kept})
            self.assertEqual(fetched["values"]["numbers"], [7.0, 7.0, 7.0])

    def test_an_upload_that_lost_its_client_leaves_nothing(self):
        with Daemon() as daemon, Client(daemon.address) as client:
            child = subprocess.Popen([sys.executable, __file__, "hold", daemon.address], stdout=subprocess.PIPE, text=True)
            with child.stdout:
                self.assertEqual(child.stdout.readline(), "held\n")
                child.kill()
                child.wait()
            # The upload's memory does not wait for the lease: the connection is gone.
            gpu = {"name": "gpu:0"}
            wait_for(lambda: client.call(V1 + "DeviceService/GetDevice", gpu).get("memoryUsedBytes", "0") == "0",
                     "the upload's memory is back", seconds=LEASE_SECONDS)

    def test_a_client_that_comes_back_within_its_lease_finds_its_handles(self):
        with Daemon() as daemon, Client(daemon.address) as client:
            token = client.call(V1 + "SessionService/OpenSession", {"leaseSeconds": 30})["token"]
            with Client(daemon.address, token) as first:
                first.call(V1 + "TensorService/CreateTensor", {"id": 5, "fill": 3})
                first.call(V1 + "ComputeService/Execute", {"commands": [{"number": 1, "create": {"id": 6, "fill": 4}}]})
            with Client(daemon.address, token) as again:
                attached = again.call(V1 + "SessionService/AttachSession", {"token": token})
                self.assertEqual(attached["receivedThrough"], "1")
                values = [again.call(V1 + "TensorService/FetchTensor", {"id": i})["values"]["numbers"] for i in (5, 6)]
                self.assertEqual(values, [[3.0], [4.0]])
                again.call(V1 + "SessionService/CloseSession", {})
                with self.assertRaises(Refused) as refused:
                    again.call(V1 + "TensorService/FetchTensor", {"id": 5})
                self.assertEqual(refused.exception.detail["reason"], "SESSION_EXPIRED")


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        hold(sys.argv[2])
        os._exit(0)
    unittest.main()

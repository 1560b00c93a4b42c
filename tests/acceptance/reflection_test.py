# ctest: timeout=120
"""What grpcurl does, done by a client that knows only what reflection tells it: list, describe, and a call of every method
with JSON; and the very grpcurl commands that README.md shows."""

import base64
import json
import math
import pathlib
import re
import shlex
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from dynamic_client import SOURCE_DIR, Client, Daemon, Refused  # noqa: E402

V1 = "devserver.v1."
SERVICES = {"ComputeService", "DeviceService", "SessionService", "TensorService"}


def b64(data):
    return base64.b64encode(data).decode()


def readme_commands(text):
    """The grpcurl commands of the code blocks: (words, whether the comment line above says that it is refused)."""
    commands = []
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        above = ""
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if line.lstrip().startswith("grpcurl "):
                commands.append((shlex.split(line, comments=True), "refused" in above))
            above = line if line.lstrip().startswith("#") else ""
    return commands


def run_command(client, words):
    """What `grpcurl WORDS` does. Knows the few flags that the README uses."""
    body, metadata, rest, words = "{}", [], [], list(words[1:])
    while words:
        word = words.pop(0)
        if word == "-d":
            body = words.pop(0)
        elif word == "-H":
            key, _, value = words.pop(0).partition(":")
            metadata.append((key.strip().lower(), value.strip()))
        elif word == "-max-time":
            words.pop(0)
        elif word not in ("-plaintext", "-emit-defaults"):
            if word.startswith("-"):
                raise AssertionError(f"grpcurl {word}: this test does not know that flag")
            rest.append(word)
    address, verb = rest[0], rest[1] if len(rest) > 1 else "list"
    assert re.fullmatch(r"(127\.0\.0\.1|localhost):50151", address), f"{address} is not where devserverd listens"
    if verb == "list":
        return client.list() if len(rest) == 2 else [m.name for m in client.describe(rest[2]).methods]
    if verb == "describe":
        return [client.describe(symbol) for symbol in (rest[2:] or client.list())]
    # Several JSON values after one another are the messages of a stream.
    bodies, decoder = [], json.JSONDecoder()
    while body.strip():
        value, end = decoder.raw_decode(body.strip())
        bodies.append(value)
        body = body.strip()[end:]
    watches = verb.endswith("/WatchDevices") or verb.endswith("/Watch")
    return client.call(verb.replace(".", "/") if "/" not in verb else verb, *bodies, metadata=metadata,
                       replies_max=1 if watches else None)


class ReflectionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(Daemon())
        cls.client = cls.enterClassContext(Client(cls.daemon.address))

    def call(self, method, *bodies, **options):
        return self.client.call(V1 + method, *bodies, **options)

    def create(self, **body):
        return int(self.call("TensorService/CreateTensor", body)["tensor"]["id"])

    def numbers(self, tensor):
        values = self.call("TensorService/FetchTensor", {"id": tensor}).get("values", {})
        return [float(n) for n in values.get("numbers", []) + values.get("integers", [])]

    def test_every_service_is_listed(self):
        listed = self.client.list()
        for service in SERVICES:
            self.assertIn(V1 + service, listed)
        self.assertIn("grpc.health.v1.Health", listed)
        self.assertIn("grpc.reflection.v1alpha.ServerReflection", listed)

    def test_every_service_method_and_message_is_described_by_its_name(self):
        for service in self.client.list():
            for method in self.client.describe(service).methods:
                self.assertEqual(self.client.describe(method.full_name).full_name, method.full_name)
                for message in (method.input_type, method.output_type):
                    self.assertEqual(self.client.describe(message.full_name).full_name, message.full_name)

    def test_every_method_can_be_called_with_json(self):
        a = self.create(shape=[2, 3], fill=2, device="gpu:0")
        b = self.create(shape=[3, 2], values={"numbers": [1, 2, 3, 4, 5, 6]}, device="gpu:0")
        with Client(self.daemon.address, self.call("SessionService/OpenSession", {"name": "json"})["token"]) as own:
            token = dict(own._metadata)["devserver-session"]
            header = {"header": {"shape": [2], "dtype": "F32", "device": "gpu:1", "label": "by hand"}}
            calls = {
                "DeviceService/ListDevices": [{}],
                "DeviceService/GetDevice": [{"name": "gpu:1"}],
                "DeviceService/WatchDevices": [{"intervalSeconds": 0.05}],
                "DeviceService/ListOps": [{}],
                "SessionService/OpenSession": [{"name": "json", "leaseSeconds": 1}],
                "SessionService/AttachSession": [{"token": token}],
                "SessionService/KeepAlive": [{}],
                "SessionService/GetSession": [{}],
                "SessionService/ListSessions": [{}],
                "SessionService/CloseSession": [{}],
                "TensorService/CreateTensor": [{"shape": ["2", 2], "dtype": "BF16", "normal": {"seed": "7"}}],
                "TensorService/GetTensor": [{"id": a}],
                "TensorService/ListTensors": [{"device": "gpu:0", "pageSize": 1}],
                "TensorService/CopyTensor": [{"source": a, "device": "gpu:1"}],
                "TensorService/EnsureOn": [{"source": a, "device": "cuda:0"}],
                "TensorService/FetchTensor": [{"id": str(a)}],
                "TensorService/DeleteTensors": [{"ids": [self.create(), self.create()]}],
                "TensorService/Upload": [header, {"chunk": b64(struct.pack("<2f", 1, 2))}],
                "TensorService/Download": [{"id": b, "offsetBytes": 4, "sizeBytes": 8}],
                "ComputeService/MatMul": [{"a": a, "b": b, "transposeA": True, "transposeB": True}],
                "ComputeService/Dense": [{"x": a, "w": b, "activation": "RELU"}],
                "ComputeService/Apply": [{"name": "sum", "inputs": [b], "attributes": {"axes": [-1], "keepDims": True}}],
                "ComputeService/Run": [{"commands": [{"create": {"id": 900, "shape": [2], "fill": 3}},
                                                     {"op": {"name": "neg", "inputs": [900]}}, {"fetch": {"id": 900}}]}],
                "ComputeService/Execute": [{"commands": [{"number": 1, "create": {"id": 901, "fill": 5}},
                                                         {"number": 2, "fetch": {"id": 901}}]},
                                           {"commands": [{"number": "3", "sync": {}}]}],
            }
            of_session = {"SessionService/CloseSession", "SessionService/GetSession", "SessionService/KeepAlive"}
            replies = {}
            for method, bodies in calls.items():
                if method != "SessionService/CloseSession":
                    client = own if method in of_session else self.client
                    most = 2 if method == "DeviceService/WatchDevices" else None
                    replies[method] = client.call(V1 + method, *bodies, replies_max=most)
            replies["SessionService/CloseSession"] = own.call(V1 + "SessionService/CloseSession", {})
        every = {f"{service}/{method.name}" for service in SERVICES
                 for method in self.client.describe(V1 + service).methods}
        self.assertEqual(set(replies), every)
        self.check_replies(replies)

    def check_replies(self, replies):
        """A look at each kind of reply: it is about what was asked."""
        self.assertEqual([d["name"] for d in replies["DeviceService/ListDevices"]["devices"]], ["cpu:0", "gpu:0", "gpu:1"])
        self.assertEqual(replies["DeviceService/GetDevice"]["kind"], "SIMULATED")
        self.assertEqual(len(replies["DeviceService/WatchDevices"]), 2)
        self.assertIn("matmul", [op["name"] for op in replies["DeviceService/ListOps"]["ops"]])
        self.assertEqual(replies["TensorService/CreateTensor"]["tensor"]["sizeBytes"], "8")
        self.assertEqual(len(replies["TensorService/ListTensors"]["tensors"]), 1)
        self.assertEqual(replies["TensorService/EnsureOn"].get("copied", False), False)
        self.assertEqual(replies["TensorService/FetchTensor"]["values"]["numbers"], [2.0] * 6)
        self.assertEqual(replies["TensorService/DeleteTensors"]["freedBytes"], "8")
        self.assertEqual(replies["TensorService/Upload"]["tensor"]["label"], "by hand")
        chunks = [base64.b64decode(part["chunk"]) for part in replies["TensorService/Download"] if "chunk" in part]
        self.assertEqual(b"".join(chunks), struct.pack("<2f", 2, 3))
        self.assertEqual(replies["ComputeService/MatMul"]["tensor"]["shape"], ["3", "3"])
        self.assertEqual(replies["ComputeService/Apply"]["tensor"]["shape"], ["3", "1"])
        self.assertEqual(replies["ComputeService/Run"]["replies"][2]["fetched"]["values"]["numbers"], [3.0, 3.0])
        executed = replies["ComputeService/Execute"]
        self.assertEqual(executed[-1]["doneThrough"], "3")
        fetched = [reply["fetched"] for part in executed for reply in part.get("replies", [])]
        self.assertEqual([f["values"]["numbers"] for f in fetched], [[5.0]])

    def test_special_numbers_survive_json_both_ways(self):
        numbers = ["NaN", "Infinity", "-Infinity", -0.0, 0.0, 1.5]
        for dtype in ("F32", "F64", "F16", "BF16"):
            for device in ("cpu:0", "gpu:0"):
                tensor = self.create(shape=[6], dtype=dtype, device=device, values={"numbers": numbers})
                copy = int(self.call("TensorService/CopyTensor", {"source": tensor, "device": "gpu:1"})["tensor"]["id"])
                reply = self.call("TensorService/FetchTensor", {"id": copy})["values"]["numbers"]
                self.assertEqual(reply[:3], ["NaN", "Infinity", "-Infinity"])
                self.assertEqual(reply[3:], [0, 0, 1.5])
                self.assertEqual([math.copysign(1, n) for n in reply[3:5]], [-1, 1])
        filled = self.create(shape=[2], fill=-0.0)
        self.assertEqual([math.copysign(1, n) for n in self.numbers(filled)], [-1, -1])
        self.assertEqual([str(n) for n in self.numbers(self.create(fill="-Infinity"))], ["-inf"])

    def test_integers_beyond_two_to_the_53_survive_json(self):
        integers = [2**53 + 1, -(2**63), 2**63 - 1, 0]
        tensor = self.create(shape=[4], dtype="I64", values={"integers": integers})
        reply = self.call("TensorService/FetchTensor", {"id": tensor})
        self.assertEqual([int(n) for n in reply["values"]["integers"]], integers)

    def test_scalars_and_empty_tensors_work_everywhere(self):
        for shape, count in (([], 1), ([0], 0), ([3, 0, 2], 0)):
            for dtype in ("F32", "F64", "F16", "BF16", "I32", "I64", "U8", "BOOL"):
                with self.subTest(shape=shape, dtype=dtype):
                    self.check_shape(shape, count, dtype)

    def check_shape(self, shape, count, dtype):
        zeros = self.create(shape=shape, dtype=dtype, device="gpu:0")
        given = self.create(shape=shape, dtype=dtype, device="gpu:0", values={"numbers": [1] * count})
        self.assertEqual(self.numbers(given), [1.0] * count)
        copy = self.call("TensorService/CopyTensor", {"source": given, "device": "gpu:1"})
        self.assertEqual(copy["tensor"].get("shape", []), [str(d) for d in shape])
        self.assertEqual(self.numbers(int(copy["tensor"]["id"])), [1.0] * count)
        equal = self.call("ComputeService/Apply", {"name": "equal", "inputs": [zeros, given]})["tensor"]
        self.assertEqual(equal.get("shape", []), [str(d) for d in shape])
        self.assertEqual(self.numbers(int(equal["id"])), [0.0] * count)
        size = int(copy["tensor"].get("sizeBytes", 0))
        header = {"shape": shape, "dtype": dtype, "device": "gpu:1"}
        parts = [{"header": header}] + ([{"chunk": b64(bytes(size))}] if size else [])
        uploaded = self.call("TensorService/Upload", *parts)["tensor"]
        self.assertEqual(self.numbers(int(uploaded["id"])), [0.0] * count)
        download = self.call("TensorService/Download", {"id": uploaded["id"]})
        self.assertEqual(b"".join(base64.b64decode(part.get("chunk", "")) for part in download), bytes(size))
        listed = self.call("TensorService/ListTensors", {"device": "gpu:1", "pageSize": 1000})["tensors"]
        self.assertIn(uploaded["id"], [listing["tensor"]["id"] for listing in listed])
        ids = [zeros, given, copy["tensor"]["id"], equal["id"], uploaded["id"]]
        freed = self.call("TensorService/DeleteTensors", {"ids": ids}).get("freedBytes", "0")
        self.assertEqual(int(freed), 4 * size + count)

    def test_errors_come_with_typed_details(self):
        x, y = self.create(shape=[2], device="gpu:0"), self.create(shape=[2], device="gpu:1")
        with self.assertRaises(Refused) as refused:
            self.call("ComputeService/Apply", {"name": "add", "inputs": [x, y]})
        self.assertEqual(refused.exception.code, "INVALID_ARGUMENT")
        self.assertIn("CopyTensor", refused.exception.message)
        self.assertEqual(refused.exception.detail["reason"], "DEVICE_MISMATCH")
        cure = refused.exception.detail["cure"]
        copied = self.call("TensorService/CopyTensor", cure)["tensor"]["id"]
        pair = [copied, y] if cure["device"] == "gpu:1" else [x, copied]
        self.call("ComputeService/Apply", {"name": "add", "inputs": pair})

    def test_health_is_served(self):
        self.assertEqual(self.client.call("grpc.health.v1.Health/Check", {}), {"status": "SERVING"})
        watched = self.client.call("grpc.health.v1.Health/Watch", {}, replies_max=1)
        self.assertEqual(watched, [{"status": "SERVING"}])


class ReadmeTest(unittest.TestCase):
    def test_commands_are_found_in_code_blocks(self):
        text = "`grpcurl no`\n```sh\n# this one is refused: so\ngrpcurl -d '{\"a\":\n  1}' x y\n  grpcurl \\\n   z # why\n```\n"
        self.assertEqual(readme_commands(text.replace(":\n  1", ": 1")),
                         [(["grpcurl", "-d", '{"a": 1}', "x", "y"], True), (["grpcurl", "z"], False)])

    def test_every_grpcurl_command_of_the_readme_works(self):
        commands = readme_commands((SOURCE_DIR / "README.md").read_text())
        shown = " ".join(" ".join(words) for words, _ in commands)
        for wanted in ("list", "describe", "CreateTensor", "CopyTensor", "MatMul", "Dense", "FetchTensor", "ListTensors"):
            self.assertIn(wanted, shown, f"README.md shows no grpcurl command with {wanted}")
        self.assertIn("gpu:1", shown)
        with Daemon(simulate="V100-SXM2-16GB:4") as daemon, Client(daemon.address) as client:
            for words, is_refused in commands:
                with self.subTest(command=shlex.join(words)):
                    if is_refused:
                        self.assertRaises(Refused, run_command, client, words)
                    else:
                        self.assertTrue(run_command(client, words))


if __name__ == "__main__":
    unittest.main()

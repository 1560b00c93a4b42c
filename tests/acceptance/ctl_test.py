# ctest: timeout=120
"""devserverctl at a running devserverd: every command, its words, its JSON, its exit status, its progress bar."""

import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import numpy

SOURCE = pathlib.Path(os.environ.get("DEVSERVER_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("DEVSERVER_BUILD_DIR", SOURCE / "build")) / "bin"
START_SECONDS = 60  # Under a sanitizer on a busy machine.
REFUSED, USAGE, UNREACHABLE = 1, 2, 3

folder = None
daemon = None
address = None


def setUpModule():
    global folder, daemon, address
    folder = tempfile.TemporaryDirectory()
    port_file = pathlib.Path(folder.name) / "port"
    daemon = subprocess.Popen([
        BIN / "devserverd", "--listen", "127.0.0.1:0", "--port-file", port_file, "--unix-socket",
        path("socket"), "--simulate", "V100-SXM2-16GB:2", "--log-level", "warn"])
    deadline = time.monotonic() + START_SECONDS
    while not port_file.exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise AssertionError("devserverd did not start")
        time.sleep(0.01)
    address = f"127.0.0.1:{port_file.read_text().strip()}"


def tearDownModule():
    daemon.terminate()
    daemon.wait(timeout=START_SECONDS)
    folder.cleanup()


def path(name):
    return os.path.join(folder.name, name)


def run(*arguments, server=None, environment=None):
    """The finished process; `server` None means the one of this module, through the environment."""
    variables = {**os.environ, "DEVSERVER_ADDRESS": server or address, **(environment or {})}
    return subprocess.run([BIN / "devserverctl", *map(str, arguments)], env=variables,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)


class Ctl(unittest.TestCase):

    def setUp(self):
        self.ok("rm", "--all")
        self.addCleanup(lambda: self.assertEqual(self.used_bytes(), 0))
        self.addCleanup(lambda: self.ok("rm", "--all"))

    def ok(self, *arguments):
        """stdout of a command that succeeds and says nothing on stderr."""
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), f"{arguments}: {done.stdout}")
        return done.stdout

    def json(self, *arguments):
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, code, *arguments, **options):
        """stderr of a command that ends with `code` and prints nothing on stdout."""
        done = run(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (code, ""), f"{arguments}: {done.stderr}")
        self.assertTrue(done.stderr.startswith("devserverctl: "), done.stderr)
        return done.stderr

    def create(self, *arguments):
        return int(self.json("create", *arguments)["tensor"]["id"])

    def values(self, tensor):
        values = self.json("show", tensor)["values"]
        return values["numbers"] or values["integers"]

    def used_bytes(self):
        return sum(int(d["memoryUsedBytes"]) for d in self.json("devices")["devices"])


class Asking(Ctl):

    def test_devices_are_listed_and_shown(self):
        text = self.ok("devices")
        self.assertRegex(text, r"(?m)^gpu:1 +simulated +Tesla V100-SXM2-16GB")
        self.assertEqual([d["name"] for d in self.json("devices")["devices"]], ["cpu:0", "gpu:0", "gpu:1"])
        self.assertIn("its own clock is at", self.ok("devices", "cuda:1"))
        self.assertEqual(self.json("devices", "gpu")["name"], "gpu:0")
        self.assertIn("cpu:0, gpu:0, gpu:1", self.refused(REFUSED, "devices", "gpu:10"))

    def test_ops_are_listed_and_explained(self):
        self.assertRegex(self.ok("ops"), r"(?m)^matmul +2 +f32")
        self.assertIn("axes", self.ok("ops", "softmax"))
        self.assertIn("F32", self.json("ops", "add")["dtypesByDevice"]["gpu:0"]["dtypes"])
        self.assertGreater(len(self.json("ops", "--device", "gpu:1")["ops"]), 20)
        self.assertIn("devserverctl ops lists them", self.refused(REFUSED, "ops", "frobnicate"))

    def test_health_and_wait_say_that_it_serves(self):
        self.assertEqual(self.ok("health"), "SERVING\n")
        self.assertEqual(self.ok("wait", "--for", 10), "SERVING\n")
        self.assertEqual(self.json("health"), {"status": "SERVING"})
        self.ok("health", "--service", "")
        self.refused(REFUSED, "health", "--service", "no.such.Service")

    def test_wait_sees_a_server_that_starts_later(self):
        socket = path("late")
        waiting = subprocess.Popen([BIN / "devserverctl", "-s", f"unix:{socket}", "wait", "--for", "60"],
                                   stdout=subprocess.PIPE)
        with subprocess.Popen([BIN / "devserverd", "--listen", "127.0.0.1:0", "--unix-socket", socket,
                               "--log-level", "warn"]) as late:
            self.assertEqual(waiting.communicate(timeout=60)[0], b"SERVING\n")
            late.terminate()

    def test_smi_is_a_box_with_devices_above_sessions(self):
        self.create("1024", "--ones", "-d", "gpu:1", "--dtype", "u8")
        lines = self.ok("smi").splitlines()
        box = [line for line in lines if line.startswith(("|", "+"))]
        self.assertEqual({len(line) for line in box}, {91}, "\n".join(lines))
        text = "\n".join(lines)
        self.assertRegex(text, r"\| gpu:1  Tesla V100-SXM2-16GB   simulated \|")
        self.assertRegex(text, r"1024B / 16160MiB")
        self.assertRegex(text, r"\|  gpu:1    default .* 1024B \|")
        self.assertLess(text.index("gpu:1  Tesla"), text.index("Sessions:"))
        document = self.json("smi")
        self.assertEqual(len(document["devices"]), 3)
        self.assertEqual(document["sessions"][0]["bytesByDevice"]["gpu:1"], "1024")

    def test_smi_watches_as_often_as_asked(self):
        text = self.ok("smi", "--watch", 0.05, "--count", 3)
        self.assertEqual(text.count("Sessions:"), 3)
        self.assertIn("leave one of them out", run("smi", "--watch", 1, "--json").stderr)

    def test_sessions_and_ps_say_who_holds_what(self):
        tensor = self.create("2,3", "--label", "mine\x1b[31m", "-d", "gpu:0")
        self.assertIn("gpu:0 24 B", self.ok("sessions"))
        self.assertTrue(any(s["isDefault"] for s in self.json("sessions")["sessions"]))
        row = self.ok("ps").splitlines()[2]
        self.assertRegex(row, rf"^ *{tensor} +f32 +\[2,3\] +24 B +gpu:0 +ready +\d+s +\d+s ago +mine\?\[31m$")
        self.assertEqual(self.json("ps")["tensors"][0]["tensor"]["label"], "mine\x1b[31m")
        self.assertIn("No tensors", self.ok("ps", "--device", "gpu:1"))
        self.assertIn("[2,3]", self.ok("ps", "--all"))


class Making(Ctl):

    def test_create_makes_each_content(self):
        self.assertEqual(self.values(self.create("2,2")), [0] * 4)
        self.assertEqual(self.values(self.create("2x2", "--ones")), [1] * 4)
        self.assertEqual(self.values(self.create("[2]", "--fill", "-1.5")), [-1.5] * 2)
        self.assertEqual(self.values(self.create("4", "--arange", "--start", 1, "--step", 0.5)), [1, 1.5, 2, 2.5])
        self.assertEqual(self.values(self.create("2,2", "--eye")), [1, 0, 0, 1])
        self.assertEqual(self.values(self.create("2,2", "--values", "[[1,2],[3,4]]", "--dtype", "f16")), [1, 2, 3, 4])
        self.assertEqual(self.values(self.create("2", "--values", "true,false", "--dtype", "bool")), [1, 0])
        on_gpu = self.values(self.create("5", "--uniform", "--seed", 7, "--low", 2, "--high", 3, "-d", "gpu:1"))
        self.assertEqual(on_gpu, self.values(self.create("5", "--uniform", "--seed", 7, "--low", 2, "--high", 3)))
        self.assertTrue(all(2 <= x < 3 for x in on_gpu))
        self.assertEqual(len(set(self.values(self.create("9", "--normal", "--mean", 5, "--stddev", 0.1)))), 9)

    def test_create_takes_an_id_once(self):
        self.assertEqual(self.create("2", "--id", 77, "--ones"), 77)
        self.assertEqual(self.create("2", "--id", 77, "--ones"), 77)
        self.assertIn("ALREADY_EXISTS", self.refused(REFUSED, "create", "3", "--id", 77, "--ones"))

    def test_odd_numbers_and_shapes_survive(self):
        odd = self.create("5", "--values", "nan,inf,-inf,-0,1e-45")
        self.assertEqual(self.values(odd)[:3], ["NaN", "Infinity", "-Infinity"])
        self.assertRegex(self.ok("show", odd, "--json"), r'"-?Infinity",\s+-0,')
        self.assertIn("[  nan,   inf,  -inf,    -0, 1e-45]", self.ok("show", odd))
        big = self.create("1", "--values", str(2**63 - 1), "--dtype", "i64")
        self.assertIn(str(2**63 - 1), self.ok("show", big))
        scalar = self.create("[]", "--fill", "-inf", "--dtype", "f64")
        self.assertIn("f64[] on cpu:0, 8 B, ready\n-inf\n", self.ok("show", scalar))
        self.assertIn("f32[3,0,2] on cpu:0, 0 B, ready\n[]\n", self.ok("show", self.create("3,0,2")))

    def test_show_shortens_long_tensors(self):
        text = self.ok("show", self.create("2000", "--arange"))
        self.assertIn("[   0,    1,    2, ..., 1997, 1998, 1999]", text)
        self.assertIn("get", self.ok("show", self.create("1024,1024", "-d", "gpu:0")))
        tensor = self.create("3", "--ones")
        self.assertEqual(len(self.ok("show", tensor, "--no-values").splitlines()), 1)
        self.assertEqual(self.ok("show", self.create("2,2,2", "--arange")).split("\n", 1)[1],
                         "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]\n")

    def test_ops_compute(self):
        a = self.create("2,3", "--arange", "-d", "gpu:0")
        b = self.create("3,2", "--ones", "-d", "gpu:0")
        reply = self.json("matmul", a, b)
        self.assertEqual(self.values(reply["tensor"]["id"]), [3, 3, 12, 12])
        self.assertGreater(reply["simulatedSeconds"], 0)
        self.assertEqual(self.values(self.json("matmul", a, a, "--transpose-b")["tensor"]["id"]), [5, 14, 14, 50])
        bias = self.create("2", "--values", "-4,1", "-d", "gpu:0")
        self.assertEqual(self.values(self.json("dense", a, b, bias, "--activation", "relu")["tensor"]["id"]),
                         [0, 4, 8, 13])
        self.assertEqual(self.values(self.json("dense", a, b)["tensor"]["id"]), [3, 3, 12, 12])

        def apply(*arguments):
            return self.values(self.json("apply", *arguments)["tensor"]["id"])
        self.assertEqual(apply("add", a, a), [0, 2, 4, 6, 8, 10])
        self.assertEqual(apply("sum", a, "--axes", "-1"), [3, 12])
        self.assertEqual(apply("slice", a, "--starts", "0,1", "--stops", "2,3"), [1, 2, 4, 5])
        self.assertEqual(apply("concat", a, a, "--axes", "0"), [0, 1, 2, 3, 4, 5] * 2)
        self.assertEqual(self.json("apply", "reshape", a, "--shape", "3,-1")["tensor"]["shape"], ["3", "2"])
        self.assertEqual(self.json("apply", "max", a, "--axes", "1", "--keep-dims")["tensor"]["shape"], ["2", "1"])
        self.assertEqual(self.json("apply", "cast", a, "--dtype", "bf16")["tensor"]["dtype"], "BF16")

    def test_copy_is_new_and_if_needed_is_not(self):
        x = self.create("2,3", "--ones", "-d", "gpu:0")
        text = self.ok("copy", x, "gpu:1")
        self.assertRegex(text, r"f32\[2,3\] on gpu:1, 24 B")
        self.assertRegex(text, r"24 B gpu:0 -> gpu:1 over nvlink; quoted .*, measured .*, simulated ")
        self.assertNotEqual(int(self.json("copy", x, "gpu:0")["tensor"]["id"]), x)
        same = self.json("copy", x, "gpu:0", "--if-needed")
        self.assertEqual((int(same["tensor"]["id"]), same["copied"]), (x, False))
        self.assertTrue(self.json("copy", x, "cpu", "--if-needed")["copied"])
        self.assertIn("FAILED_PRECONDITION", self.refused(REFUSED, "copy", x, "gpu:1", "--max-seconds", 1e-9))

    def test_rm_deletes_all_of_them_or_none(self):
        x, y = self.create("256"), self.create("256")
        self.assertIn("NOT_FOUND", self.refused(REFUSED, "rm", x, 999))
        self.assertIn("2 tensors gone, 2.00 KiB free again", self.ok("rm", x, y))
        self.assertEqual(self.json("rm", "--all"), {"freedBytes": "0"})

    def test_bench_tells_measured_from_simulated(self):
        document = self.json("bench", "--mib", 8, "--size", 32)
        self.assertEqual([d["device"] for d in document["devices"]], ["cpu:0", "gpu:0", "gpu:1"])
        for device in document["devices"]:
            simulated = device["kind"] == "simulated"
            for figure in device["figures"]:
                self.assertGreater(figure["measuredSeconds"], 0, figure)
                self.assertEqual("simulatedSeconds" in figure, simulated, figure)
        self.assertIn("matmul f32 32x32x32", self.ok("bench", "--mib", 1, "--size", 32, "-d", "gpu:0"))


class Moving(Ctl):

    def test_npy_comes_back_byte_for_byte(self):
        for dtype in ("<f4", "<f8", "<f2", "<i4", "<i8", "|u1", "|b1"):
            array = (numpy.arange(24).reshape(2, 3, 4) % 2).astype(dtype)
            numpy.save(path("in.npy"), array)
            moved = self.json("put", path("in.npy"), "-d", "gpu:1")["tensors"][0]
            self.assertEqual(moved["tensor"]["device"], "gpu:1")
            self.assertEqual(moved["tensor"]["label"], "in.npy")
            self.ok("get", moved["tensor"]["id"], path("out.npy"))
            back = numpy.load(path("out.npy"))
            self.assertEqual((back.dtype, back.tobytes()), (array.dtype, array.tobytes()))

    def test_safetensors_keep_their_names(self):
        header = json.dumps({"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
                             "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}}).encode()
        data = b"abcdefgh" + struct.pack("<f", 1.5)
        pathlib.Path(path("in.safetensors")).write_bytes(struct.pack("<Q", len(header)) + header + data)
        moved = self.json("put", path("in.safetensors"))["tensors"]
        self.assertEqual([m["tensor"]["label"] for m in moved], ["w", "b"])
        ids = [m["tensor"]["id"] for m in moved]
        self.ok("get", *ids, path("out.safetensors"))
        out = pathlib.Path(path("out.safetensors")).read_bytes()
        size = struct.unpack("<Q", out[:8])[0]
        self.assertEqual(json.loads(out[8:8 + size]), json.loads(header))
        self.assertEqual(out[8 + size:], data)
        only = self.json("put", path("in.safetensors"), "--name", "b")["tensors"]
        self.assertEqual([m["name"] for m in only], ["b"])
        self.assertIn("it has w, b", self.refused(USAGE, "put", path("in.safetensors"), "--name", "c"))
        self.assertIn(f"apply cast {ids[0]} --dtype f32", self.refused(USAGE, "get", ids[0], path("no.npy")))
        self.assertIn("use a .safetensors file", self.refused(USAGE, "get", *ids, path("no.npy")))

    def test_unlabelled_and_twice_labelled_tensors_get_names_of_their_own(self):
        ids = [self.create("1"), self.create("1", "--label", "x"), self.create("1", "--label", "x")]
        names = [m["name"] for m in self.json("get", *ids, path("named.safetensors"))["tensors"]]
        self.assertEqual(names, [f"tensor_{ids[0]}", "x", f"tensor_{ids[2]}"])

    def test_failed_get_leaves_the_old_file(self):
        pathlib.Path(path("kept.npy")).write_text("old")
        self.refused(REFUSED, "get", 999, path("kept.npy"))
        self.assertEqual(pathlib.Path(path("kept.npy")).read_text(), "old")

    def test_half_a_file_is_not_left_on_the_server(self):
        # The second of these does not fit gpu:0; the first must go too.
        header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                             "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}).encode()
        pathlib.Path(path("two.safetensors")).write_bytes(struct.pack("<Q", len(header)) + header + b"12345678")
        self.refused(REFUSED, "put", path("two.safetensors"), "-d", "gpu:7")
        self.refused(REFUSED, "put", path("two.safetensors"), "--label", "x" * 300)
        self.assertIn("No tensors", self.ok("ps"))

    def on_terminal(self, *arguments):
        """What the command wrote to a terminal that is its stderr."""
        leader, follower = pty.openpty()
        process = subprocess.Popen([BIN / "devserverctl", *map(str, arguments)], stderr=follower,
                                   stdout=subprocess.DEVNULL, env={**os.environ, "DEVSERVER_ADDRESS": address})
        os.close(follower)
        written = b""
        try:
            while chunk := os.read(leader, 4096):
                written += chunk
        except OSError:  # Linux's way to say that the other end is closed.
            pass
        os.close(leader)
        self.assertEqual(process.wait(timeout=60), 0, written)
        return written.decode()

    def test_progress_bar_is_for_terminals_only(self):
        numpy.save(path("bar.npy"), numpy.zeros(32 << 20, "|u1"))
        text = self.on_terminal("put", path("bar.npy"))
        tensor = self.json("ps")["tensors"][0]["tensor"]["id"]
        for text in (text, self.on_terminal("get", tensor, path("bar2.npy"))):
            self.assertRegex(text, r"bar2?\.npy +100% \[#+\] 32\.0 MiB of 32\.0 MiB  \S+ [kMG]B/s  in \d+:\d\d")
            self.assertTrue(text.endswith("\n"))
            self.assertLessEqual(max(len(re.sub(r"\x1b\[K", "", part)) for part in re.split(r"[\r\n]", text)), 79)
        self.assertIn("bar.npy", self.ok("put", path("bar.npy")))  # ok() allows nothing on stderr


class Refusing(Ctl):

    def test_mixed_devices_are_refused_with_the_command_that_cures(self):
        a = self.create("2,3", "--ones", "-d", "gpu:0")
        b = self.create("2,3", "--ones", "-d", "gpu:1")
        message = self.refused(REFUSED, "apply", "add", a, b)
        self.assertIn("gpu:0", message)
        cure = re.search(r"cure: devserverctl (.*?)    \(24 B, about ", message).group(1).split()
        copied = int(self.json(*cure)["tensor"]["id"])
        self.ok("apply", "add", copied, b)
        done = run("apply", "add", a, b, "--json")
        error = json.loads(done.stdout)["error"]
        self.assertEqual((done.returncode, error["code"], error["reason"]), (1, "INVALID_ARGUMENT", "DEVICE_MISMATCH"))
        self.assertEqual(error["cure"].split()[1:], cure)

    def test_the_server_s_refusals_end_with_1(self):
        x = self.create("2,3")
        for arguments in (("show", 999), ("copy", x, "gpu:9"), ("matmul", x, x), ("apply", "nonsense", x),
                          ("create", "-1,2"), ("create", "2147483648,2147483648,2147483648"),
                          ("create", "3", "--values", "1,2"), ("get", 999, path("x.npy")),
                          ("create", "40,1024,1024,1024", "-d", "gpu:0")):
            self.refused(REFUSED, *arguments)

    def test_wrong_usage_ends_with_2(self):
        pathlib.Path(path("bad.npy")).write_text("not an array")
        pathlib.Path(path("bad.safetensors")).write_text("not tensors")
        for arguments in ((), ("frobnicate",), ("create",), ("create", "2,x"), ("create", "2", "--ones", "--eye"),
                          ("create", "2", "--dtype", "i3"), ("create", "2", "--values", "one"), ("show", "one"),
                          ("dense", 1, 2, "--activation", "abs"), ("rm",), ("rm", 1, "--all"), ("get", "x.npy"),
                          ("get", 0, "x.npy"), ("get", 1, "x.txt"), ("put", "missing.npy"), ("put", "x.txt"),
                          ("put", path("bad.npy")), ("put", path("bad.safetensors")), ("devices", "--nonsense"),
                          ("devices", "--timeout", "-1"), ("get", self.create("1"), path("no/such/folder.npy"))):
            self.refused(USAGE, *arguments)
        self.assertIn("frobnicate", self.refused(USAGE, "frobnicate"))
        self.assertIn("devserverctl create --help", self.refused(USAGE, "create"))

    def test_no_server_ends_with_3(self):
        for arguments in (("devices",), ("put", path("any.npy")), ("bench",), ("wait", "--for", 0.2)):
            numpy.save(path("any.npy"), numpy.zeros(1))
            message = self.refused(UNREACHABLE, *arguments, server="127.0.0.1:1")
            self.assertIn("127.0.0.1:1", message)
        self.assertIn("--server", self.refused(UNREACHABLE, "smi", server=f"unix:{path('nobody')}"))

    def test_the_flag_wins_over_the_environment_and_unix_sockets_work(self):
        done = run("devices", "--server", f"unix:{path('socket')}", server="127.0.0.1:1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("gpu:1", done.stdout)

    def test_help_teaches(self):
        text = self.ok("--help")
        for command in ("devices", "smi", "ps", "create", "show", "copy", "matmul", "dense", "apply", "put", "get", "rm",
                        "bench", "sessions", "ops", "health", "wait"):
            self.assertRegex(text, rf"(?m)^  {command} ")
            help_text = self.ok(command, "--help")
            self.assertIn("Examples:\n", help_text)
            self.assertRegex(help_text, rf"(?m)^  devserver(ctl|d)\b.*\b{command}\b")
        self.assertRegex(self.ok("--version"), r"^devserverctl \d+\.\d+\.\d+\n$")

    def test_several_at_once_share_one_session(self):
        threads = [threading.Thread(target=self.create, args=("4", "--ones")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(self.json("ps")["tensors"]), 8)


if __name__ == "__main__":
    unittest.main(verbosity=2)

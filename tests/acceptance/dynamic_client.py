"""A devserverd process for a test, and a client that knows nothing but what server reflection tells it.

The client speaks reflection v1alpha with descriptors built here by hand, so that it needs no generated code: like grpcurl it
asks the server for its services and calls their methods with JSON. Needs python3-grpcio and python3-protobuf.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

SOURCE_DIR = pathlib.Path(os.environ.get("DEVSERVER_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD_DIR = pathlib.Path(os.environ.get("DEVSERVER_BUILD_DIR", SOURCE_DIR / "build"))
DAEMON = BUILD_DIR / "bin" / "devserverd"
CALL_SECONDS = 60  # A deadline for every call: a test never hangs.


class Daemon:
    """devserverd on a free port of loopback, in a folder of its own. Ended, if need be by force, when the block is left."""

    def __init__(self, *flags, config="", simulate="V100-SXM2-16GB:2", listen="127.0.0.1:0"):
        self._folder = tempfile.TemporaryDirectory(prefix="devserverd-test-")
        self._port_file = pathlib.Path(self._folder.name, "port")
        config_file = pathlib.Path(self._folder.name, "config.toml")
        config_file.write_text(config)
        self._log = open(pathlib.Path(self._folder.name, "log"), "w+")
        self.process = subprocess.Popen(
            [DAEMON, "--config", config_file, "--listen", listen, "--port-file", self._port_file,
             "--simulate", simulate, *flags],
            stderr=self._log, stdin=subprocess.DEVNULL)

    def __enter__(self):
        wait_for(lambda: self._port_file.exists() or self.process.poll() is not None, "the daemon serves")
        if self.process.poll() is not None:
            raise AssertionError(f"devserverd ended with {self.process.returncode}:\n{self.log()}")
        self.address = f"127.0.0.1:{int(self._port_file.read_text())}"
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if kind is not None:
            print(self.log())
        self._log.close()
        self._folder.cleanup()

    def log(self):
        self._log.flush()
        self._log.seek(0)
        return self._log.read()

    def rss_bytes(self):
        pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_rss_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def wait_for(condition, what, seconds=30):
    """Waits for what another process is about to do; returns the seconds it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise AssertionError(f"waited {seconds} s in vain: {what}")
        time.sleep(0.005)
    return time.monotonic() - began


def _reflection_messages():
    """The request and the response of grpc.reflection.v1alpha.ServerReflection, as far as they are used."""
    Field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="reflection_by_hand.proto", package="by_hand", syntax="proto3")

    def add(name, *fields):
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(
                name=field, number=number, label=Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                added.type, added.type_name = Field.TYPE_MESSAGE, f".by_hand.{kind}"
            else:
                added.type = kind

    add("Request", ("file_by_filename", 3, Field.TYPE_STRING, False),
        ("file_containing_symbol", 4, Field.TYPE_STRING, False), ("list_services", 7, Field.TYPE_STRING, False))
    add("Files", ("file_descriptor_proto", 1, Field.TYPE_BYTES, True))
    add("Service", ("name", 1, Field.TYPE_STRING, False))
    add("Services", ("service", 1, "Service", True))
    add("Error", ("error_code", 1, Field.TYPE_INT32, False), ("error_message", 2, Field.TYPE_STRING, False))
    add("Response", ("file_descriptor_response", 4, "Files", False),
        ("list_services_response", 6, "Services", False), ("error_response", 7, "Error", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = message_factory.MessageFactory(pool)
    return (classes.GetPrototype(pool.FindMessageTypeByName("by_hand.Request")),
            classes.GetPrototype(pool.FindMessageTypeByName("by_hand.Response")))


_Request, _Response = _reflection_messages()


class Refused(Exception):
    """A call that failed: code ("NOT_FOUND"), message, and the typed detail as a dict."""

    def __init__(self, code, message, detail):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.detail = code, message, detail


def _then_wait(messages):
    yield from messages
    threading.Event().wait()  # Of a daemon thread of grpcio's, which ends with the process.


class Client:
    """Calls methods by name with JSON (text, dicts, or lists of them for streams); replies are dicts as grpcurl prints them."""

    def __init__(self, address, token=None):
        # Several clients in one process are several connections.
        self._channel = grpc.insecure_channel(address, options=[
            ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20)])
        self._metadata = [("devserver-session", token)] if token else []
        self._pool = descriptor_pool.DescriptorPool()
        self._classes = message_factory.MessageFactory(self._pool)
        self._files = set()
        self._services = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

    # --- Reflection.

    def _reflect(self, **request):
        call = self._channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=_Request.SerializeToString, response_deserializer=_Response.FromString)
        [response] = call(iter([_Request(**request)]), timeout=CALL_SECONDS)
        if response.HasField("error_response"):
            raise LookupError(f"{request}: {response.error_response.error_message}")
        return response

    def list(self):
        return sorted(service.name for service in self._reflect(list_services="*").list_services_response.service)

    def _add_files(self, response):
        """Adds files to the pool, those that they import first, asking for what did not come along."""
        came = [descriptor_pb2.FileDescriptorProto.FromString(data)
                for data in response.file_descriptor_response.file_descriptor_proto]
        by_name = {file.name: file for file in came}

        def add(file):
            if file.name in self._files:
                return
            self._files.add(file.name)
            for imported in file.dependency:
                if imported in by_name:
                    add(by_name[imported])
                elif imported not in self._files:
                    self._add_files(self._reflect(file_by_filename=imported))
            self._pool.Add(file)

        for file in came:
            add(file)

    def describe(self, symbol):
        """The descriptor of a service, method or message, asked for by this very name as grpcurl does."""
        self._add_files(self._reflect(file_containing_symbol=symbol))
        for find in (self._pool.FindServiceByName, self._pool.FindMethodByName, self._pool.FindMessageTypeByName,
                     self._pool.FindEnumTypeByName):
            with contextlib.suppress(KeyError):
                return find(symbol)
        raise LookupError(f"{symbol}: the server's file does not hold it")

    # --- Calls.

    def start(self, method, *requests, seconds=CALL_SECONDS, metadata=(), keep_open=False):
        """Begins a call of "package.Service/Method"; returns grpcio's call (a future, or an iterator of replies) and whether
        the replies are a stream. `keep_open`: a stream of requests does not end with the last of them."""
        service, name = method.split("/")
        if service not in self._services:
            self._services[service] = self.describe(service)
            # For _detail: a server that is going down refuses calls, and then can't be asked any more.
            self.describe("devserver.v1.StatusWithDetails")
        found = self._services[service].methods_by_name[name]
        proto = descriptor_pb2.MethodDescriptorProto()
        found.CopyToProto(proto)
        request_class = self._classes.GetPrototype(found.input_type)
        reply_class = self._classes.GetPrototype(found.output_type)
        messages = [json_format.Parse(body if isinstance(body, str) else json.dumps(body), request_class(),
                                      descriptor_pool=self._pool) for body in requests]
        kind = ("stream" if proto.client_streaming else "unary") + (
            "_stream" if proto.server_streaming else "_unary")
        call = getattr(self._channel, kind)(
            f"/{method}", request_serializer=request_class.SerializeToString,
            response_deserializer=reply_class.FromString)
        if not proto.client_streaming:
            [argument] = messages
        else:
            argument = _then_wait(messages) if keep_open else iter(messages)
        begin = call if proto.server_streaming else call.future
        return begin(argument, timeout=seconds, metadata=[*self._metadata, *metadata]), proto.server_streaming

    def dict_of(self, message):
        return json_format.MessageToDict(message, descriptor_pool=self._pool)

    def call(self, method, *requests, replies_max=None, seconds=CALL_SECONDS, metadata=()):
        """The reply as a dict, or a list of them for a stream (of which at most `replies_max` are waited for)."""
        call, is_stream = self.start(method, *requests, seconds=seconds, metadata=metadata)
        try:
            if not is_stream:
                return self.dict_of(call.result())
            replies = []
            for reply in call:
                replies.append(self.dict_of(reply))
                if len(replies) == replies_max:
                    call.cancel()
                    break
            return replies
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details(), self._detail(error)) from None

    def _detail(self, error):
        trailers = {key: value for key, value in error.trailing_metadata() or ()}
        if "grpc-status-details-bin" not in trailers:
            return None
        Status = self._classes.GetPrototype(self._pool.FindMessageTypeByName("devserver.v1.StatusWithDetails"))
        OpError = self._classes.GetPrototype(self._pool.FindMessageTypeByName("devserver.v1.OpError"))
        [packed] = Status.FromString(trailers["grpc-status-details-bin"]).details
        return self.dict_of(OpError.FromString(packed.value))

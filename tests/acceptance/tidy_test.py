"""The rules of style that a machine can check, over every file of the repository (STYLE: layers, sizes, words, comments).

Prints one line per finding and fails if there is one. The checks are functions from a file to findings; the tests at the
end feed each of them a bad example first, so that a check that finds nothing any more is noticed.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A layer may include only itself and those of smaller rank; equals don't know each other.
LAYERS = {
    "server/base": 0,
    "server/tensor": 1,
    "server/fabric": 1,
    "server/device": 2,
    "server/session": 3,
    "server/rpc": 4,
    "server": 5,
}
# The client library stands on the server's two lowest layers.
CLIENT_MAY = ("server/base", "server/tensor")

LINE_MAX = 100
FUNCTION_LINES_MAX = 70
BANNED_WORDS = {
    r"\babsl::Mutex\b": "absl::Mutex: use server/base/mutex.h",
    r"\bsleep_for\b|\bsleep_until\b|\busleep\(": "a sleep: wait for what is waited for",
    r"\bdetach\(": "detach: a thread has an owner that joins it",
    r"\busing namespace\b": "using namespace",
    r"\bTO" r"DO\b|\bFIX" r"ME\b": "an unfinished note",
}
BANNED_FOLDERS = {"utils", "util", "common", "misc", "helpers"}
BANNED_NAMES = re.compile(r"\b(?:class|struct)\s+\w*(?:Manager|Helper|Util|Utils)\b")
CPP = (".h", ".cc", ".cu")
TEST_FILE = re.compile(r"_(test|suite|fuzz|bench)\.cc$")


def layer_of(path):
    """The folder in LAYERS that `path` (from the root) belongs to, or None."""
    matches = [layer for layer in LAYERS if path.startswith(layer + "/")]
    return max(matches, key=len) if matches else None


def includes(text):
    """(line number, header, whether in quotes) of each #include."""
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match[2], match[1] == '"'


def check_layers(path, text):
    own = layer_of(path)
    for number, header, _ in includes(text):
        target = layer_of(header)
        if header.startswith("client/") and own:
            yield number, f"server includes the client's {header}"
        if target is None:
            continue
        if own and target != own and LAYERS[target] >= LAYERS[own]:
            yield number, f"{own} may not include {header}: {target} is not below it"
        if path.startswith("client/") and target not in CLIENT_MAY:
            yield number, f"the client may include only {', '.join(CLIENT_MAY)}, not {header}"


def check_foreign_headers(path, text):
    speaks_grpc = path.startswith(("server/rpc/", "server/server.", "tests/")) or (
        path.startswith("client/") and not path.startswith(("client/include/", "client/examples/")))
    speaks_cuda = path.startswith(("server/device/cuda/", "tests/"))
    for number, header, _ in includes(text):
        if re.match(r"grpc|google/(protobuf|rpc)/|devserver/v1/", header) and not speaks_grpc:
            yield number, f"{header}: gRPC and protobuf stay in server/rpc, server/server.* and the client's .cc files"
        if re.match(r"cuda|cublas|curand|nvml", header) and not speaks_cuda:
            yield number, f"{header}: CUDA stays in server/device/cuda"


def check_lines(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        # A string literal that clang-format can't break may stick out.
        if len(line) > LINE_MAX and not re.match(r'^\s*R?"', line):
            yield number, f"{len(line)} columns, at most {LINE_MAX}"
        if line != line.rstrip():
            yield number, "white space at the end"


def check_functions(path, text):
    """Lengths of what opens with a line that ends in '{' and closes with '}' at the same depth: 0, or 2 within a class."""
    depth, opened, head = "", None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if opened is not None:
            if line.startswith(depth + "}"):
                if number - head + 1 > FUNCTION_LINES_MAX:
                    yield head, f"a function of {number - head + 1} lines, at most {FUNCTION_LINES_MAX}"
                opened = None
            continue
        if line.startswith("}"):
            depth = ""
        if re.match(depth + r"[\w~]", line):
            head = number  # Where the declaration began, should it go over several lines.
        if not line.endswith("{") or not line.strip("{ "):
            continue
        if re.match(r"(class|struct|union)\b[^()]*\{$", line):
            depth = "  "
        elif "(" in "\n".join(text.splitlines()[head - 1:number]) and not re.match(r"\s*(namespace|extern)\b", line):
            opened = number


def without_comments_and_strings(line):
    return re.sub(r"//.*", "", re.sub(r'"(\\.|[^"\\])*"', '""', line))


def check_words(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        code = without_comments_and_strings(line)
        for pattern, said in BANNED_WORDS.items():
            # An unfinished note stands in a comment; all others are code.
            if re.search(pattern, line if "note" in said else code):
                yield number, said
        if BANNED_NAMES.search(code):
            yield number, "a name that tells nothing (Manager, Helper, Util)"


def check_header(path, text):
    if path.endswith(".h"):
        if not text.startswith(("//", "/*")):
            yield 1, "a header opens with a comment that says what it is for"
        if "#pragma once" not in text:
            yield 1, "no #pragma once"


def check_folders(path, _):
    for folder in pathlib.PurePosixPath(path).parts[:-1]:
        if folder in BANNED_FOLDERS:
            yield 1, f"a folder named {folder}: name it after what is in it"


CHECKS = (check_layers, check_foreign_headers, check_lines, check_functions, check_words, check_header, check_folders)


def check_built(paths, compiled):
    """Test, fuzz and benchmark files that the build doesn't compile; tests in files that no ctest runs."""
    for path in paths:
        if TEST_FILE.search(path) and path not in compiled:
            yield path, 1, "CMake does not build this file"


def check_test_macros(path, text):
    if path.endswith(".cc") and not re.search(r"_(test|suite)\.cc$", path):
        for number, line in enumerate(text.splitlines(), 1):
            if re.match(r"(TYPED_)?TEST(_F|_P)?\(", line):
                yield number, "a test in a file that no ctest runs: name it *_test.cc or *_suite.cc"


def repository_files():
    """Tracked and new files, but ignored ones."""
    git = shutil.which("git")
    listed = git and subprocess.run([git, "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if not listed or listed.returncode != 0:  # No git here, or an unpacked archive.
        skipped = re.compile(r"^(\.git|build[^/]*)/")
        return sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*")
                      if p.is_file() and not skipped.match(str(p.relative_to(ROOT))))
    return sorted(p for p in listed.stdout.splitlines() if (ROOT / p).is_file())


def compiled_files():
    """What the build compiles, from the root; None if there is no build folder to look at."""
    database = pathlib.Path(os.environ.get("DEVSERVER_BUILD_DIR", ROOT / "build")) / "compile_commands.json"
    if not database.exists():
        return None
    files = (pathlib.Path(entry["file"]) for entry in json.loads(database.read_text()))
    return {str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT)}


def findings():
    paths = [p for p in repository_files() if p.endswith(CPP)]
    for path in paths:
        text = (ROOT / path).read_text()
        for check in (*CHECKS, check_test_macros):
            for number, said in check(path, text):
                yield f"{path}:{number}: {said}"
    compiled = compiled_files()
    if compiled is not None:
        for path, number, said in check_built(paths, compiled):
            yield f"{path}:{number}: {said}"


# One bad example per rule: (check, path, text). Each must be found, or the rule has stopped working.
BAD_EXAMPLES = (
    (check_layers, "server/tensor/x.cc", '#include "server/device/device.h"'),
    (check_layers, "server/tensor/x.cc", '#include "server/fabric/fabric.h"'),
    (check_layers, "server/session/x.cc", '#include "server/config.h"'),
    (check_layers, "client/x.cc", '#include "server/session/limits.h"'),
    (check_layers, "server/rpc/x.cc", '#include "client/wire.h"'),
    (check_foreign_headers, "server/session/x.cc", "#include <grpcpp/grpcpp.h>"),
    (check_foreign_headers, "server/config.cc", '#include "devserver/v1/types.pb.h"'),
    (check_foreign_headers, "client/include/devserver/x.h", "#include <grpcpp/channel.h>"),
    (check_foreign_headers, "server/device/sim/x.cc", "#include <cuda_runtime_api.h>"),
    (check_lines, "x.cc", "x" * (LINE_MAX + 1)),
    (check_lines, "x.cc", "x "),
    (check_functions, "x.cc", "int F() {\n" + "  x;\n" * FUNCTION_LINES_MAX + "}\n"),
    (check_functions, "x.cc", "int F(int a,\n    int b) const {\n" + "  x;\n" * FUNCTION_LINES_MAX + "}\n"),
    (check_functions, "x.h", "class X {\n public:\n  int F() {\n" + "    x;\n" * FUNCTION_LINES_MAX + "  }\n};\n"),
    (check_words, "x.cc", "absl::Mutex mu;"),
    (check_words, "x.cc", "std::this_thread::sleep_for(x);"),
    (check_words, "x.cc", "thread.detach();"),
    (check_words, "x.cc", "using namespace std;"),
    (check_words, "x.cc", "// TO" "DO: later"),
    (check_words, "x.h", "class TensorManager {"),
    (check_header, "x.h", "#pragma once\n"),
    (check_header, "x.h", "// About.\n"),
    (check_folders, "server/utils/x.cc", ""),
    (check_test_macros, "tests/base/clock.cc", "TEST(Clock, Goes) {}"),
)


def main():
    broken = [f"{check.__name__} does not find {text[:60]!r}" for check, path, text in BAD_EXAMPLES
              if not list(check(path, text))]
    if not list(check_built(["tests/base/x_test.cc"], set())):
        broken.append("check_built does not find a file that is not built")
    found = list(findings())
    for line in broken + found:
        print(line)
    print(f"tidy: {len(broken) + len(found)} findings")
    return 1 if broken or found else 0


if __name__ == "__main__":
    sys.exit(main())

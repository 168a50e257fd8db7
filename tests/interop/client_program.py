"""The programs in Go, made from the .proto files; kept in the user's cache.

    python -m tests.interop.client_program

builds them where they are not there yet: a client that talks gRPC or DRPC, and a server by Go's own
DRPC library. The stubs are generated on the way, by the protocol compiler that generates those of
Python and by the generators that `go/go.mod` pins: nothing generated is kept that could fall behind
the .proto files.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.go_programs import GoPrograms, run_go

SOURCE = Path(__file__).with_name("go")
PROTO = Path(__file__).resolve().parents[2] / "proto"
PROTO_FILES = sorted(PROTO.rglob("*.proto"))

_MODULE = "millrace.dev"


def _build(go: str, scratch: Path, destination: Path) -> None:
    module = scratch / "module"
    shutil.copytree(SOURCE, module)
    run_go(go, "build", "-o", f"{scratch}/", "tool", folder=module)
    generators = {
        "go": "protoc-gen-go",
        "go-grpc": "protoc-gen-go-grpc",
        "go-drpc": "protoc-gen-go-drpc",
    }
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTO)),
            *(f"--plugin={name}={scratch / name}" for name in generators.values()),
            *(f"--{kind}_out={module}" for kind in generators),
            *(f"--{kind}_opt=module={_MODULE}" for kind in generators),
            *map(str, PROTO_FILES),
        ],
        check=True,
    )
    run_go(go, "vet", ".", "./server", folder=module)
    run_go(go, "build", "-o", f"{destination}/client", ".", folder=module)
    run_go(go, "build", "-o", f"{destination}/server", "./server", folder=module)


PROGRAMS = GoPrograms(
    name="go-client",
    about="the client and the server in Go (a minute or two)",
    source=SOURCE,
    names=("client", "server"),
    build_in=_build,
    others=PROTO_FILES,
)


if __name__ == "__main__":
    PROGRAMS.main()

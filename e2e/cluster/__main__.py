"""A Kubernetes for tests and for people: see CONTRIBUTING.md.

    python -m e2e.cluster build | up | down | status | load-image | load-spark-image

MILLRACE_PROVIDER says which kind of cluster, MILLRACE_CLUSTER names it where one is not enough.
"""

import argparse
import sys
import time

from e2e import programs
from e2e.cluster import providers
from e2e.cluster.commands import CommandError


def exports(cluster: providers.Cluster) -> str:
    """Return the line that makes a shell find the cluster, and programs that are ours."""
    folders = [
        program.folder() for program in (programs.NODES, programs.HELM) if program.are_built()
    ]
    path = ":".join([*map(str, folders), "$PATH"])
    return f'export KUBECONFIG={cluster.kubectl.kubeconfig} PATH="{path}"'


def main() -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster")
    parser.add_argument(
        "command", choices=("build", "up", "down", "status", "load-image", "load-spark-image")
    )
    command = parser.parse_args().command
    begun = time.monotonic()

    def say(text: str) -> None:
        print(f"millrace: {time.monotonic() - begun:5.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        cluster = providers.choose()
        match command:
            case "build":
                cluster.build(say)
                say("built")
            case "up":
                cluster.up(say)
                programs.HELM.main()
                say("ready")
                print(exports(cluster))
            case "down":
                cluster.down()
                say("gone")
            case "load-image":
                cluster.load_image()
                say("loaded")
            case "load-spark-image":
                cluster.load_spark_image()
                say("loaded")
            case "status":
                if not cluster.kubectl.is_ready():
                    say("not running: make cluster-up")
                    return 1
                print(cluster.kubectl("get", "nodes,storageclasses", "--output=wide"), end="")
                print(exports(cluster))
    except CommandError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

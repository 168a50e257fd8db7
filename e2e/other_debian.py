"""Runs a command in a clone of this checkout on another Debian, with its Python: `make nightly`.

    python -m e2e.other_debian trixie make check

The clone has what is committed, and its own .venv. It is in a container that is gone afterwards.
Root, debootstrap and buildah are needed; without them the command is left out, with the reason.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from e2e.cluster.commands import run
from e2e.cluster.directories import ROOT
from e2e.cluster.images import build_base, buildah_command, limits, write_pip_settings

_HOME = "/home/user"


def main(suite: str, *command: str) -> int:
    """Run a command there; return its exit code."""
    missing = [program for program in ("debootstrap", "buildah") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        why = f"no {' and no '.join(missing)}" if missing else "it takes root"
        sys.stderr.write(f"left out on Debian {suite}: {why}\n")
        return 0
    image = build_base(suite, "git", "make")
    with tempfile.TemporaryDirectory() as folder:
        clone, secrets = Path(folder, "clone"), Path(folder, "secrets")
        secrets.mkdir()
        run("git", "clone", "--quiet", ROOT, clone)
        write_pip_settings(secrets)
        container = run(*buildah_command("from", *limits(), image)).strip()
        try:
            return subprocess.run(
                buildah_command(
                    *("run", "--isolation=chroot", f"--volume={clone}:{_HOME}/millrace"),
                    *(f"--volume={secrets}:/run/secrets:ro", f"--workingdir={_HOME}/millrace"),
                    *("--env=PIP_CONFIG_FILE=/run/secrets/pip.conf", f"--env=HOME={_HOME}"),
                    *("--env=LANG=C.UTF-8", container, "--", *command),
                ),
                check=False,
            ).returncode
        finally:
            run(*buildah_command("rm", container))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Grafana's own components as one script for a browser: built once, and kept in the user's cache.

`grafana_ui` holds the program that uses them and the lock file of its packages. npm installs these,
without their scripts, and esbuild makes one file of what is needed; the rest is not kept.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

SOURCE: Final = Path(__file__).with_name("grafana_ui")
WHY_NOT: Final = "Node.js with npm is not on this machine: sh requirements/install.sh node"

_MODULES: Final = Path("node_modules")
_ICONS: Final = _MODULES / "@grafana" / "ui" / "dist" / "public" / "img"
_FONTS: Final = _MODULES / "@fontsource" / "inter" / "files"
_FONT_NAMES: Final = {400: "Inter-Regular", 500: "Inter-Medium"}
"""Grafana's names of them, by weight."""


def is_possible() -> bool:
    """Return whether the script is there or can be built."""
    return _built().is_dir() or shutil.which("npm") is not None


def built() -> Path:
    """Return a folder with `page.html` and all that it loads; build it where it is not there."""
    folder = _built()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as work:
            _build(Path(work), made := Path(work) / "made")
            made.rename(folder)
    return folder


def _built() -> Path:
    digest = hashlib.sha256()
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "millrace" / f"grafana-ui-{digest.hexdigest()[:12]}"


def _build(work: Path, made: Path) -> None:
    for path in SOURCE.iterdir():
        shutil.copy(path, work)
    _run(work, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    _run(
        work,
        *("npx", "--no-install", "esbuild", "draw.jsx", "--bundle", "--minify"),
        *("--jsx=automatic", "--loader:.ttf=empty", "--log-level=error"),
        *('--define:process.env.NODE_ENV="production"', f"--outfile={made / 'drawing.js'}"),
    )
    shutil.copy(work / "page.html", made)
    public = made / "public"
    shutil.copytree(work / _ICONS, public / "img")
    fonts = public / "fonts" / "inter"
    fonts.mkdir(parents=True)
    for weight, name in _FONT_NAMES.items():
        font = work / _FONTS / f"inter-latin-{weight}-normal.woff2"
        shutil.copy(font, fonts / f"{name}.woff2")


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)

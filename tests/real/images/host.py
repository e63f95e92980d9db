"""What images take from this machine: busybox, the Python that runs this, a few packages, and their libraries.

Paths in an image: Python below ``/opt/stand-in``, where none of the components has anything; shared libraries and the
dynamic loader where the loader looks for them. No shell comes with Python, so an image without one has none.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.real.images.layers import Item, copied

HOME = "/opt/stand-in"
PYTHON = f"{HOME}/bin/python3"
LIBRARY = f"{HOME}/{sys.platlibdir}/python{sys.version_info.major}.{sys.version_info.minor}"
"""The standard library's folder, which is always on the path; the programs and their packages lie there too."""

_LEFT_OUT = {
    *("__pycache__", "site-packages", "dist-packages", "lib-dynload", "test", "tests", "unittest", "ensurepip", "venv"),
    *("idlelib", "tkinter", "turtledemo", "curses", "lib2to3", "pydoc_data", "distutils", "msilib", "dbm", "sqlite3"),
}
_EXTENSIONS_LEFT_OUT = re.compile(r"_test|_xx|xx|_tkinter|_curses|_gdbm|_dbm|_sqlite|readline|_codecs_|nis|ossaudio")
_RESOLVED = re.compile(r"(?:^|=>)\s*(/\S+) \(0x", re.MULTILINE)


def busybox() -> dict[str, Item]:
    """Return busybox under all its names, with the libraries that it needs, if any."""
    path = shutil.which("busybox")
    if path is None:
        message = "busybox is missing. On Debian: apt-get install busybox-static"
        raise FileNotFoundError(message)
    names = subprocess.run([path, "--list"], check=True, capture_output=True, text=True).stdout.split()
    links = {f"/bin/{name}": Item(link="busybox") for name in names if name != "busybox"}
    return {**links, "/bin/busybox": copied(Path(path)), **libraries([Path(path)])}


@functools.cache
def python() -> dict[str, Item]:
    """Return the interpreter, its standard library, and the shared libraries of both."""
    executable = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    standard = Path(os.__file__).parent
    extensions = [
        path for path in sorted((standard / "lib-dynload").glob("*.so")) if not _EXTENSIONS_LEFT_OUT.match(path.name)
    ]
    return {
        f"{HOME}/bin/{executable.name}": copied(executable),
        PYTHON: Item(link=executable.name),
        **{f"{LIBRARY}/lib-dynload/{path.name}": copied(path) for path in extensions},
        **sources(standard, LIBRARY),
        **libraries([executable, *extensions]),
    }


def package(name: str) -> dict[str, Item]:
    folder, place = _installed(name), f"{LIBRARY}/{name.replace('.', '/')}"
    if folder.is_file():
        return module(folder.read_bytes(), f"{place}.py")
    extensions = sorted(folder.rglob("*.so"))
    inside = {f"{place}/{path.relative_to(folder)}": copied(path) for path in extensions}
    return {**sources(folder, place), **inside, **libraries(extensions)}


def is_installed(name: str) -> bool:
    try:
        return _installed(name).exists()
    except ModuleNotFoundError:
        return False


def _installed(name: str) -> Path:
    """Return a package's folder or a module's file. Raises ModuleNotFoundError."""
    found = importlib.util.find_spec(name)
    if found is None:
        message = f"the Python package {name} is missing here"
        raise ModuleNotFoundError(message)
    folders = list(found.submodule_search_locations or ())
    return Path(folders[0] if folders else str(found.origin))


def sources(folder: Path, place: str) -> dict[str, Item]:
    """Return the modules below a folder, compiled too: containers may not write what Python would compile."""
    modules: dict[str, Item] = {}
    for path in _modules(folder):
        modules |= module(path.read_bytes(), f"{place}/{path.relative_to(folder)}")
    return modules


def _modules(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT and not name.startswith("config-"))
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".py"))


def module(source: bytes, place: str) -> dict[str, Item]:
    """Return a module's source and what it compiles to."""
    return {place: Item(source), importlib.util.cache_from_source(place): Item(_compiled(source, place))}


def _compiled(source: bytes, place: str) -> bytes:
    """Return a compiled module that is taken for valid whatever its source's time: PEP 552."""
    unchecked = (1).to_bytes(4, "little")
    # Marshal's version 2 has no references, which differ from run to run.
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
        code = marshal.dumps(compile(source, place, "exec", dont_inherit=True, optimize=0), 2)
    return importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source) + code


def libraries(binaries: Iterable[Path]) -> dict[str, Item]:
    """Return the shared libraries that these files need and the dynamic loader, where the loader will look."""
    needed = sorted({found for binary in binaries for found in _needed(binary)})
    folder = next((path.parent for path in needed if path.name.startswith("libc.")), Path("/lib"))
    return {str(path if path.name.startswith("ld-") else folder / path.name): copied(path.resolve()) for path in needed}


@functools.cache
def _needed(binary: Path) -> tuple[Path, ...]:
    told = subprocess.run(["ldd", binary], check=False, capture_output=True, text=True)
    return tuple(Path(path) for path in _RESOLVED.findall(told.stdout))

"""Builds the native library with the compiler at hand, and keeps it in the user's cache.

A cached library's name holds two digests: of all that it depends on (sources, compiler, flags, processor), and of its
own bytes. So a stale one is not found, and a damaged one is noticed before it is loaded; both are built anew. It
appears under its name only when it is complete. Processes that need it at the same time wait for the first one's.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),  # no -ffast-math: infinities are used
)
MORE_FLAGS = "SEGUE_NATIVE_FLAGS"
"""More flags for the compiler, as `make sanitize` gives them."""

COMPILERS = ("c++", "g++", "clang++")
CACHES = ("SEGUE_CACHE", "XDG_CACHE_HOME")
MOST_KEPT = 8
"""Libraries that stay in the cache: those of other versions, compilers and processors, the newest first."""

TIMEOUT = 300
"""Seconds after which a compiler is stopped. It should need less than 15, but a busy machine may take its time."""

SOURCES = Path(__file__).parent


class BuildError(Exception):
    """Why there is no library; never seen by a user, who reads on with torch."""


class Compiler(NamedTuple):
    """A C++ compiler, and what it says about itself."""

    command: tuple[str, ...]
    version: str

    @property
    def title(self) -> str:
        return self.version.splitlines()[0] if self.version else self.command[0]


def built(announce: Callable[[str], None]) -> tuple[ctypes.CDLL, str]:
    """The loaded library, from the cache or new, and how it came to be."""
    import torch  # noqa: F401  (its OpenMP runtime must be there first: ours is not linked to another one)

    reasons = []
    for compiler in _compilers():
        try:
            return _from_cache(compiler, announce)
        except BuildError as error:
            reasons.append(str(error))
    raise BuildError(reasons[0] if reasons else _no_compiler())


def outlook() -> str:
    """What `built` will most likely do."""
    compiler = next(_compilers(), None)
    if compiler is None:
        raise BuildError(_no_compiler())
    folder = cache_folder()
    ready = any(folder.glob(f"{_key(compiler)}-*.so"))
    return f"{'cached in' if ready else 'will be built on first use in'} {folder}, by {compiler.title}"


def _no_compiler() -> str:
    named = os.environ.get("CXX", "").strip()
    return f"no C++ compiler {named or ''} was found; install g++, or name one in CXX".replace("  ", " ")


def _from_cache(compiler: Compiler, announce: Callable[[str], None]) -> tuple[ctypes.CDLL, str]:
    folder, key = cache_folder(), _key(compiler)
    with _lock(folder):
        for path in folder.glob(f"{key}-*.so"):
            with suppress(BuildError):
                return _loaded(path), f"cached in {folder}, by {compiler.title}"
            path.unlink(missing_ok=True)
        announce("building the native engine (once, some seconds)")
        path = _compiled(compiler, folder, key)
        _drop_oldest(folder)
        return _loaded(path), f"built in {folder}, by {compiler.title}"


def _compilers() -> Iterator[Compiler]:
    named = os.environ.get("CXX", "").strip()
    commands = [tuple(shlex.split(named))] if named else [(name,) for name in COMPILERS]
    for command in commands:
        found = shutil.which(command[0])
        if found is None:
            continue
        with suppress(OSError, subprocess.SubprocessError):
            told = _run([found, *command[1:], "--version"])
            yield Compiler((found, *command[1:]), told.stdout)


def _run(command: list[str], timeout: float = 20) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """That of a compiler. What is loaded before us, such as a sanitizer, is not for it."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def cache_folder() -> Path:
    """A folder that this user alone can write to: $SEGUE_CACHE, $XDG_CACHE_HOME/segue or ~/.cache/segue.

    If that is not to be had, one in the temporary folder.
    The library is code, so a folder that others could have written to is never used.
    """
    own, shared = (os.environ.get(name) for name in CACHES)
    home = Path(shared) if shared else Path("~/.cache").expanduser()
    wanted = Path(own) if own else home / "segue"
    for folder in (wanted / "native", Path(tempfile.gettempdir()) / f"segue-{os.getuid()}"):
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            facts = folder.lstat()
            private = facts.st_uid == os.getuid() and not facts.st_mode & 0o022
            if stat.S_ISDIR(facts.st_mode) and private and os.access(folder, os.W_OK | os.X_OK):
                return folder
    raise BuildError(f"neither {wanted} nor the temporary folder can be written to; set {CACHES[0]}")


def _key(compiler: Compiler) -> str:
    """A digest of all that the library depends on."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.[ch]pp"))}
    facts = [sources, compiler.command, compiler.version, FLAGS, _more_flags(), _processor()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _more_flags() -> list[str]:
    return shlex.split(os.environ.get(MORE_FLAGS, ""))


def _processor() -> list[str]:
    """What `-march=native` looks at: a cache may lie on a disk that unlike machines share."""
    telling = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")
    facts = {platform.machine(), platform.processor()}
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        facts |= {line for line in lines if line.startswith(telling)}
    return sorted(facts)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One process at a time. Where the file system has no locks, several may build, and none disturbs another."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written to: {error.strerror}") from None
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _compiled(compiler: Compiler, folder: Path, key: str) -> Path:
    """Compile all sources side by side, and link them without an OpenMP runtime: torch's will be used."""
    flags = [*FLAGS, *_more_flags()]
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as place:
            sources = sorted(SOURCES.glob("*.cpp"))
            objects = [f"{place}/{source.stem}.o" for source in sources]
            pairs = zip(sources, objects, strict=True)
            _checked([[*compiler.command, *flags, "-c", str(source), "-o", into] for source, into in pairs])
            library = Path(place) / "library.so"
            _checked([[*compiler.command, "-shared", *_more_flags(), *objects, "-o", str(library)]])
            target = folder / f"{key}-{_digest(library)}.so"
            with library.open("rb") as file:
                os.fsync(file.fileno())
            return library.replace(target)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{compiler.title} could not build it: {error}") from None


def _checked(commands: list[list[str]]) -> None:
    """Run commands side by side; the first complaint of one that fails is the error."""
    running = [
        subprocess.Popen(  # noqa: S603
            command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=_environment()
        )
        for command in commands
    ]
    complaints = []
    try:
        for one in running:
            _, said = one.communicate(timeout=TIMEOUT)
            if one.returncode:
                lines = [line for line in said.splitlines() if "error" in line] or [f"code {one.returncode}"]
                complaints.append(lines[0])
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
                one.communicate()  # closes its pipe too
    if complaints:
        raise BuildError(f"{commands[0][0]} failed: {complaints[0]}")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _loaded(path: Path) -> ctypes.CDLL:
    if path.stem.rsplit("-", 1)[-1] != _digest(path):
        raise BuildError(f"{path} is damaged")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"it was built and could not be loaded: {error}") from None


def _drop_oldest(folder: Path) -> None:
    """Remove what killed processes left, and all but the newest libraries. Whoever uses one has it in memory."""
    with suppress(OSError):
        for place in folder.glob("build-*"):
            shutil.rmtree(place, ignore_errors=True)
        libraries = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in libraries[MOST_KEPT:]:
            path.unlink(missing_ok=True)

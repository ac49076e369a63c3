"""Native code: the C++17 sources in this folder, built into one shared library on first use and called by ctypes.

    code = native.library()          # None where it cannot run; native.why() tells the reason
    code.segue_step_float(…)         # plain C functions: pointers and integers, no torch inside

Every `*.cpp` here goes into that library; `*.hpp` are shared by them. `build.py` compiles, caches and checks it.
`SEGUE_NATIVE=0` turns it off: everything then runs as it does where no compiler is at hand.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from segue.native.build import BuildError, built, outlook

SWITCH = "SEGUE_NATIVE"

_OFF: ContextVar[bool] = ContextVar("native code is turned off", default=False)
_loading = threading.Lock()
_library: ctypes.CDLL | None = None
_reason = ""
_announce: Callable[[str], None] = lambda _: None  # noqa: E731


def library() -> ctypes.CDLL | None:
    """The library, built if need be (some seconds, once); None if it is turned off or cannot be built."""
    global _library, _reason  # noqa: PLW0603
    if not enabled():
        return None
    if not _reason:
        with _loading:
            if not _reason:
                try:
                    _library, reason = built(_announce)
                except BuildError as error:
                    _library, reason = None, str(error)
                _reason = reason
    return _library


def enabled() -> bool:
    return not _OFF.get() and os.environ.get(SWITCH, "1") != "0"


@contextmanager
def turned_off() -> Iterator[None]:
    """Let torch compute everything here, for whoever counts its operations."""
    token = _OFF.set(True)
    try:
        yield
    finally:
        _OFF.reset(token)


def why() -> str:
    """Which engine runs, and why, in one line. Builds nothing and loads nothing."""
    if not enabled():
        return f"torch ({SWITCH}=0 turns native code off)"
    if _reason:
        return f"native ({_reason})" if _library is not None else f"torch ({_reason})"
    try:
        return f"native ({outlook()})"
    except BuildError as error:
        return f"torch ({error})"


def announce_with(tell: Callable[[str], None]) -> None:
    """Call `tell` with a line of text before a build, which takes some seconds."""
    global _announce  # noqa: PLW0603
    _announce = tell

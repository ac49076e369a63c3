"""The native library: built once with the compiler at hand, cached, checked, and never in the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from segue import native
from segue.native import build

READ = """
import sys, torch
from segue import native
code = native.library()
print("none" if code is None else code.segue_threads(2), "|", native.why())
print(len({line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.rsplit("/")[-1]}))
"""


def has_compiler() -> bool:
    return next(build._compilers(), None) is not None


needs_compiler = pytest.mark.skipif(
    not (has_compiler() and native.enabled()), reason="no C++ compiler, or SEGUE_NATIVE=0"
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and sources so small that a build takes no time."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("threads.cpp", "native.hpp"):
        (sources / name).write_text((build.SOURCES / name).read_text())
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("SEGUE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "native"


def built() -> tuple[int, list[str]]:
    """The threads of a region in the library that was loaded, and what was announced."""
    told: list[str] = []
    code, _ = build.built(told.append)
    return code.segue_threads(2), told


@needs_compiler
def test_it_is_built_once_and_then_found(cache: Path) -> None:
    threads, told = built()
    assert threads == 2
    assert told
    (made,) = cache.glob("*.so")
    assert cache.stat().st_mode & 0o077 == 0
    assert not list(cache.glob("build-*"))
    assert built() == (2, [])
    assert list(cache.glob("*.so")) == [made]


@needs_compiler
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_a_damaged_library_is_noticed_before_it_is_loaded_and_built_anew(cache: Path, damage: str) -> None:
    built()
    (made,) = cache.glob("*.so")
    whole = made.read_bytes()
    flipped = bytes([*whole[:5000], whole[5000] ^ 1, *whole[5001:]])
    made.unlink()  # a loaded library must not be written to
    made.write_bytes({"flipped": flipped, "cut": whole[:6000], "empty": b""}[damage])
    assert built() == (2, ["building the native engine (once, some seconds)"])
    (again,) = cache.glob("*.so")
    assert again.read_bytes() == whole


@needs_compiler
@pytest.mark.parametrize("change", ["source", "header", "flags", "processor"])
def test_a_stale_library_is_not_used(cache: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built()
    if change == "source":
        (build.SOURCES / "threads.cpp").write_text((build.SOURCES / "threads.cpp").read_text() + "\n// new\n")
    elif change == "header":
        (build.SOURCES / "native.hpp").write_text((build.SOURCES / "native.hpp").read_text() + "\n// new\n")
    elif change == "flags":
        monkeypatch.setenv("SEGUE_NATIVE_FLAGS", "-g")
    else:
        monkeypatch.setattr(build, "_processor", lambda: ["another"])
    assert built()[1]


@needs_compiler
def test_processes_at_once_are_safe(cache: Path, tmp_path: Path) -> None:
    """Two of them, as two ranks: one builds, the other waits for it."""
    script = READ.replace(
        "code =",
        "from segue.native import build\n"
        f"from pathlib import Path; build.SOURCES = Path({str(build.SOURCES)!r})\ncode =",
    )
    running = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [one.communicate()[0].splitlines() for one in running]
    assert [lines[0].split(" ")[0] for lines in said] == ["2", "2"]
    assert sorted("built in" in lines[0] for lines in said) == [False, True]
    assert len(list(cache.glob("*.so"))) == 1


@needs_compiler
def test_a_cache_that_others_could_write_to_is_not_used(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert build.cache_folder() != cache
    cache.chmod(0o700)
    assert build.cache_folder() == cache


def test_a_cache_that_is_a_file_is_not_used(cache: Path) -> None:
    cache.parent.write_text("in the way")
    assert build.cache_folder().name == f"segue-{os.getuid()}"


@needs_compiler
def test_old_libraries_and_remains_of_killed_processes_are_removed(cache: Path) -> None:
    cache.mkdir(parents=True, mode=0o700)
    (cache / "build-killed").mkdir()
    for number in range(build.MOST_KEPT + 3):
        (cache / f"{number}-{number}.so").write_text("")
        os.utime(cache / f"{number}-{number}.so", (number, number))
    built()
    assert len(list(cache.glob("*.so"))) == build.MOST_KEPT
    assert not list(cache.glob("build-*"))


@needs_compiler
def test_a_source_that_does_not_compile_is_a_reason_in_one_line(cache: Path) -> None:
    (build.SOURCES / "threads.cpp").write_text("int broken(")
    with pytest.raises(build.BuildError, match="failed: .*error"):
        built()
    assert not list(cache.glob("*.so"))


@needs_compiler
def test_there_is_one_openmp_runtime_and_it_is_torchs() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    first, runtimes = done.stdout.splitlines()
    assert first.startswith("2 | native (")
    assert runtimes == "1"


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_reason", ""), ("_library", None)):
        monkeypatch.setattr(native, name, value)
    monkeypatch.delenv("SEGUE_NATIVE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = "torch (no C++ compiler was found; install g++, or name one in CXX)"
    assert native.why() == wanted
    assert native.library() is None
    assert native.why() == wanted
    monkeypatch.setattr(native, "_reason", "")
    monkeypatch.setenv("CXX", "/no/such/compiler -O1")
    assert native.why() == wanted.replace("compiler", "compiler /no/such/compiler -O1")


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGUE_NATIVE", "0")
    assert native.library() is None
    assert native.why() == "torch (SEGUE_NATIVE=0 turns native code off)"


def test_looking_at_what_would_run_builds_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_reason", "")
    monkeypatch.setattr(native, "_library", None)
    monkeypatch.delenv("SEGUE_NATIVE", raising=False)
    assert ("will be built on first use" if has_compiler() else "no C++ compiler") in native.why()
    assert not list(cache.glob("*.so"))


@needs_compiler
def test_as_many_threads_as_asked_for() -> None:
    code, before = native.library(), torch.get_num_threads()
    assert code is not None
    assert [code.segue_threads(count) for count in (1, 2, 3)] == [1, 2, 3]
    assert torch.get_num_threads() == before

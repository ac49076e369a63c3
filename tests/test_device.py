"""Everything runs on a device that is not the CPU, and never waits for it without need: see `on_a_device.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_a_device_that_is_not_the_cpu() -> None:
    registration = pytest.importorskip("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this torch knows no devices that are written in Python")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        str(HERE / "on_a_device.py"),
    ]
    # Some virtual machines claim AMX, and die of an illegal instruction in torch's own products in bfloat16.
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=HERE.parent, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

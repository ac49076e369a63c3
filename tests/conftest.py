"""One thread, since tests run side by side on tiny models; the same hypothesis examples every time; small data."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from runs import make_corpus, make_pairs
from support import EXAMPLES

settings.register_profile(
    "segue",
    deadline=None,
    derandomize=True,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("segue")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """One thread for every test and its fixtures: commands set their own, and last bits depend on it."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("data"))


@pytest.fixture
def exact() -> Iterator[None]:
    """Weights in float64, so that only mistakes show; ranks are forks and inherit it."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)

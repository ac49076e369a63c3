"""One thread, since tests run side by side on tiny models; the same hypothesis examples every time."""

import torch
from hypothesis import HealthCheck, settings

from support import EXAMPLES

torch.set_num_threads(1)
settings.register_profile(
    "segue",
    deadline=None,
    derandomize=True,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("segue")

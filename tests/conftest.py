"""What all tests share: no environment of the machine's owner leaks in."""

from __future__ import annotations

import os

import pytest

from vmgpu.settings import settings

for name in [name for name in os.environ if name.startswith("VMGPU_") and not name.startswith("VMGPU_TEST_")]:
    if name != "VMGPU_CACHE_DIR":
        del os.environ[name]


@pytest.fixture(autouse=True)
def _fresh_settings() -> None:
    settings.cache_clear()

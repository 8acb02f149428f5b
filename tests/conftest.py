"""What all tests share: no environment of the machine's owner leaks in."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings as hypothesis_settings

from tests.depth import examples
from tests.gpuhost.machine import machine  # noqa: F401 - a fixture
from vmgpu.settings import settings

hypothesis_settings.register_profile("no folder", database=None, max_examples=examples(100))
hypothesis_settings.load_profile("no folder")

for name in [name for name in os.environ if name.startswith("VMGPU_") and not name.startswith("VMGPU_TEST_")]:
    if name != "VMGPU_CACHE_DIR":
        del os.environ[name]


@pytest.fixture(autouse=True)
def _fresh_settings() -> None:
    settings.cache_clear()


# these start a process, a server or a file system of their own for nearly every test
_WITH_PROCESSES = (
    "test_hostctl_client",
    "test_hostctl_zip",
    "test_host_setup",
    "test_remote_setup",
    "test_demo",
    "test_guest",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The quick part goes without fake GPU hosts, hostctl's processes, handed-over stories, demos and SSH servers."""
    for item in items:
        fake = {"machine", "start"} & set(getattr(item, "fixturenames", ()))
        if fake or {"hostctl", "handover"} & set(item.path.parts) or item.path.stem in _WITH_PROCESSES:
            item.add_marker(pytest.mark.slow)

"""The whole service on a real libvirtd: the one that VMGPU_TEST_LIBVIRT names, made for this run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import real_host

_broken: set[str] = set()


@pytest.fixture(scope="session")
def libvirt_uri() -> str:
    found = os.environ.get("VMGPU_TEST_LIBVIRT", "")
    if not found:
        pytest.skip("VMGPU_TEST_LIBVIRT names no libvirt of the tests' own")
    return found


@pytest.fixture(autouse=True)
def chapter(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a file are chapters of one story: after one that failed the others have nothing to stand on."""
    if request.node.path.name in _broken:
        pytest.skip("an earlier chapter failed")
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        _broken.add(request.node.path.name)


@pytest.fixture(scope="session")
def tiny(libvirt_uri: str) -> Path:
    from vmgpu.lab.tiny import ensure_tiny_image

    return ensure_tiny_image()


@pytest.fixture(scope="session")
def debian(libvirt_uri: str) -> Path:
    from vmgpu.lab.guestimage import ensure_guest_image

    return ensure_guest_image()


@pytest.fixture(scope="module")
def before(libvirt_uri: str) -> frozenset[str]:
    """What was on the host before the story began."""
    return real_host.traces()

"""A host for one test, taken down with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gpuhost import FakeHost, gpu_host, why_not

Start = Callable[..., FakeHost]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a host by the name of its description; keywords go to gpu_host."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with ExitStack() as running:

        def one(description: str | Mapping[str, Any], **how: Any) -> FakeHost:
            return running.enter_context(gpu_host(description, tmp_path, **how))

        yield one

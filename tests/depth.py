"""How deep a property test looks: `make check` tries few generated examples, the whole run all of them."""

import os

QUICK = os.environ.get("VMGPU_TEST_QUICK") == "1"


def examples(whole: int) -> int:
    """The number to try, of the number that the whole run tries."""
    return max(10, whole // 5) if QUICK else whole

"""What the doctor has to say of the lab's host, finding by finding: a wrong level or a missing line is a fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OK, WARNING, BROKEN = frozenset({"ok"}), frozenset({"warning"}), frozenset({"broken"})
# By the order of QEMU's devices: the console's, the one beside the network card, the one behind a port of its own.
CONSOLE, BESIDE, ALONE = "0000:00:05.0", "0000:01:02.0", "0000:02:00.0"

# Asked of the host's own shell; one word a line that holds.
LOOK = """\
grep -qwE 'vmx|svm' /proc/cpuinfo && echo virtualization
[ -e /dev/kvm ] && echo kvm
grep -q '/vfio-pci\\.ko' /lib/modules/$(uname -r)/modules.builtin && echo vfio-pci
[ -n "$(ls /sys/kernel/iommu_groups)" ] && echo groups
true
"""


@dataclass(frozen=True)
class Truth:
    """What is so on the host, by its own shell."""

    virtualization: bool
    kvm: bool
    vfio_pci: bool
    groups: bool

    @classmethod
    def of(cls, said: str) -> Truth:
        """What `LOOK` said."""
        words = set(said.split())
        return cls("virtualization" in words, "kvm" in words, "vfio-pci" in words, "groups" in words)


def expected(truth: Truth) -> dict[str, frozenset[str]]:
    """Each finding that must be told, and the levels that are right."""
    right = {
        "firmware-virtualization": OK if truth.virtualization else BROKEN,
        "firmware-iommu": OK,
        "kernel-iommu": OK if truth.groups else BROKEN,
        "vfio": OK if truth.vfio_pci else WARNING,
        f"card-driver:{CONSOLE}": OK,
        f"card-driver:{BESIDE}": OK,
        f"card-driver:{ALONE}": OK,
        f"card-console:{CONSOLE}": BROKEN,
        f"card-bars:{CONSOLE}": OK,
        f"card-bars:{BESIDE}": OK,
        f"card-bars:{ALONE}": OK,
        f"card-reset:{CONSOLE}": BROKEN,  # on the root bus, and without any reset of its own
        f"card-reset:{BESIDE}": BROKEN,
        f"card-reset:{ALONE}": OK,  # by its bus, where it is alone
        "mdev-parent:mtty": OK,
        "mdev-parent:mbochs": BROKEN,
        "memory-hugepages": OK,
        "memory-locked": OK,
        "helper": OK,
        # whether a guest runs under a KVM that is there is seen by the survey's probe alone
        "kvm": OK | BROKEN if truth.kvm else BROKEN,
        "libvirt": OK,
        "qemu": OK,
        "guest-firmware": OK,
        "libvirt-hostdev": OK if truth.groups else BROKEN,
        "pool": WARNING,  # four GiB are few
        "network": OK,
        "images": OK,
        "time": WARNING,  # nothing to synchronise with is reached
    }
    if truth.groups:
        right |= {
            "interrupt-remapping": OK,
            "kernel-command-line": OK,
            f"card-group:{CONSOLE}": OK,
            f"card-group:{BESIDE}": BROKEN,
            f"card-group:{ALONE}": OK,
            "cards": WARNING,
        }
    return right


def wrong(told: Iterable[Mapping[str, Any]], right: Mapping[str, frozenset[str]]) -> list[str]:
    """Each finding that is not as it should be, each that was not told, and each that names no cure."""
    faults, met = [], set[str]()
    for finding in told:
        name, level = str(finding["id"]), str(finding["level"])
        met.add(name)
        if name not in right:
            faults.append(f"{name} ({level}) was not expected: {finding['seen']}")
        elif level not in right[name]:
            faults.append(f"{name} is {level}, not {' or '.join(sorted(right[name]))}: {finding['seen']}")
        elif level != "ok" and not finding["cure"]:
            faults.append(f"{name} is {level} and has no cure")
    return faults + [f"{name} was not told" for name in right if name not in met]

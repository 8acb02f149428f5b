"""All that a host says of itself, in one look that touches nothing."""

from __future__ import annotations

from typing import Any

from . import bus, host, mdev, nvml_facts, partition, pci
from .deadline import Deadline
from .files import Files
from .holders import Holders
from .patterns import Arguments

PROTOCOL = "1"


def run(files: Files, arguments: Arguments, deadline: Deadline) -> dict[str, Any]:
    """The verb. Who holds what is looked at before NVML is opened: we would find ourselves."""
    arguments.only()
    held = Holders(files)
    machine = host.look(files)
    nvml = nvml_facts.look(files)
    seen = bus.look(files)
    mdevs = mdev.Mdevs(files)
    functions = pci.functions(files, seen, held, mdevs, nvml_facts.modes(nvml))
    switches = sorted(each.address for each in seen.functions.values() if each.is_switch)
    of_vfs = [each.address for each in seen.functions.values() if each.physfn is not None]
    fabric = partition.look(files, switches, deadline)
    return {
        "hostctl": PROTOCOL,
        "host": machine,
        "pci": functions,
        "mdev_parents": mdevs.parents(of_vfs),
        "mdevs": mdevs.live,
        "nvml": nvml,
        "fabric": fabric,
        "errors": files.troubles,
        "opened": len(files.opened),
    }

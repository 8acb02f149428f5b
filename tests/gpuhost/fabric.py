"""The NVSwitch fabric of an HGX board: its manager and the partitions that may be active side by side."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.gpuhost.card import Card
from tests.gpuhost.pci import hgx_partitions
from tests.gpuhost.refusal import Refused


@dataclass
class Fabric:
    """Shared NVSwitch mode (FABRIC_MODE=1): the host owns the switches, partitions are switched on for VMs."""

    cards: Sequence[Card]
    mode: int = 1
    active: set[int] = field(default_factory=set)

    def boot(self) -> None:
        self.active.clear()

    @property
    def partitions(self) -> dict[int, tuple[int, ...]]:
        return dict(hgx_partitions(len(self.cards)))

    def activate(self, number: int) -> None:
        """Refused where a GPU already belongs to an active partition."""
        if number not in self.partitions:
            raise Refused(f"no partition {number}", number=errno.EINVAL)
        taken = {gpu for each in self.active for gpu in self.partitions[each]}
        if taken & set(self.partitions[number]):
            raise Refused("a GPU of it is in an active partition", number=errno.EBUSY)
        self.active.add(number)

    def deactivate(self, number: int) -> None:
        if number not in self.active:
            raise Refused(f"partition {number} is not active", number=errno.EINVAL)
        self.active.discard(number)

    def listing(self) -> str:
        """What `fmpm -l` prints."""
        by_module = {each.module: each for each in self.cards}
        rows = [
            {
                "partitionId": number,
                "isActive": int(number in self.active),
                "numGpus": len(modules),
                "gpuInfo": [_told(by_module[module]) for module in modules],
            }
            for number, modules in self.partitions.items()
        ]
        return json.dumps(
            {"version": 1, "numPartitions": len(rows), "maxNumPartitions": len(rows), "partitionInfo": rows}, indent=2
        )


def _told(card: Card) -> dict[str, object]:
    return {
        "physicalId": card.module,
        "uuid": card.uuid,
        "pciBusId": f"0000{card.address}".upper(),
        "numNvLinksAvailable": 18,
        "maxNumNvLinks": 18,
        "nvlinkLineRateMBps": 26562,
    }

"""What a survey of a simulated host finds; it says simulated wherever a name is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from vmgpu.hypervisor import GpuFacts, HostFacts, HostRef, NumaNode
from vmgpu.hypervisor.fake.carver import EMULATED
from vmgpu.hypervisor.fake.shape import FakeCard, FakeShape
from vmgpu.hypervisor.fake.state import NETWORKS

_SIMULATED = "simulated"
_BASE_GIB = 2
_NVIDIA = "10de"


def host_facts(ref: HostRef, shape: FakeShape, *, boot_id: str, images_mib: Mapping[str, int]) -> HostFacts:
    """The survey of a host of this shape, with the sizes of its images by file; its disks are thin."""
    total_gib = shape.disk_mib // 1024
    return HostFacts(
        hostname=ref.name,
        machine="",
        here="",
        boot_id=boot_id,
        libvirt=_SIMULATED,
        qemu=_SIMULATED,
        cpu_model=_SIMULATED,
        threads=shape.threads,
        memory_mib=shape.memory_mib,
        accel=_SIMULATED,
        accel_why="a simulated host runs no guest",
        disk_total_gib=total_gib,
        disk_free_gib=max(0, total_gib - _BASE_GIB - -(-sum(images_mib.values()) // 1024)),
        disk_written_mib=images_mib,
        pool=_SIMULATED,
        network=ref.network.name,
        network_range=", ".join(NETWORKS),
        numa=_numa(shape),
        gpus=tuple(_gpu_facts(card, number) for number, card in enumerate(shape.cards)),
        warnings=("This host is simulated: no guest runs on it, and none can be reached by SSH",),
    )


def _numa(shape: FakeShape) -> tuple[NumaNode, ...]:
    nodes = shape.numa_nodes
    edges = [shape.threads * n // nodes for n in range(nodes + 1)]
    return tuple(NumaNode(n, f"{edges[n]}-{edges[n + 1] - 1}", shape.memory_mib // nodes) for n in range(nodes))


def _gpu_facts(card: FakeCard, number: int) -> GpuFacts:
    model = card.model
    return GpuFacts(
        key=f"simulated-{number}-{model.name}",
        address=card.address,
        vendor=_NVIDIA,
        device=model.device,
        name=f"{model.name} (simulated)",
        model=model.name,
        emulated=True,
        class_code="0302",
        driver=_SIMULATED,
        numa_node=card.numa_node,
        iommu_group=number + 1,
        memory_mib=model.memory_mib,
        modes=(EMULATED,),
    )

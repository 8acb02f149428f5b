"""The facts of a host in their own types; whatever was not told is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from vmgpu.hypervisor.doctor.cures import Platform
from vmgpu.hypervisor.doctor.findings import Level

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
FABRIC_FULL, FABRIC_SHARED, FABRIC_VGPU = 0, 1, 2  # FABRIC_MODE of the fabric manager
_CARD_CLASSES = ("0300", "0302", "0380", "1200")
_BRIDGE_CLASSES = ("0600", "0604")


@dataclass(frozen=True)
class Module:
    """A kernel module: in memory, or part of the kernel itself."""

    loaded: bool | None = None
    builtin: bool | None = None

    @property
    def there(self) -> bool | None:
        """Whether the kernel can use it now."""
        if self.loaded is None and self.builtin is None:
            return None
        return bool(self.loaded or self.builtin)


@dataclass(frozen=True)
class Hugepages:
    """Reserved pages of one size on one NUMA node."""

    size_kib: int
    total: int
    free: int


@dataclass(frozen=True)
class Host:
    """The machine itself."""

    kernel: str = ""
    arch: str = ""
    cmdline: str | None = None
    platform: Platform = field(default_factory=Platform)
    cpu_vendor: str = ""
    cpu_model: str = ""
    virtualization: bool | None = None
    memory_mib: int | None = None
    uefi: bool | None = None
    secure_boot: bool | None = None
    dmar: bool | None = None
    ivrs: bool | None = None
    groups: int | None = None
    remapping: bool | None = None
    modules: Mapping[str, Module] = field(default_factory=dict)
    vfio: bool | None = None
    unsafe_interrupts: bool | None = None
    kvm: bool | None = None
    hugepages: tuple[Hugepages, ...] = ()
    memlock_kib: int | None = None
    time_synced: bool | None = None
    kernel_log: str = ""

    @property
    def x86(self) -> bool:
        """VT-d, AMD-Vi and their ACPI tables exist on x86 alone; an unknown machine is most likely one."""
        return self.arch in ("", "x86_64", "amd64")

    @property
    def iommu_name(self) -> str:
        """What the firmware calls its IOMMU: by its table: a virtual machine may have the other maker's processor."""
        if self.dmar or self.ivrs:
            return "Intel VT-d" if self.dmar else "AMD-Vi (IOMMU)"
        if "intel" in self._processor:
            return "Intel VT-d"
        return "AMD-Vi (IOMMU)" if self.is_amd else "VT-d (Intel) or AMD-Vi (AMD)"

    @property
    def is_amd(self) -> bool:
        return bool(self.ivrs) or ("amd" in self._processor and "intel" not in self._processor)

    @property
    def _processor(self) -> str:
        return f"{self.cpu_vendor} {self.cpu_model}".casefold()

    def module(self, name: str) -> Module:
        """A module by name; unknown where the helper did not say."""
        return self.modules.get(name, Module())


@dataclass(frozen=True)
class Bar:
    """One memory region of a PCI function."""

    index: int
    size_mib: int
    assigned: bool | None


@dataclass(frozen=True)
class Holder:
    """A process that has a device file of a card open."""

    pid: int | None
    command: str
    vm: str


@dataclass(frozen=True)
class Function:
    """One PCI function."""

    address: str
    vendor: str = ""
    device: str = ""
    class_code: str = ""
    driver: str = ""
    group: int | None = None
    boot_vga: bool | None = None
    bridge: bool = False
    reset_methods: tuple[str, ...] | None = None
    dead: bool | None = None
    bars: tuple[Bar, ...] = ()
    width: int | None = None
    max_width: int | None = None
    physfn: str = ""
    vfs: tuple[str, ...] = ()
    vfs_on: int | None = None
    vfs_most: int | None = None
    driver_override: str = ""
    mdev_types: tuple[str, ...] = ()
    vendor_vfio: bool = False  # it has NVIDIA's folder of vGPU types: the framework without mdev
    vgpu_type: int | None = None
    holders: tuple[Holder, ...] = ()

    @property
    def is_bridge(self) -> bool:
        return self.bridge or self.class_code in _BRIDGE_CLASSES

    @property
    def is_card(self) -> bool:
        """A whole display or accelerator of a vendor we know; a server's own VGA is never one."""
        known = self.vendor in (NVIDIA, AMD, INTEL) and self.class_code in _CARD_CLASSES
        return known and not self.is_bridge and not self.physfn and not self.is_integrated

    @property
    def is_integrated(self) -> bool:
        """Intel's processor graphics sit on the root bus; a card never does."""
        return self.vendor == INTEL and self.address.startswith("0000:00:")

    @property
    def is_switch(self) -> bool:
        """An NVSwitch."""
        return self.vendor == NVIDIA and self.class_code == "0680"

    def beside(self, other: Function) -> bool:
        """Whether both are functions of one device."""
        return self.address.rpartition(".")[0] == other.address.rpartition(".")[0]


@dataclass(frozen=True)
class Vgpu:
    """A running vGPU."""

    vm: str
    driver: str
    licensed: bool | None


@dataclass(frozen=True)
class Device:
    """A card as NVML sees it."""

    address: str
    mig: tuple[bool, bool] | None = None  # current and pending
    virtualization: str = ""
    sriov: bool | None = None
    mixed: tuple[bool | None, bool | None] = (None, None)  # supported, on
    instances: int = 0
    vgpu_types: tuple[str, ...] = ()
    vgpus: tuple[Vgpu, ...] = ()
    processes: tuple[str, ...] = ()
    ecc: bool | None = None
    display_active: bool | None = None


@dataclass(frozen=True)
class Nvml:
    """NVML on the host; `state` is empty where unknown."""

    state: str = ""
    driver: str = ""
    error: str = ""
    devices: Mapping[str, Device] = field(default_factory=dict)


@dataclass(frozen=True)
class Partition:
    """A set of so many GPUs that the fabric manager connects."""

    active: bool | None
    gpus: int


@dataclass(frozen=True)
class Fabric:
    """NVSwitches and who runs them."""

    switches: tuple[str, ...] = ()
    manager: str = ""
    mode: int | None = None
    partitions: tuple[Partition, ...] | None = None


@dataclass(frozen=True)
class Facts:
    """All that a host's helper told in one answer; `told`: there was an answer at all."""

    told: bool = False
    host: Host = field(default_factory=Host)
    functions: Mapping[str, Function] = field(default_factory=dict)
    bus_known: bool = False
    mdev_parents: tuple[str, ...] = ()
    mdevs: tuple[str, ...] = ()
    nvml: Nvml = field(default_factory=Nvml)
    fabric: Fabric = field(default_factory=Fabric)
    errors: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # ids (`1234:1111`) of cards that the host's settings name

    def is_card(self, function: Function) -> bool:
        """Whether it is a whole card: one of the makers that we know, or one that the settings name."""
        named = f"{function.vendor}:{function.device}" in self.more and not (function.physfn or function.is_bridge)
        return function.is_card or named

    @cached_property
    def cards(self) -> tuple[Function, ...]:
        """All whole cards, by address."""
        return tuple(each for _, each in sorted(self.functions.items()) if self.is_card(each))

    @cached_property
    def switches(self) -> tuple[str, ...]:
        """All NVSwitches."""
        found = {each.address for each in self.functions.values() if each.is_switch}
        return tuple(sorted(found | set(self.fabric.switches)))

    @property
    def lacking(self) -> Level:
        """How bad it is when whole cards cannot be given: on a host without cards it only waits for the first one."""
        return Level.broken if self.cards else Level.warning

    @property
    def vgpu_host(self) -> bool:
        """Whether NVIDIA's vGPU manager drives this host."""
        shown = any(each.virtualization in ("host_vgpu", "host_vsga") for each in self.nvml.devices.values())
        return shown or bool(self.host.module("nvidia_vgpu_vfio").there)

    def group_of(self, function: Function) -> tuple[Function, ...]:
        """The endpoints of its IOMMU group, itself among them."""
        if function.group is None:
            return ()
        return tuple(
            each for _, each in sorted(self.functions.items()) if each.group == function.group and not each.is_bridge
        )

    def vfs_of(self, card: Function) -> tuple[Function, ...]:
        """Its virtual functions that are on the bus now."""
        named = set(card.vfs)
        return tuple(
            each for _, each in sorted(self.functions.items()) if each.physfn == card.address or each.address in named
        )

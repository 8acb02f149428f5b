"""The whole host: cards on a bus, VMs that use them, mediated devices, and what a reboot leaves of it."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition, RLock
from uuid import NAMESPACE_OID, UUID, uuid5

from tests.gpuhost.bus import Bus
from tests.gpuhost.card import Card, Vgpu
from tests.gpuhost.fabric import Fabric
from tests.gpuhost.moods import Mood, Moods
from tests.gpuhost.pci import Function
from tests.gpuhost.refusal import Nvml, Refused, WouldHang

_PLACEMENT = re.compile(r"vgpu-placement-id=(\d+)")


@dataclass
class Process:
    """A process of the host; `opened` are the device files it holds."""

    pid: int
    command: str
    words: tuple[str, ...]
    opened: tuple[str, ...]
    card: str | None = None


@dataclass(frozen=True)
class Machine:
    """What the host is besides its cards."""

    hostname: str = "gpu1"
    cpu: str = "Intel(R) Xeon(R) Platinum 8480+"
    vendor: str = "GenuineIntel"
    threads: int = 64
    sockets: int = 2
    memory_gib: int = 512
    os: str = "ubuntu-24.04"
    kernel: str = "6.8.0-60-generic"
    driver: str = "570.133.20"
    iommu: bool = True
    uefi: bool = True
    modules: tuple[str, ...] = ()
    hugepages: int = 0


@dataclass
class Host:
    """The truth of one GPU host. Everything that sysfs, NVML and the tests do ends in a method of this or its cards."""

    machine: Machine
    bus: Bus = field(init=False)
    moods: Moods = field(default_factory=Moods)
    fabric: Fabric | None = None
    processes: dict[int, Process] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    boots: int = 1
    version: int = 0  # counts changes, so that what was found in the tree can be kept between them
    may_block: bool = False
    lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        self.bus = Bus(self.in_use, self.say)
        self.changed = Condition(self.lock)
        self._pids = 4000

    @property
    def boot_id(self) -> str:
        return str(uuid5(NAMESPACE_OID, f"{self.machine.hostname} boot {self.boots}"))

    @property
    def cards(self) -> list[Card]:
        return [each.card for each in self.bus.endpoints() if each.card]

    @property
    def visible(self) -> list[Card]:
        """What NVML counts: cards on the nvidia driver."""
        return [each.card for each in self.bus.endpoints() if each.card and each.driver == "nvidia"]

    def card(self, address: str) -> Card:
        """The card of a function, PF or VF."""
        card = self.bus.get(address).card
        if card is None:
            raise Refused(f"{address} is no GPU", number=errno.ENODEV)
        return card

    def in_use(self, card: Card) -> bool:
        """Whether the driver cannot let go: a process or a VM has it open."""
        return any(each.vm for each in card.vgpus) or any(each.card == card.address for each in self.processes.values())

    def say(self, text: str) -> None:
        """A line of the kernel's log."""
        self.log.append(text)

    # vGPUs

    def sits(self, function: Function) -> bool:
        """Whether vGPUs can be made on this function: its card's driver runs and speaks to it."""
        card = function.card
        if card is None or not card.model.vgpu or card.dead:
            return False
        parent = self.bus.functions[function.physfn or function.address]
        on_vf = card.model.total_vfs > 0
        return parent.driver == "nvidia" and function.driver == "nvidia" and on_vf == bool(function.physfn)

    def creatable(self, function: Function) -> list[int]:
        """Type ids that this function offers now; every free VF offers the whole card's room."""
        card = function.card
        if card is None or not self.sits(function):
            return []
        if function.physfn and any(each.parent == function.address for each in card.vgpus):
            return []
        return [each.id for each in card.creatable()]

    def set_type(self, address: str, text: str) -> None:
        """`current_vgpu_type` of vendor-specific VFIO."""
        function, card = self.bus.get(address), self.card(address)
        if not text.isdecimal() or (int(text) and card.model.type(int(text)) is None):
            raise Refused("not a vGPU type", number=errno.EINVAL)
        if not int(text):
            card.remove_vgpu(address)
            return
        if int(text) not in self.creatable(function):
            self.say("NVRM: Failed to add vgpu create request: 0x38")
            raise Refused("cannot be created now", number=errno.EIO)
        self._create(card, int(text), address, address)

    def create_mdev(self, parent: str, number: int, text: str) -> Vgpu:
        """`mdev_supported_types/<type>/create`."""
        try:
            uuid = str(UUID(text))
        except ValueError:
            raise Refused("not a UUID", number=errno.EINVAL) from None
        if uuid in self.mdevs():
            raise Refused("the UUID is taken", number=errno.EEXIST)
        function, card = self.bus.get(parent), self.card(parent)
        if number not in self.creatable(function):
            self.say("NVRM: Failed to add vgpu create request: 0x38")
            raise Refused("no instance available", number=errno.EIO)
        made = self._create(card, number, uuid, parent)
        made.group = max((0, *self.bus.groups(), *(each.group or 0 for each in self.mdevs().values()))) + 1
        return made

    def mdevs(self) -> dict[str, Vgpu]:
        """Mediated devices by UUID."""
        return {each.seat: each for card in self.cards for each in card.vgpus if each.seat != each.parent}

    def keep_mdev(self, uuid: str) -> None:
        """Define it with autostart, as mdevctl and libvirt do."""
        self.mdevs()[uuid].autostart = True

    def set_params(self, seat: str, text: str) -> None:
        """`vgpu_params`: after the vGPU exists, before its VM starts."""
        vgpu = self.vgpu(seat)
        if vgpu is None:
            raise Refused("no vGPU here", number=errno.EINVAL)
        if vgpu.vm:
            raise Refused("the VM runs", number=errno.EBUSY)
        vgpu.params = text.strip()
        wanted, card = _placement(vgpu.params), self.card_of(vgpu)
        if wanted is not None and wanted in vgpu.type.starts and card.placement_free(wanted, vgpu.type.gb, vgpu):
            vgpu.placement = wanted  # a wrong one fails only when the VM starts

    def card_of(self, vgpu: Vgpu) -> Card:
        return next(each for each in self.cards if vgpu in each.vgpus)

    def vgpu(self, seat: str) -> Vgpu | None:
        return next((each for card in self.cards for each in card.vgpus if each.seat == seat), None)

    # VMs and other users

    def start_vm(self, vm: str, devices: Sequence[str]) -> int:
        """QEMU opens its devices: VFs with a vGPU, mdev UUIDs, or functions on vfio-pci. Returns its pid."""
        opened: list[str] = []
        for device in devices:
            vgpu = self.vgpu(device)
            opened.append(self._open_vgpu(vgpu) if vgpu else self._open_function(device))
        for device in devices:
            vgpu = self.vgpu(device)
            if vgpu:
                vgpu.vm = vm
        words = ("/usr/bin/qemu-system-x86_64", "-name", f"guest={vm[:8]}", "-uuid", vm)
        return self._run("qemu-system-x86", words, tuple(opened))

    def end_vm(self, vm: str, crashed: bool = False) -> None:
        """QEMU is gone, its devices are closed; the vGPUs stay, no longer active, after a crash not to be opened."""
        for card in self.cards:
            for vgpu in card.vgpus:
                if vgpu.vm == vm:
                    vgpu.vm, vgpu.guest_driver, vgpu.licensed, vgpu.dirty = None, "", False, crashed
                    if crashed:
                        self.say(f"[nvidia-vgpu-vfio] {vgpu.seat}: VF FLR failed during close -25")
        for process in [each for each in self.processes.values() if vm in each.words]:
            del self.processes[process.pid]
        self._wake()

    def guest_ready(self, vm: str, driver: str, licensed: bool = True) -> None:
        """The guest's driver has loaded and talked to the licence server."""
        for vgpu in [each for card in self.cards for each in card.vgpus if each.vm == vm]:
            vgpu.guest_driver, vgpu.licensed = driver, licensed

    def hold(self, address: str, command: str) -> int:
        """A process of the host opens a card (DCGM, an exporter, Xorg)."""
        card = self.card(address)
        return self._run(command, (command,), (f"/dev/nvidia{card.number}", "/dev/nvidiactl"), card.address)

    def let_go(self, pid: int) -> None:
        self.processes.pop(pid, None)
        self._wake()

    # misfortune

    def kill_card(self, address: str) -> None:
        """The card answers ff to everything from now on."""
        self.card(address).dead = True
        self.say(f"NVRM: Xid (PCI:{address.rpartition('.')[0]}): 79, GPU has fallen off the bus.")

    def set_mood(self, mood: Mood) -> None:
        self.moods.set(mood)
        self._apply_moods()

    def clear_moods(self) -> None:
        self.moods.clear()
        self._apply_moods()

    def reboot(self, power_cycle: bool = False) -> None:
        """What survives: MIG mode on Ampere, mdevs defined with autostart on a PF; a power cycle revives the dead."""
        kept = [each for each in self.mdevs().values() if each.autostart and not self.bus.get(each.parent).physfn]
        self.processes.clear()
        for card in self.cards:
            card.reboot()
            card.dead = card.dead and not power_cycle
        self.boots += 1
        self.log.clear()
        self.boot()
        for each in kept:
            if each.type.id in self.creatable(self.bus.get(each.parent)):  # not on a card that died or went to vfio
                self.create_mdev(each.parent, each.type.id, each.seat).autostart = True
        self._wake()

    def boot(self) -> None:
        self.bus.boot()
        if self.machine.iommu:
            self.say(
                "DMAR: IOMMU enabled"
                if self.machine.vendor == "GenuineIntel"
                else "AMD-Vi: Interrupt remapping enabled"
            )
            self.say("DMAR-IR: Enabled IRQ remapping in x2apic mode")
        if self.fabric:
            self.fabric.boot()
            self._run("nv-fabricmanager", ("/usr/bin/nv-fabricmanager",), ())

    # drivers

    def unbind(self, driver: str, address: str) -> None:
        """Like the real one, it does not come back while anybody has the device open."""
        function = self.bus.get(address)
        while self._held(driver, function):
            if not self.may_block:
                raise WouldHang(f"unbinding {address} waits for its users", number=errno.EBUSY)
            self.changed.wait()
        self.bus.unbind(driver, address)

    def take_lock(self, address: str) -> None:
        """`unbindLock`, with its fits of being busy."""
        if not self.moods.strikes("unbind_lock", address):
            self.bus.take_lock(address)

    def set_mig(self, card: Card, on: bool) -> Nvml:
        return card.set_mig(on, self.in_use(card))

    def reset_card(self, address: str) -> None:
        """`nvidia-smi --gpu-reset`."""
        card = self.card(address)
        if self.in_use(card) or any(each.vm for each in card.vgpus):
            raise Refused("In use by another client", number=errno.EBUSY)
        card.reset()

    def _held(self, driver: str, function: Function) -> bool:
        if driver == "nvidia" and function.card and not function.physfn:
            return self.in_use(function.card)
        return any(f"/dev/vfio/{function.group}" in each.opened for each in self.processes.values())

    def _apply_moods(self) -> None:
        for card in self.cards:
            card.takes_other = self.moods.seen("other_instance", card.address) is not None
            card.mig_waits = self.moods.seen("mig_waits", card.address) is not None
        self._wake()

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _create(self, card: Card, number: int, seat: str, parent: str) -> Vgpu:
        wanted = card.model.type(number)
        if wanted is None:
            raise Refused("not a vGPU type", number=errno.EINVAL)
        return card.create_vgpu(wanted, seat, parent)

    def _open_vgpu(self, vgpu: Vgpu) -> str:
        if vgpu.vm:
            raise Refused("vfio: device is already attached", number=errno.EBUSY)
        if vgpu.dirty:
            raise Refused("vfio: error opening device: No such device", number=errno.ENODEV)
        wanted, card = _placement(vgpu.params), self.card_of(vgpu)
        if wanted is not None:
            if wanted not in vgpu.type.starts or not card.placement_free(wanted, vgpu.type.gb, vgpu):
                raise Refused(f"vmiop_log: Invalid vGPU placement id {wanted}", number=errno.EINVAL)
            vgpu.placement = wanted
        return f"/dev/vfio/{vgpu.group if vgpu.group is not None else self.bus.get(vgpu.parent).group}"

    def _open_function(self, address: str) -> str:
        function = self.bus.get(address)
        if function.driver != "vfio-pci":
            raise Refused(
                f"Unmanaged PCI device {address} must be manually detached from the host", number=errno.EINVAL
            )
        if function.group is None:
            raise Refused("no iommu_group found: No such file or directory", number=errno.ENOENT)
        if function.dead:
            raise Refused(f"Unknown PCI header type '127' for device {address}", number=errno.EIO)
        for member in self.bus.group(function.group):
            if not member.bridge and member.driver not in (None, "vfio-pci", "pci-stub"):
                raise Refused(f"group {function.group} is not viable", number=errno.EINVAL)
        held = f"/dev/vfio/{function.group}"
        if any(held in each.opened for each in self.processes.values()):
            raise Refused(f"failed to open {held}: Device or resource busy", number=errno.EBUSY)
        return held

    def _run(self, command: str, words: tuple[str, ...], opened: tuple[str, ...], card: str | None = None) -> int:
        self._pids += 1
        self.processes[self._pids] = Process(self._pids, command[:15], words, opened, card)
        return self._pids


def _placement(params: str) -> int | None:
    found = _PLACEMENT.search(params)
    return int(found[1]) if found else None


def active(host: Host) -> Iterator[tuple[Card, Vgpu]]:
    """vGPUs whose VM runs."""
    return ((card, each) for card in host.cards for each in card.vgpus if each.vm)

"""The host's whole file system as far as anybody looks: /sys, /proc, /etc, /dev, and NVIDIA's own programs."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.gpuhost.fabric import Fabric
from tests.gpuhost.host import Host, Process
from tests.gpuhost.nodes import File, Folder, Link, Node, folder, nest, told
from tests.gpuhost.pci import Function
from tests.gpuhost.refusal import Refused
from tests.gpuhost.sysfs import Sysfs, cpus

_PROGRAMS = Path(__file__).parent / "programs"
_LIKE = {"ubuntu": "debian", "rhel": "fedora", "rocky": "rhel centos fedora"}
_SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_BUILT_IN = ("vfio", "vfio_iommu_type1")  # as Ubuntu builds them


def root(host: Host) -> Folder:
    """The mounted tree."""
    sysfs = Sysfs(host)
    entries: dict[str, Node] = {
        "sys/devices": Folder(lambda: {**sysfs.devices(), "system": folder({"node": _nodes(host)})}),
        "sys/bus/pci/devices": sysfs.pci_devices(),
        "sys/bus/pci/drivers": Folder(sysfs.drivers),
        "sys/bus/pci/drivers_probe": File(None, lambda text: host.bus.probe(text.strip())),
        "sys/bus/mdev/devices": Folder(sysfs.mdevs),
        "sys/class/mdev_bus": Folder(sysfs.mdev_parents),
        "sys/class/iommu": folder(_iommu_units(host)),
        "sys/kernel/iommu_groups": Folder(sysfs.groups),
        "sys/module": folder(_modules(host)),
        "sys/firmware": _firmware(host),
        "proc": Folder(partial(_proc, host, _proc_files(host).entries())),
        "dev": Folder(partial(_dev, host)),
        "etc/os-release": File(partial(_os_release, host.machine.os)),
        "boot/grub/grub.cfg": told("# made"),
        "usr/lib/nvidia/sriov-manage": _program("sriov-manage"),
        "usr/bin/nvidia-smi": _program("nvidia-smi"),
        "run/nvidia-smi/reset": File(None, lambda text: host.reset_card(text.strip())),
    }
    if host.fabric:
        entries |= _fabric(host.fabric)
    return nest(entries)


def _program(name: str) -> File:
    return File((_PROGRAMS / name).read_bytes, executable=True)


def _iommu_units(host: Host) -> Mapping[str, Node]:
    if not host.machine.iommu:
        return {}
    stem = "dmar" if host.machine.vendor == "GenuineIntel" else "ivhd"
    return {f"{stem}{number}": folder({}) for number in range(host.machine.sockets)}


def _modules(host: Host) -> Mapping[str, Node]:
    """A module built into the kernel has no initstate and is not in /proc/modules; the others are live."""
    parameters: dict[str, Mapping[str, Node]] = {
        "kvm_intel": {"nested": told("Y")},
        "kvm_amd": {"nested": told("1")},
        "vfio_iommu_type1": {"allow_unsafe_interrupts": told("N")},
    }
    return {
        name: folder(
            {
                **({} if name in _BUILT_IN else {"initstate": told("live"), "refcnt": told(0)}),
                **({"parameters": folder(parameters[name])} if name in parameters else {}),
            }
        )
        for name in (*_BUILT_IN, *_loaded(host))
    }


def _loaded(host: Host) -> list[str]:
    names = {driver.replace("-", "_") for driver in host.bus.drivers if driver != "pcieport"}
    frameworks = {each.model.vgpu for each in host.cards} if "nvidia" in names else set()
    names |= {"nvidia_vgpu_vfio"} if frameworks - {""} else set()
    names |= {"mdev"} if "mdev" in frameworks else set()
    names |= {"kvm", "kvm_intel" if host.machine.vendor == "GenuineIntel" else "kvm_amd"}
    return sorted({*names, *host.machine.modules})


def _firmware(host: Host) -> Folder:
    entries: dict[str, Node] = {}
    if host.machine.iommu:
        table = "DMAR" if host.machine.vendor == "GenuineIntel" else "IVRS"
        entries[f"acpi/tables/{table}"] = File(lambda: table.encode() + b"\x30\0\0\0")
    entries["acpi/tables/APIC"] = File(lambda: b"APIC")
    if host.machine.uefi:
        entries[f"efi/efivars/{_SECURE_BOOT}"] = File(lambda: b"\6\0\0\0\0")
    return nest(entries)


def _nodes(host: Host) -> Folder:
    """/sys/devices/system/node: one node per socket."""
    machine = host.machine
    kib = machine.memory_gib * 1024 * 1024 // machine.sockets

    def pages(size: int, count: int) -> Folder:
        return folder({"nr_hugepages": told(count), "free_hugepages": told(count), "surplus_hugepages": told(0)})

    return folder(
        {
            "online": told(f"0-{machine.sockets - 1}" if machine.sockets > 1 else "0"),
            **{
                f"node{number}": folder(
                    {
                        "cpulist": told(cpus(host, number)),
                        "meminfo": told(
                            f"Node {number} MemTotal:       {kib} kB\nNode {number} MemFree:       {kib} kB"
                        ),
                        "hugepages": folder(
                            {
                                "hugepages-2048kB": pages(2048, 0),
                                "hugepages-1048576kB": pages(1048576, machine.hugepages // machine.sockets),
                            }
                        ),
                    }
                )
                for number in range(machine.sockets)
            },
        }
    )


def _proc(host: Host, files: Mapping[str, Node]) -> Mapping[str, Node]:
    return {**files, **{str(each.pid): Folder(partial(_process, each)) for each in host.processes.values()}}


def _proc_files(host: Host) -> Folder:
    machine = host.machine
    kib = machine.memory_gib * 1024 * 1024
    iommu = "intel_iommu=on iommu=pt" if machine.vendor == "GenuineIntel" else "iommu=pt"
    modules = "".join(f"{name} 16384 0 - Live 0x0000000000000000\n" for name in _loaded(host))
    boot = f"BOOT_IMAGE=/boot/vmlinuz-{machine.kernel} root=/dev/sda2 ro {iommu if machine.iommu else 'quiet'}"
    entries: dict[str, Node] = {
        "cmdline": told(boot),
        "cpuinfo": File(partial(_cpuinfo, host)),
        "meminfo": told(f"MemTotal:       {kib} kB\nMemFree:        {kib} kB\nMemAvailable:   {kib} kB"),
        "modules": File(lambda: modules),
        "version": told(f"Linux version {machine.kernel} (made@up) #1 SMP"),
        "sys/kernel/random/boot_id": File(lambda: f"{host.boot_id}\n"),
        "sys/kernel/hostname": told(machine.hostname),
        "sys/kernel/osrelease": told(machine.kernel),
    }
    if "nvidia" in host.bus.drivers:
        entries["driver/nvidia/version"] = told(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {machine.driver}")
        entries["driver/nvidia/gpus"] = Folder(partial(_gpus, host))
    return nest(entries)


def _gpus(host: Host) -> Mapping[str, Node]:
    """/proc/driver/nvidia/gpus: cards on the driver, no VFs."""
    bound = [host.bus.functions[address] for address in sorted(host.bus.drivers["nvidia"])]
    return {
        each.address: folder(
            {
                "information": File(partial(_information, each)),
                "unbindLock": File(partial(_lock_state, each), partial(_lock, host, each.address)),
            }
        )
        for each in bound
        if each.physfn is None
    }


def _lock_state(function: Function) -> str:
    return f"{int(function.locked)}\n"


def _lock(host: Host, address: str, text: str) -> None:
    if text.strip() == "1":
        host.take_lock(address)
    else:
        host.bus.get(address).locked = False


def _process(process: Process) -> Mapping[str, Node]:
    return {
        "comm": told(process.command),
        "cmdline": File(lambda: "\0".join(process.words) + "\0"),
        "status": told(f"Name:\t{process.command}\nPid:\t{process.pid}\nPPid:\t1"),
        "fd": folder({str(number): Link(target) for number, target in enumerate(("/dev/null", *process.opened))}),
    }


def _information(function: Function) -> str:
    card = function.card
    if card is None:
        raise Refused("no GPU", number=errno.ENODEV)
    return (
        f"Model: \t\t {card.model.name}\nIRQ:   \t\t 0\nGPU UUID: \t {card.uuid}\nVideo BIOS: \t ??.??.??.??.??\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nBus Location: \t {function.address}\n"
        f"Device Minor: \t {card.number}\nGPU Excluded:\t No\n"
    )


def _cpuinfo(host: Host) -> str:
    machine = host.machine
    flag = "vmx" if machine.vendor == "GenuineIntel" else "svm"
    return "\n".join(
        f"processor\t: {number}\nvendor_id\t: {machine.vendor}\nmodel name\t: {machine.cpu}\n"
        f"physical id\t: {number * machine.sockets // machine.threads}\nflags\t\t: fpu {flag} ept\n"
        for number in range(machine.threads)
    )


def _dev(host: Host) -> Mapping[str, Node]:
    """Markers: their being there is what counts."""
    mark = File(lambda: "", lambda text: None)
    bound = [each for each in host.bus.functions.values() if each.driver == "vfio-pci" and each.group is not None]
    groups = {each.group for each in bound} | {each.group for each in host.mdevs().values()}
    nvidia = "nvidia" in host.bus.drivers
    lines = "".join(f"6,{number},{number * 1000000},-;{text}\n" for number, text in enumerate(host.log, 100))
    return {
        "kvm": mark,
        "kmsg": File(lambda: lines),
        "vfio": folder({"vfio": mark, **{str(each): mark for each in groups}}),
        **({"nvidiactl": mark, **{f"nvidia{each.number}": mark for each in host.visible}} if nvidia else {}),
    }


def _os_release(name: str) -> str:
    kind, _, version = name.partition("-")
    return f'ID={kind}\nVERSION_ID="{version}"\nID_LIKE="{_LIKE.get(kind, kind)}"\nPRETTY_NAME="{kind} {version}"\n'


def _fabric(fabric: Fabric) -> dict[str, Node]:
    """`fmpm` speaks to the manager through these files; the real one uses its socket."""

    def act(verb: str, text: str) -> None:
        if not text.strip().isdecimal():
            raise Refused("not a partition", number=errno.EINVAL)
        (fabric.activate if verb == "activate" else fabric.deactivate)(int(text))

    return {
        "usr/bin/fmpm": _program("fmpm"),
        "usr/share/nvidia/nvswitch/fabricmanager.cfg": told(f"FABRIC_MODE={fabric.mode}\nFM_CMD_PORT_NUMBER=6666"),
        "run/fabricmanager/partitions": File(lambda: f"{fabric.listing()}\n"),
        "run/fabricmanager/activate": File(None, partial(act, "activate")),
        "run/fabricmanager/deactivate": File(None, partial(act, "deactivate")),
    }

"""A host made of files and XML: what survey and carvers read, without the host."""

from __future__ import annotations

from pathlib import Path

import libvirt

ACTUAL_BOOT = "5f0c9a52-1111-4222-8333-944455556666"


class Tree:
    """A file system below `root` that shows PCI functions, IOMMU groups and processes as the kernel does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/sys/kernel/random/boot_id", ACTUAL_BOOT + "\n")
        self.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Made-up Xeon 9000\nflags\t: fpu\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def link(self, path: str, target: str) -> None:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.symlink_to(target)

    def function(
        self,
        address: str,
        *,
        ids: str = "10de:20b5",
        class_code: str = "030200",
        group: int | None = None,
        driver: str | None = None,
        bars: tuple[int, ...] = (),
        **files: str,
    ) -> None:
        """One PCI function; `bars` in bytes; other keywords are files of its folder."""
        folder = f"sys/bus/pci/devices/{address}"
        vendor, device = ids.split(":")
        lines = [f"0x{i << 44:016x} 0x{(i << 44) + size - 1:016x} 0x000000000014220c" for i, size in enumerate(bars, 1)]
        lines += ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * (13 - len(lines))
        files = {
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "class": f"0x{class_code}",
            "numa_node": "-1",
            "resource": "\n".join(lines),
            **files,
        }
        for name, text in files.items():
            self.write(f"{folder}/{name}", text + "\n")
        if driver:
            self.link(f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}")
        if group is not None:
            self.link(f"{folder}/iommu_group", f"../../../../kernel/iommu_groups/{group}")
            self.link(f"sys/kernel/iommu_groups/{group}/devices/{address}", f"../../../../devices/{address}")

    def process(self, pid: int, command: str, *opened: str, words: tuple[str, ...] = ()) -> None:
        """A process that has files open."""
        self.write(f"proc/{pid}/comm", command + "\n")
        self.write(f"proc/{pid}/cmdline", "\0".join(words or (command,)) + "\0")
        for number, target in enumerate(("/dev/null", *opened)):
            self.link(f"proc/{pid}/fd/{number}", target)


def node(address: str, inner: str, *, name: str = "", driver: str = "") -> str:
    """A node device's XML, its address in decimal as libvirt writes it."""
    domain, bus, rest = address.split(":")
    slot, function = rest.split(".")
    return f"""
      <device>
        <name>{name or "pci_" + address.replace(":", "_").replace(".", "_")}</name>
        <parent>computer</parent>
        {f"<driver><name>{driver}</name></driver>" if driver else ""}
        <capability type='pci'>
          <domain>{int(domain, 16)}</domain><bus>{int(bus, 16)}</bus>
          <slot>{int(slot, 16)}</slot><function>{function}</function>
          {inner}
        </capability>
      </device>"""


class _Described:
    def __init__(self, xml: str) -> None:
        self._xml = xml

    def XMLDesc(self, flags: int = 0) -> str:
        if self._xml == "gone":
            raise libvirt.libvirtError("Node device not found")
        return self._xml

    def name(self) -> str:
        """Read by whoever looks for a parent, and of no use to the survey."""
        return "named"


class Connection:
    """What a survey asks of libvirt, answered from plain values."""

    def __init__(
        self, *devices: str, domains: dict[str, str] | None = None, kvm: bool = False, parents: tuple[str, ...] = ()
    ) -> None:
        self.devices, self.parents = devices, parents
        self.described = domains or {}
        self.kvm = kvm

    def getInfo(self) -> list[object]:
        return ["x86_64", 64000, 16, 2400, 2, 2, 4, 1]

    def getHostname(self) -> str:
        return "gpu1"

    def getLibVersion(self) -> int:
        return 9_000_000

    def getVersion(self) -> int:
        return 7_002_022

    def isAlive(self) -> int:
        return 1

    def getCapabilities(self) -> str:
        cpus = "".join(f"<cpu id='{n}'/>" for n in (0, 1, 2, 3, 8, 9, 10, 11))
        odd = "".join(f"<cpu id='{n}'/>" for n in (4, 5, 6, 7, 12))
        return f"""
          <capabilities>
            <host><cpu><arch>x86_64</arch><model>Skylake-Server</model></cpu>
              <topology><cells num='2'>
                <cell id='0'><memory unit='KiB'>32768000</memory><cpus num='8'>{cpus}</cpus></cell>
                <cell id='1'><memory unit='KiB'>16384000</memory><cpus num='5'>{odd}</cpus></cell>
              </cells></topology></host>
            <guest><os_type>hvm</os_type><arch name='i686'><domain type='kvm'/></arch></guest>
            <guest><os_type>hvm</os_type><arch name='x86_64'><domain type='qemu'/>
              {"<domain type='kvm'/>" if self.kvm else ""}</arch></guest>
          </capabilities>"""

    def listAllDevices(self, flags: int) -> list[_Described]:
        if flags == libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV_TYPES:
            return [_Described(f"<device><path>/sys/devices/virtual/{n}/{n}</path></device>") for n in self.parents]
        assert flags == libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV
        return [_Described(each) for each in self.devices]

    def lookupByUUIDString(self, uuid: str) -> _Described:
        if uuid not in self.described:
            raise libvirt.libvirtError("Domain not found")
        return _Described(self.described[uuid])

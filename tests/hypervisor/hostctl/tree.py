"""A GPU host made of plain files: what hostctl reads, and a driver's temper for what it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vmgpu.hypervisor.hostctl.deadline import Deadline
from vmgpu.hypervisor.hostctl.files import Files

DEVICES = "sys/bus/pci/devices"
LISTED = "ID    : vGPU Name\n1147  : NVIDIA L40S-1Q\n1148  : NVIDIA L40S-2Q\n1150  : NVIDIA L40S-4Q\n"
FULL = "ID    : vGPU Name\n"
NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
EIO = "/proc/self/mem"  # a link to it reads as a driver that answers EIO: nothing is mapped at 0


class Tree:
    """The host below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)

    @property
    def files(self) -> Files:
        return Files(self.root)

    def write(self, path: str, text: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            target.unlink()
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def link(self, path: str, target: str) -> None:
        where = self.root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.unlink(missing_ok=True)
        where.symlink_to(target)

    def program(self, path: str, body: str) -> None:
        """A shell script that finds the tree by its own place."""
        self.write(path, f"#!/bin/sh\nroot=${{0%/{path}}}\n{body}\n")
        (self.root / path).chmod(0o755)

    def function(
        self,
        address: str,
        *,
        ids: str = "10de:26b9",
        code: str = "0302",
        driver: str | None = None,
        group: int | None = None,
        ports: tuple[str, ...] = (),
        **files: str,
    ) -> str:
        """A PCI function below its ports; other keywords are files of its folder. Its folder comes back."""
        above = "/".join(("sys/devices/pci0000:00", *ports, address))
        self.link(f"{DEVICES}/{address}", f"../../../../{above}")
        folder = f"{DEVICES}/{address}"
        (self.root / above).mkdir(parents=True, exist_ok=True)
        vendor, device = (each.upper() for each in ids.split(":"))
        alias = f"pci:v0000{vendor}d0000{device}sv0000{vendor}sd0000{'1851'}bc{code[:2]}sc{code[2:]}i00"
        self.write(f"{folder}/modalias", alias + "\n")
        self.write(f"{folder}/vendor", f"0x{vendor.lower()}\n")
        for name, text in files.items():
            self.write(f"{folder}/{name}", text + "\n")
        if driver:
            self.link(f"{folder}/driver", f"../../../bus/pci/drivers/{driver}")
        if group is not None:
            self.link(f"{folder}/iommu_group", f"../../../kernel/iommu_groups/{group}")
            (self.root / f"sys/kernel/iommu_groups/{group}").mkdir(parents=True, exist_ok=True)
        return folder

    def card(self, address: str, *, driver: str = "nvidia", vfs_most: int = 0, group: int | None = 40) -> str:
        """A data-centre card with all the files that a kernel shows of it."""
        bars = [NO_BAR] * 13
        bars[0] = "0x00000000b0000000 0x00000000b0ffffff 0x0000000000040200"
        bars[1] = "0x0000380000000000 0x0000380fffffffff 0x000000000014220c"
        folder = self.function(
            address,
            driver=driver,
            group=group,
            ports=("0000:00:01.0",),
            numa_node="1",
            resource="\n".join(bars),
            reset_method="flr bus",
            reset="",
            current_link_width="16",
            max_link_width="16",
            current_link_speed="16.0 GT/s PCIe",
            max_link_speed="16.0 GT/s PCIe",
            power_state="D0",
            driver_override="(null)",
            **({"sriov_totalvfs": str(vfs_most), "sriov_numvfs": "0"} if vfs_most else {}),
        )
        self.write(f"{folder}/config", bytes.fromhex("de10b926") + bytes(60))
        return folder

    def vf(self, card: str, number: int, *, current: str | None = "0", creatable: str = LISTED) -> str:
        """The n-th virtual function of a card; `current` None: not the vendor-VFIO kind. Its address comes back."""
        stem, _, _ = card.rpartition(":")
        address = f"{stem}:{(number + 4) // 8:02x}.{(number + 4) % 8}"
        folder = self.function(address, driver="nvidia", group=100 + number + 1000 * int(stem[-2:], 16))
        self.link(f"{folder}/physfn", f"../{card}")
        self.link(f"{DEVICES}/{card}/virtfn{number}", f"../{address}")
        if current is not None:
            self.write(f"{folder}/nvidia/current_vgpu_type", current + "\n")
            self.write(f"{folder}/nvidia/creatable_vgpu_types", FULL if current != "0" else creatable)
            self.write(f"{folder}/nvidia/vgpu_params", "\n")
        return address

    def mdev_type(self, folder: str, name: str, title: str, left: int) -> None:
        for file, text in {
            "name": title,
            "description": "num_heads=4, framebuffer=2048M",
            "device_api": "vfio_pci",
            "available_instances": str(left),
        }.items():
            self.write(f"{folder}/mdev_supported_types/{name}/{file}", text + "\n")

    def process(self, pid: int, command: str, *opened: str, words: tuple[str, ...] = ()) -> None:
        """A process that has files open."""
        self.write(f"proc/{pid}/comm", command + "\n")
        self.write(f"proc/{pid}/cmdline", "\0".join(words or (command,)) + "\0")
        for number, target in enumerate(("/dev/null", *opened)):
            self.link(f"proc/{pid}/fd/{number}", target)


class Driver(Files):
    """The tree with a driver behind it: `on` is told each write before it happens, and may raise what a kernel says."""

    def __init__(self, root: Path, on: Callable[[str, str], None]) -> None:
        super().__init__(root)
        self._on = on
        self.written: list[tuple[str, str]] = []

    def write(self, path: str, text: str) -> None:
        self.written.append((path, text))
        self._on(path, text)
        super().write(path, text)


def hour() -> Deadline:
    """A deadline that no test reaches."""
    deadline = Deadline(3600, lambda: None)
    deadline.__exit__()  # its thread must not outlive the test
    return deadline

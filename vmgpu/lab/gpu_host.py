"""The lab's GPU host as a machine: QEMU with an emulated IOMMU, three cards, and an SSH server on an address here."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vmgpu.errors import SetupError
from vmgpu.lab import host_recipe
from vmgpu.lab.hostimage import HostImage
from vmgpu.lab.programs import need_programs, run

MEMORY_MIB = 6144
# The card that is passed through, alone in its group behind a port of its own.
ALONE = "1234:1111"
# AMD's ids: one that sits beside the host's network card behind one bridge, one on the root bus.
BESIDE_THE_NIC, ON_THE_ROOT_BUS = "1002:5046", "1002:5159"

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "mkfs.ext4", "ssh", "ssh-keygen")


@dataclass(frozen=True)
class Machine:
    """How the host is run. `address`: where its SSH server is reached; `iommu`: the kernel's words about it."""

    image: HostImage
    folder: Path
    accel: str
    address: str
    cpus: int
    iommu: str = host_recipe.IOMMU_ON


def blacklist(accel: str) -> str:
    """Drivers that the host's kernel does not load: graphics, and an emulated processor's own virtualization.

    With a guest under that, QEMU 7.2 ends by an assertion sooner or later.
    """
    return ",".join((*host_recipe.UNWANTED, *(("kvm_amd",) if accel == "tcg" else ())))


def command(machine: Machine) -> list[str]:
    """The QEMU that is this machine."""
    folder = machine.folder
    return [
        "qemu-system-x86_64", "-name", "gpuhost", "-nodefaults", "-no-user-config", "-display", "none",
        "-machine", f"q35,accel={machine.accel},kernel-irqchip=split",
        "-cpu", "host" if machine.accel == "kvm" else "max", "-smp", str(machine.cpus), "-m", str(MEMORY_MIB),
        "-device", "intel-iommu,intremap=on,caching-mode=on",
        "-drive", f"file={folder}/root.qcow2,if=none,id=root,cache=unsafe,discard=unmap",
        "-drive", f"file={folder}/seed.raw,format=raw,if=none,id=seed,readonly=on",
        "-device", "virtio-blk-pci,drive=root", "-device", "virtio-blk-pci,drive=seed",
        "-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
        # behind a bridge of conventional PCI nothing tells its devices apart: they share a group
        "-device", "pcie-pci-bridge,id=shared",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:{machine.address}:22-:22",
        "-device", "virtio-net-pci,netdev=net,bus=shared,addr=1",
        "-device", "ati-vga,model=rage128p,romfile=,bus=shared,addr=2",
        "-device", "ati-vga,model=rv100,romfile=",
        "-device", "pcie-root-port,id=alone,chassis=1", "-device", "bochs-display,bus=alone",
        "-serial", f"file:{folder}/console.log", "-qmp", f"unix:{folder}/qmp,server=on,wait=off",
        "-kernel", str(machine.image.vmlinuz), "-initrd", str(machine.image.initrd),
        "-append", f"{host_recipe.KERNEL_ARGUMENTS} modprobe.blacklist={blacklist(machine.accel)} {machine.iommu}",
    ]  # fmt: skip


class GpuHost:
    """One run of it: a disk beside the image, keys of its own, and the QEMU that ends with it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.admin_key = machine.folder / "admin_ed25519"
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Make the disk, and the seed with the admin's key and the host's own."""
        need_programs(PROGRAMS, doing="Starting the lab's GPU host")
        folder = self.machine.folder
        seed = folder / "seed"
        (seed / "authorized_keys").mkdir(parents=True)
        for key, comment in ((self.admin_key, "admin"), (seed / "ssh_host_ed25519_key", "gpuhost")):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", key], doing="Making keys")
        public = self.admin_key.with_suffix(".pub").read_text()
        (seed / "authorized_keys" / host_recipe.ADMIN).write_text(public)
        label, disk = host_recipe.SEED_LABEL, self.machine.image.disk
        run(["mkfs.ext4", "-q", "-F", "-L", label, "-d", seed, folder / "seed.raw", "4M"], doing="Making the seed")
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(disk), "-F", "qcow2"]
        run([*create, str(folder / "root.qcow2")], doing="Making the host's disk")

    @property
    def host_key(self) -> str:
        """Its SSH key, as the admin knows it."""
        words = (self.machine.folder / "seed/ssh_host_ed25519_key.pub").read_text().split()
        return " ".join(words[:2])

    def start(self, *, iommu: str = host_recipe.IOMMU_ON) -> None:
        """Switch it on."""
        self.machine = replace(self.machine, iommu=iommu)
        with (self.machine.folder / "qemu.log").open("ab") as log:
            self._process = subprocess.Popen(
                command(self.machine), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def must_live(self) -> None:
        """SetupError, with its last words, where its QEMU has ended."""
        if self._process is not None and self._process.poll() is not None:
            said = (self.machine.folder / "qemu.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise SetupError(f"The lab's QEMU ended by itself: {' / '.join(said) or 'it said nothing'}")

    def boot_id(self) -> str | None:
        """Which boot it is in; None while it does not answer."""
        try:
            return self.ask("cat /proc/sys/kernel/random/boot_id", within=120).strip()
        except SetupError:
            return None

    def wait_up(self, *, other_than: str | None = None, within: float) -> str:
        """Wait until SSH answers in a boot that is not `other_than`; the boot's id."""
        deadline = time.monotonic() + within
        while True:
            self.must_live()
            found = self.boot_id()
            if found and found != other_than:
                return found
            if time.monotonic() > deadline:
                raise SetupError(
                    f"The lab's GPU host did not answer over SSH within {within:.0f} s",
                    hint=f"The end of its console: {' / '.join(self.console(5))}",
                )
            time.sleep(1)

    def ask(self, line: str, *, within: float = 60) -> str:
        """Run a command as the admin and return what it printed."""
        try:
            done = subprocess.run(
                [*self.ssh(), line], stdin=subprocess.DEVNULL, capture_output=True, timeout=within, check=False
            )
        except subprocess.TimeoutExpired:
            raise SetupError(f"The lab's GPU host did not answer within {within:.0f} s: {line}") from None
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-400:]
            raise SetupError(f"On the lab's GPU host {line!r} ended with {done.returncode}: {said}")
        return done.stdout.decode(errors="replace")

    def ssh(self) -> Sequence[str]:
        """The admin's way in."""
        known = self.machine.folder / "known_hosts"
        known.write_text(f"gpuhost {self.host_key}\n")
        options = (
            f"UserKnownHostsFile={known}", "HostKeyAlias=gpuhost", "StrictHostKeyChecking=yes", "BatchMode=yes",
            "IdentitiesOnly=yes", "ConnectTimeout=60", "LogLevel=ERROR",
        )  # fmt: skip
        words = [word for option in options for word in ("-o", option)]
        return ["ssh", "-F", "none", *words, "-i", str(self.admin_key), f"{host_recipe.ADMIN}@{self.machine.address}"]

    def reboot(self, *, within: float) -> str:
        """Reboot it as an admin does; the new boot's id."""
        before = self.boot_id()
        with suppress(SetupError):  # the connection may break before the answer
            self.ask("sudo systemctl reboot", within=20)
        return self.wait_up(other_than=before, within=within)

    def shut_down(self, *, within: float) -> None:
        """Switch it off as an admin does, by force if it will not."""
        with suppress(SetupError):
            self.ask("sudo systemctl poweroff", within=20)
        self.stop(within=within)

    def stop(self, *, within: float = 5.0) -> None:
        """See that its QEMU has ended."""
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process = None

    def console(self, lines: int) -> list[str]:
        """The end of what its kernel and services said."""
        with suppress(OSError):
            return (self.machine.folder / "console.log").read_text(errors="replace").splitlines()[-lines:]
        return []

"""What the lab's GPU host consists of: a plain Debian or Ubuntu with its full kernel, and the kernel's sample drivers.

libvirt does not run there yet: its service lies beside, in an apt repository of the disk's own, for `vmgpu host setup`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vmgpu.lab.recipe import Distribution

ROOT_LABEL = "vmgpu-host"
ROOT_MIB = 6144
SEED_LABEL = "lab-seed"
ADMIN = "admin"
REPOSITORY = "srv/packages"

# What the setup finds there already is most of what it asks for: an emulated host takes minutes to unpack and configure
# all of it, and libraries are the same whoever installs them.
PACKAGES = (
    "systemd-sysv",
    "initramfs-tools",
    "zstd",
    "kmod",
    "udev",
    "dbus",
    "iproute2",
    "netcat-openbsd",
    "pciutils",
    "e2fsprogs",
    "openssh-server",
    "sudo",
    "python3",
    "qemu-system-x86",
    "qemu-utils",
    "ovmf",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libvirt-clients",
    "polkitd",
    "dnsmasq-base",
    "iptables",
    "gettext-base",
    "logrotate",
)

# For the sample drivers alone; gone when they are built.
BUILD_PACKAGES = ("make",)

# What `vmgpu host setup` finds missing, and installs: the service, its sockets and its group among it.
LATER_PACKAGES = ("libvirt-daemon-system", "mdevctl")


@dataclass(frozen=True)
class FullKernel:
    """The packages of a kernel with all its drivers, its headers, and its source."""

    image: str
    headers: str
    source: str


def full_kernel(distribution: Distribution) -> FullKernel:
    """The distribution's own; a guest's smaller one has neither vfio nor mediated devices."""
    flavour = "generic" if distribution.id == "ubuntu" else "amd64"
    return FullKernel(f"linux-image-{flavour}", f"linux-headers-{flavour}", "linux-source")


# The kernel's own examples of mediated devices: serial ports, and two kinds of displays.
SAMPLES = ("mtty", "mbochs", "mdpy")
# mtty has 24 ports for all its devices; with two, a device of both and one of one compete as vGPUs do for memory.
PORTS, PORTS_LINE = 2, r"(#define\s+MAX_MTTYS\s+)\d+"

KERNEL_ARGUMENTS = f"root=LABEL={ROOT_LABEL} ro console=ttyS0,115200"
# The radeon driver waits for ever on the emulated card, and nobody looks at this host's screens.
UNWANTED = ("radeon", "aty128fb", "bochs")
IOMMU_ON, IOMMU_OFF = "intel_iommu=on iommu=pt", "intel_iommu=off"

INITRAMFS_MODULES = "virtio_pci virtio_blk ext4"
EARLY_FILES = {
    "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=zstd\nRESUME=none\n",
    "usr/share/initramfs-tools/modules.d/lab": "\n".join(INITRAMFS_MODULES.split()) + "\n",
}

_NETWORK = """\
[Match]
Driver=virtio_net
[Network]
DHCP=ipv4
IPv6AcceptRA=no
"""

# The seed is a disk with what differs from run to run: who may come in, and the host's own key.
_SSHD = """\
PasswordAuthentication no
AuthorizedKeysFile .ssh/authorized_keys /seed/authorized_keys/%u
"""

FILES = {
    "etc/hostname": "gpuhost\n",
    "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 gpuhost\n",
    "etc/fstab": f"LABEL={ROOT_LABEL} / ext4 errors=remount-ro 0 0\nLABEL={SEED_LABEL} /seed ext4 ro 0 0\n",
    "etc/machine-id": "",
    "etc/systemd/network/10-lab.network": _NETWORK,
    "etc/ssh/sshd_config.d/50-lab.conf": _SSHD,
    "etc/systemd/system/ssh.service.d/50-lab.conf": "[Unit]\nRequiresMountsFor=/seed\n",
    "etc/sudoers.d/lab": f"{ADMIN} ALL=(ALL) NOPASSWD: ALL\n",
    "etc/modules-load.d/lab.conf": "".join(f"{name}\n" for name in SAMPLES),
}
FOLDERS = ("seed",)
SEEDED_KEY = "/seed/ssh_host_ed25519_key"

REMOVED = (
    "etc/ssh/ssh_host_*",
    "var/lib/dbus/machine-id",
    "etc/apt/sources.list",
    "etc/apt/sources.list.d/*",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "var/lib/apt/lists/*_*",
    "var/log/*.log",
    "var/log/apt",
)

MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "man-db.timer",
    "motd-news.timer",
    "systemd-networkd-wait-online.service",
    "getty@tty1.service",
    "ssh.socket",
    "user@.service",  # ten seconds of an emulated host at each login
)
ENABLED = ("ssh.service", "systemd-networkd.service")

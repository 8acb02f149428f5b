"""What the guest image consists of: packages, files, and what is left out because nobody needs it at boot.

The cache keys on this file's text, so a change here means a new image; nothing else decides its contents.
"""

from __future__ import annotations

from dataclasses import dataclass

ROOT_LABEL = "vmgpu-root"
ROOT_MIB = 2048

PACKAGES = (
    "systemd-sysv",
    "systemd-resolved",  # without it networkd has nobody to give the name servers of the lease to
    "initramfs-tools",
    "zstd",  # the initramfs is unpacked by the emulated guest: zstd costs it a third of gzip
    "cloud-init",
    "cloud-guest-utils",  # growpart
    "fdisk",  # sfdisk, which growpart calls
    "e2fsprogs",
    "openssh-server",
    "netplan.io",
    "iproute2",
    "qemu-guest-agent",
    "pciutils",
    "dmidecode",
    "sudo",
    "udev",
    "dbus",
    "libpam-systemd",
    "python3-minimal",
    "ca-certificates",
)


@dataclass(frozen=True)
class Distribution:
    """A distribution this machine may be, and what differs between them in a guest."""

    id: str
    codename: str
    kernel: str


DISTRIBUTIONS = (
    Distribution("debian", "bookworm", "linux-image-cloud-amd64"),
    Distribution("debian", "trixie", "linux-image-cloud-amd64"),
    Distribution("ubuntu", "noble", "linux-image-virtual"),
)

# Every driver by name: the list is what sees the root disk and the seed, and a small initramfs unpacks fast.
INITRAMFS_MODULES = "virtio_pci virtio_blk virtio_scsi sd_mod sr_mod virtio_net isofs vfat nls_ascii nls_cp437 ext4"

KERNEL_ARGUMENTS = f"root=LABEL={ROOT_LABEL} ro console=tty0 console=ttyS0,115200"

# Debian keeps the links to the newest kernel in /, Ubuntu in /boot; following links survives a kernel upgrade.
GRUB_CFG = f"""\
set timeout=0
search --no-floppy --set=root --hint=hd0,gpt2 --label {ROOT_LABEL}
if [ -e /vmlinuz ]; then
  linux /vmlinuz {KERNEL_ARGUMENTS}
  initrd /initrd.img
else
  linux /boot/vmlinuz {KERNEL_ARGUMENTS}
  initrd /boot/initrd.img
fi
boot
"""

# cloud-init starts every listed module, and each costs an emulated guest 0.1 to 2 s whether it is used or not.
CLOUD_CFG = """\
# vmgpu: the seed is a NoCloud disk; None keeps a guest without one bootable.
datasource_list: [NoCloud, None]
ssh_genkeytypes: [ed25519]
ssh_deletekeys: true
apt: {preserve_sources_list: true}
growpart: {mode: auto, devices: [/]}
resize_rootfs: noblock
cloud_init_modules:
  - bootcmd
  - write-files
  - growpart
  - resizefs
  - set_hostname
  - update_etc_hosts
  - users-groups
  - ssh
cloud_config_modules:
  - set-passwords
  - timezone
  - ntp
  - runcmd
cloud_final_modules:
  - package-update-upgrade-install
  - write-files-deferred
  - scripts-per-once
  - scripts-per-boot
  - scripts-per-instance
  - scripts-user
  - phone-home
  - final-message
  - power-state-change
"""

FILES = {
    "etc/hostname": "guest\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/fstab": f"LABEL={ROOT_LABEL} / ext4 errors=remount-ro 0 0\n",
    "etc/machine-id": "",  # empty, not absent: systemd makes one, without taking it for a first boot
    "etc/cloud/cloud.cfg.d/95-vmgpu.cfg": CLOUD_CFG,
    "etc/ssh/sshd_config.d/50-vmgpu.conf": "PasswordAuthentication no\n",
}

# These must lie there before the kernel package makes its initramfs.
EARLY_FILES = {
    "etc/initramfs-tools/conf.d/vmgpu": "MODULES=list\nCOMPRESS=zstd\n",
    "usr/share/initramfs-tools/modules.d/vmgpu": "\n".join(INITRAMFS_MODULES.split()) + "\n",
}

REMOVED = (
    "etc/ssh/ssh_host_*",
    "var/lib/dbus/machine-id",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "var/log/*.log",
    "var/log/apt",
    "var/cache/debconf/*-old",
    "*.old",
    "boot/*.old",
)

# Timers and services of a machine that lives for years, or of hardware a guest has not.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "man-db.timer",
    "motd-news.timer",
    "cloud-init-hotplugd.socket",
    "systemd-pcrphase.service",
    "systemd-pcrphase-sysinit.service",
    "getty@tty1.service",
    "ssh.socket",  # Ubuntu: the plain service is there as soon as cloud-init has put the host key
)

ENABLED = ("ssh.service",)

LEFT_OUT = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")
KEPT = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")

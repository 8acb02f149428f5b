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

# An emulated guest that gets no processor time at the wrong moment finds its timer broken and panics: it need not
# check, and where it panics all the same it boots again rather than standing still.
KERNEL_ARGUMENTS = f"root=LABEL={ROOT_LABEL} ro console=tty0 console=ttyS0,115200 no_timer_check panic=10"

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
# What a login needs comes first; growing the disk takes seconds and goes after sshd is up.
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
  - set_hostname
  - update_etc_hosts
  - users-groups
  - ssh
cloud_config_modules:
  - growpart
  - resizefs
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

# `netplan generate` is a Python program around this one, and takes an emulated guest two seconds longer.
NETPLAN = """\
#!/bin/sh
if [ "$*" = generate ]; then
  for generator in /usr/libexec/netplan/generate /lib/netplan/generate; do
    [ -x "$generator" ] && exec "$generator"
  done
fi
exec /usr/sbin/netplan "$@"
"""

AFTER_SSH = "[Unit]\nAfter=ssh.service\n"

# Nobody waits for these, and with one emulated CPU whatever runs beside the way to sshd makes it longer.
LATER = (
    "cloud-config.service",
    "cloud-final.service",
    "serial-getty@.service",
    "systemd-hostnamed.service",
    "systemd-logind.service",
)

# netplan 1.1 has it wait for name servers as well, which the resolver knows: that one comes after sshd here, and sshd
# after this, so that every boot but the first stood still for its two minutes. Networkd's own form is enough.
ONLINE = """\
[Service]
ExecStart=
ExecStart=/usr/lib/systemd/systemd-networkd-wait-online
"""

FILES = {
    "etc/hostname": "guest\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n",
    "etc/fstab": f"LABEL={ROOT_LABEL} / ext4 errors=remount-ro 0 0\n",
    "etc/machine-id": "",  # empty, not absent: systemd makes one, without taking it for a first boot
    "etc/cloud/cloud.cfg.d/95-vmgpu.cfg": CLOUD_CFG,
    "etc/ssh/sshd_config.d/50-vmgpu.conf": "PasswordAuthentication no\n",
    # behind netplan's own drop-in, 10-netplan.conf
    "etc/systemd/system/systemd-networkd-wait-online.service.d/50-vmgpu.conf": ONLINE,
    **{f"etc/systemd/system/{unit}.d/50-vmgpu.conf": AFTER_SSH for unit in LATER},
}

PROGRAMS = {"usr/local/sbin/netplan": NETPLAN}

# The root is a virtio disk that the modules above make appear: no udev is needed to find it, and starting one, and
# waiting for it, takes three seconds under emulation.
NO_UDEV = """\
#!/bin/sh
case "$1" in prereqs) echo udev; exit 0 ;; esac
rm -f "$DESTDIR"/scripts/*/udev "$DESTDIR/lib/systemd/systemd-udevd"
"""

# These must lie there before the kernel package makes its initramfs.
EARLY_PROGRAMS = {"etc/initramfs-tools/hooks/zz-vmgpu-no-udev": NO_UDEV}
EARLY_FILES = {
    "etc/initramfs-tools/conf.d/vmgpu": "MODULES=list\nCOMPRESS=zstd\nRESUME=none\n",
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
    "modprobe@dm_mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@loop.service",
    "netplan-ovs-cleanup.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-binfmt.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",  # a seed that a captured image would give to all its clones
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
    "systemd-pcrphase.service",
    "systemd-pcrphase-sysinit.service",
    "getty@tty1.service",
    "ssh.socket",  # Ubuntu: the plain service is there as soon as cloud-init has put the host key
)

# systemd runs these before anything else, each a process of its own.
MASKED_GENERATORS = (
    "systemd-bless-boot-generator",
    "systemd-cryptsetup-generator",
    "systemd-gpt-auto-generator",
    "systemd-hibernate-resume-generator",
    "systemd-integritysetup-generator",
    "systemd-system-update-generator",
    "systemd-veritysetup-generator",
)

ENABLED = ("ssh.service",)

# Distributions start it before sshd, though only programs that look up names need it.
RESOLVER = "systemd-resolved.service"

LEFT_OUT = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/doc/*")
KEPT = ("/usr/share/doc/*/copyright", "/usr/share/locale/locale.alias")

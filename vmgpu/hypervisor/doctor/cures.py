"""Cures that differ by distribution and boot loader: kernel arguments, packages, module options, the initramfs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_GRUB_FILE = "GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub"
_MKCONFIG = "grub-mkconfig -o /boot/grub/grub.cfg (SUSE: grub2-mkconfig -o /boot/grub2/grub.cfg)"
_STUB = "write the whole kernel command line (it starts as /proc/cmdline) to /etc/kernel/cmdline"
_STUB_RUN = 'kernel-install add "$(uname -r)" "/boot/vmlinuz-$(uname -r)"'
_STUB_RUN_RHEL = 'kernel-install add "$(uname -r)" "/lib/modules/$(uname -r)/vmlinuz"'


class Family(StrEnum):
    """Distributions that share package names and tools."""

    debian = "debian"
    rhel = "rhel"
    other = "other"


_FAMILIES = {
    Family.debian: {"debian", "ubuntu", "pop", "linuxmint", "raspbian", "devuan", "proxmox"},
    Family.rhel: {"rhel", "fedora", "centos", "rocky", "almalinux", "ol"},
}

# wanted thing → package name; `other` is said in words
_PACKAGES = {
    "ovmf": {Family.debian: "ovmf", Family.rhel: "edk2-ovmf"},
    "qemu": {Family.debian: "qemu-system-x86", Family.rhel: "qemu-kvm"},
    "libvirt": {Family.debian: "libvirt-daemon-system", Family.rhel: "libvirt"},
    "mdevctl": {Family.debian: "mdevctl", Family.rhel: "mdevctl"},
    "dnsmasq": {Family.debian: "dnsmasq-base", Family.rhel: "dnsmasq"},
    "chrony": {Family.debian: "chrony", Family.rhel: "chrony"},
    "passt": {Family.debian: "passt", Family.rhel: "passt"},
}


@dataclass(frozen=True)
class Platform:
    """The host's distribution and boot loader; unknown ones get a cure that names each way."""

    family: Family = Family.other
    bootloader: str = ""
    distribution: str = ""

    def boot_with(self, arguments: str) -> str:
        """How to add arguments to the kernel command line."""
        return self._boot(arguments, add=True)

    def boot_without(self, arguments: str) -> str:
        """How to remove arguments from the kernel command line."""
        return self._boot(arguments, add=False)

    def install(self, thing: str) -> str:
        """How to install a package, by what it is for."""
        names = _PACKAGES[thing]
        if self.family is Family.debian:
            return f"Run: apt install {names[Family.debian]}."
        if self.family is Family.rhel:
            return f"Run: dnf install {names[Family.rhel]}."
        return f"Install {thing} (Debian, Ubuntu: {names[Family.debian]}; RHEL: {names[Family.rhel]})."

    def initramfs(self) -> str:
        """The command that rebuilds the initramfs."""
        return {
            Family.debian: "update-initramfs -u -k all",
            Family.rhel: "dracut -f --regenerate-all",
            Family.other: "update-initramfs -u -k all, dracut -f --regenerate-all or mkinitcpio -P",
        }[self.family]

    def module_option(self, *lines: str, file: str = "vfio.conf") -> str:
        """How to give modules options from boot on."""
        added = " and ".join(f"'{line}'" for line in lines)
        return f"Add {added} to /etc/modprobe.d/{file}, run: {self.initramfs()}; then reboot."

    def _boot(self, arguments: str, *, add: bool) -> str:
        ways = {
            "grub": self._grub(arguments, add=add),
            "systemd-boot": self._stub(arguments, add=add),
            "zipl": self._zipl(arguments, add=add),
        }
        known = ways.get(self.bootloader)
        if known is not None:
            return f"{known} Then reboot."
        return f"With GRUB: {ways['grub']} With systemd-boot: {ways['systemd-boot']} Then reboot."

    def _grub(self, arguments: str, *, add: bool) -> str:
        if self.family is Family.rhel:
            return self._grubby(arguments, add=add)
        make = "update-grub" if self.family is Family.debian else _MKCONFIG
        verb = "Add" if add else "Remove"
        return f'{verb} "{arguments}" {"to" if add else "from"} {_GRUB_FILE}, run: {make}.'

    def _stub(self, arguments: str, *, add: bool) -> str:
        if self.distribution == "pop":
            return f'Run: kernelstub {"-a" if add else "-d"} "{arguments}".'
        run = _STUB_RUN_RHEL if self.family is Family.rhel else _STUB_RUN
        how = f'with "{arguments}"' if add else f'without "{arguments}"'
        return f"{_STUB[0].upper()}{_STUB[1:]} {how}, run: {run}."

    def _zipl(self, arguments: str, *, add: bool) -> str:
        if self.family is Family.rhel:
            return self._grubby(arguments, add=add).removesuffix(".") + " && zipl."
        verb = "Add" if add else "Remove"
        return f'{verb} "{arguments}" {"to" if add else "from"} the parameters in /etc/zipl.conf, run: zipl.'

    def _grubby(self, arguments: str, *, add: bool) -> str:
        return f'Run: grubby --update-kernel=ALL --{"args" if add else "remove-args"}="{arguments}".'


def platform_of(distribution: str, like: str, bootloader: str) -> Platform:
    """The platform that os-release's ID and ID_LIKE and the boot loader's name describe."""
    names = {distribution.casefold(), *like.casefold().split()}
    family = next((family for family, ids in _FAMILIES.items() if names & ids), Family.other)
    return Platform(family, bootloader.casefold(), distribution.casefold())

"""Memory for guests: hugepages and the limit on locked memory."""

from __future__ import annotations

from collections.abc import Iterator

from vmgpu.hypervisor.doctor.facts import Facts
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, ok, warning

_ALL_KIB = 2**40  # more than any machine has
_LEAST_LOCKED_KIB = 8 * 1024  # systemd's default for a service


def look(facts: Facts, _seen: LibvirtSeen) -> Iterator[Check]:
    """The memory's part."""
    yield from _hugepages(facts)
    yield from _locked(facts)


def _hugepages(facts: Facts) -> Iterator[Check]:
    host = facts.host
    if not host.hugepages or not host.memory_mib:
        return
    reserved = sum(each.size_kib * each.total for each in host.hugepages) // 1024
    free = sum(each.size_kib * each.free for each in host.hugepages) // 1024
    seen = f"{reserved} of {host.memory_mib} MiB reserved, {free} MiB of them free"
    if reserved * 2 > host.memory_mib:
        yield warning(
            "memory-hugepages",
            seen,
            "vmgpu's guests take ordinary pages: what is reserved is lost for them.",
            "Reserve less: sysctl vm.nr_hugepages=0 for the default size, and remove hugepages= from the command line. "
            + host.platform.boot_without("hugepages=N"),
        )
    else:
        yield ok("memory-hugepages", seen if reserved else "none reserved", "Guests take ordinary pages.")


def _locked(facts: Facts) -> Iterator[Check]:
    limit = facts.host.memlock_kib
    if limit is None:
        return
    if 0 <= limit < _LEAST_LOCKED_KIB:
        yield warning(
            "memory-locked",
            f"{limit} KiB may be locked",
            "A guest with a card locks all its memory; libvirt raises the limit for it, other programs cannot.",
            "Run: systemctl edit libvirtd (or virtqemud), add [Service] and LimitMEMLOCK=infinity, then restart it.",
        )
    else:
        seen = "no limit" if limit < 0 or limit >= _ALL_KIB else f"{limit} KiB may be locked"
        yield ok("memory-locked", seen, "libvirt raises the limit for each guest with a card by itself.")

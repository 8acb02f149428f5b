"""Each card by itself: alive, driver, who holds it, console, memory regions, resets, link."""

from __future__ import annotations

from collections.abc import Iterator

from vmgpu.hypervisor.doctor.facts import AMD, NVIDIA, Facts, Function
from vmgpu.hypervisor.doctor.findings import Check, LibvirtSeen, broken, ok, warning

_GRAPHICS = ("nouveau", "amdgpu", "radeon", "i915", "xe")
_GOOD_RESETS = ("flr", "af_flr", "device_specific", "acpi")
_SERVICES = {
    "nvidia-persistenced": "nvidia-persistenced",
    "nv-hostengine": "nvidia-dcgm",
    "dcgm": "nvidia-dcgm",
    "nvsm": "nvsm",
    "xorg": "display-manager",
    "gnome-shell": "display-manager",
    "gdm": "display-manager",
    "sddm": "display-manager",
    "nvidia-gpu-exporter": "nvidia-gpu-exporter",
}
_RIGHTFUL = ("nvidia-vgpu-mgr", "nvidia-vgpud")  # the vGPU manager must have the card open
_LARGE_BAR_MIB = 256
_LEAST_WINDOW_MIB = 32 * 1024


def look(facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    """Each card in turn."""
    for card in facts.cards:
        if card.dead:
            yield _dead(card)
            continue  # what a dead card says of itself is all ones
        yield from _driver(card, facts)
        yield from _open(card)
        yield from _console(card)
        yield from _regions(card, facts)
        yield from _window(card, facts, seen)
        yield from _reset(card, facts)
        yield from _link(card)


def _dead(card: Function) -> Check:
    return broken(
        f"card-alive:{card.address}",
        "its configuration space reads all ones",
        "The card hangs or has lost power: no guest can use it.",
        f"Keep it from guests. Try: echo 1 > /sys/bus/pci/devices/{card.address}/remove; "
        "echo 1 > /sys/bus/pci/rescan. If it stays so, power-cycle the host (off, not reboot).",
    )


def _driver(card: Function, facts: Facts) -> Iterator[Check]:
    name, platform = f"card-driver:{card.address}", facts.host.platform
    if card.driver_override and card.driver_override != card.driver:
        yield warning(
            f"card-override:{card.address}",
            f"driver_override is {card.driver_override}, the driver is {card.driver or 'none'}",
            "A wish left over from an earlier binding: the next bind goes there.",
            f"Run: echo > /sys/bus/pci/devices/{card.address}/driver_override.",
        )
    if card.driver == "nouveau":
        yield warning(
            name,
            "with nouveau",
            "It keeps NVIDIA's driver out, and may hang when the card is taken from it.",
            platform.module_option("blacklist nouveau", file="blacklist-nouveau.conf"),
        )
    elif card.driver in _GRAPHICS:
        yield warning(
            name,
            f"with {card.driver}, the host's graphics driver",
            "libvirt takes the card from it when a guest starts; that may hang while a desktop uses it.",
            "For cards that are only for guests (every equal card is meant): "
            + platform.module_option(
                f"softdep {card.driver} pre: vfio-pci", f"options vfio-pci ids={card.vendor}:{card.device}"
            ),
        )
    elif card.driver:
        means = {
            "nvidia": "Good for vGPUs and MIG; as a whole card libvirt takes it from the driver at start.",
            "vfio-pci": "Ready for a guest; invisible to NVIDIA's tools on the host.",
        }
        yield ok(name, f"with {card.driver}", means.get(card.driver, "libvirt rebinds it when a guest starts."))
    elif facts.bus_known:
        yield ok(name, "with no driver", "Ready for a guest: libvirt binds it.")


def _open(card: Function) -> Iterator[Check]:
    name = f"card-open:{card.address}"
    guests = [each for each in card.holders if each.vm]
    held = [each for each in card.holders if not each.vm and each.command not in _RIGHTFUL]
    if held:
        who = ", ".join(f"process {each.pid or '?'} ({each.command})" for each in held)
        services = sorted({unit for each in held if (unit := _SERVICES.get(each.command.casefold()))})
        cure = f"Run: systemctl disable --now {' '.join(services)}." if services else f"End it: {who}."
        yield warning(name, f"held open by {who}", "The driver cannot let the card go; unbinding it may hang.", cure)
    elif guests:
        yield ok(name, f"held by guest {', '.join(each.vm for each in guests)}", "It is in use.")


def _console(card: Function) -> Iterator[Check]:
    if card.boot_vga:
        yield broken(
            f"card-console:{card.address}",
            "the firmware's primary display",
            "The host's console holds it: it can neither go to a guest nor serve vGPUs.",
            "Choose the server's own VGA as primary display in the firmware setup, then reboot.",
        )


def _regions(card: Function, facts: Facts) -> Iterator[Check]:
    name = f"card-bars:{card.address}"
    lost = [bar for bar in card.bars if bar.assigned is False and bar.size_mib]
    # NVIDIA's driver finds its framebuffer in region 1: a line of zeros there means "not placed".
    blind = card.vendor == NVIDIA and card.bars and not any(bar.index == 1 and bar.size_mib for bar in card.bars)
    if lost or blind:
        seen = ", ".join(f"BAR {bar.index} ({_size(bar.size_mib)})" for bar in lost) or "BAR 1 has no size"
        yield broken(
            name,
            f"without an address: {seen}",
            "The firmware found no room for the card's memory: no driver can use it.",
            "Switch on 'Above 4G decoding' (and Resizable BAR where wanted) in the firmware and boot by UEFI. "
            f"Else: {facts.host.platform.boot_with('pci=realloc')}",
        )
        return
    sizes = [_size(bar.size_mib) for bar in card.bars if bar.size_mib]
    if sizes:
        yield ok(name, f"placed: {', '.join(sizes)}", "The host's firmware found room for all of the card's memory.")


def _window(card: Function, facts: Facts, seen: LibvirtSeen) -> Iterator[Check]:
    """A guest has to find room for the same regions."""
    name, sizes = f"card-window:{card.address}", [bar.size_mib for bar in card.bars]
    if not any(size >= _LARGE_BAR_MIB for size in sizes):
        return
    window = max(_LEAST_WINDOW_MIB, 1 << (sum(sizes) - 1).bit_length())
    needed = f"{_size(sum(sizes))} of regions need a 64-bit window of {_size(window)} in the guest"
    if seen.efi is False:
        yield broken(
            name,
            f"{needed}, and there is no UEFI firmware for guests",
            "SeaBIOS places nothing above 4 GB: the guest's driver would find the card without memory.",
            facts.host.platform.install("ovmf"),
        )
    else:
        yield ok(name, needed, "vmgpu gives the guest's UEFI this window when it starts.")


def _reset(card: Function, facts: Facts) -> Iterator[Check]:
    name, methods = f"card-reset:{card.address}", card.reset_methods
    if methods is None:
        return
    neighbours = [
        each.address
        for each in facts.functions.values()
        if _bus(each) == _bus(card) and not each.beside(card) and not each.is_bridge and each.physfn != card.address
    ]
    if any(each in _GOOD_RESETS for each in methods):
        yield ok(name, f"reset by {', '.join(methods)}", "It comes clean from one guest to the next.")
    elif not methods:
        yield broken(
            name,
            "no reset method",
            "What one guest leaves in the card the next would find; a second start often fails.",
            "Install the vendor-reset module (AMD cards before RDNA2), then reboot."
            if card.vendor == AMD
            else f"Try: echo default > /sys/bus/pci/devices/{card.address}/reset_method; else use another card.",
        )
    elif "bus" in methods and neighbours:
        yield warning(
            name,
            f"reset only by {', '.join(methods)}; on its bus also {', '.join(neighbours)}",
            "A reset hits its neighbours: all of them must belong to the same guest.",
            "Give all devices of that bus to one guest, or move the card to a slot of its own.",
        )
    elif "bus" in methods:
        yield ok(name, f"reset by {', '.join(methods)}", "It is alone on its bus: that is as good as its own reset.")
    else:
        yield warning(
            name,
            f"reset only by {', '.join(methods)}",
            "Power management does not clear all cards: a second start may find it half alive.",
            "Start a guest with it twice before you rely on it; update the card's firmware.",
        )


def _link(card: Function) -> Iterator[Check]:
    if card.width and card.max_width and card.width < card.max_width:
        yield warning(
            f"card-link:{card.address}",
            f"x{card.width} of x{card.max_width} lanes",
            "The card works, its transfers are slower: a narrow slot, a riser or a bad contact.",
            "Seat the card again or use a wider slot; some firmware splits slots (bifurcation).",
        )


def _bus(function: Function) -> str:
    return function.address.rpartition(":")[0]


def _size(mib: int) -> str:
    return f"{mib / 1024:.4g} GiB" if mib >= 1024 else f"{mib} MiB"

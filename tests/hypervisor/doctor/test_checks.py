"""A healthy host, then one thing wrong at a time: which check turns, and what its cure says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.depth import examples
from tests.hypervisor.doctor.hosts import (
    CARD,
    HEALTHY_SEEN,
    SECOND,
    facts,
    function,
    iommu,
    look,
    vgpu_nvml,
    virtual,
)
from vmgpu.hypervisor.doctor import Level, LibvirtSeen, examine

DEBIAN = {"id": "debian", "version_id": "12", "like": ""}
ROCKY = {"id": "rocky", "version_id": "9.4", "like": "rhel centos fedora"}
BRIDGE = function("0000:00:01.0", vendor="8086", device="1901", **{"class": "0604"}, group=0x41, driver="pcieport")
SOUND = function("0000:41:00.1", device="1aef", **{"class": "0403"}, group=0x41, driver="snd_hda_intel")
SATA = function("0000:40:02.0", vendor="8086", **{"class": "0106"}, group=0x41, driver="ahci")
VGPU_VFS = [virtual("0000:41:00.4"), virtual("0000:41:00.5")]
PF = function(driver="nvidia", vfs=["0000:41:00.4", "0000:41:00.5"], vfs_on=2)
SWITCH = function("0000:c1:00.0", device="22a3", **{"class": "0680"}, driver="nvidia-nvswitch")


def test_a_healthy_host_has_nothing_to_mend() -> None:
    found = look(facts())
    assert {each.level for each in found.values()} == {Level.ok}
    assert not any(each.cure for each in found.values())
    assert set(found) == {
        "firmware-virtualization",
        "firmware-iommu",
        "firmware-sriov",
        "firmware-uefi",
        "kernel-iommu",
        "kernel-command-line",
        "interrupt-remapping",
        "vfio",
        f"card-group:{CARD}",
        "cards",
        f"card-driver:{CARD}",
        f"card-bars:{CARD}",
        f"card-window:{CARD}",
        f"card-reset:{CARD}",
        "vgpu-manager",
        "memory-hugepages",
        "memory-locked",
        "helper",
        "kvm",
        "libvirt",
        "qemu",
        "guest-firmware",
        "libvirt-hostdev",
        "pool",
        "network",
        "images",
        "time",
    }


def test_healthy_vgpu_hosts_have_nothing_to_mend() -> None:
    modules = {"nvidia": {"loaded": True}, "nvidia_vgpu_vfio": {"loaded": True}, "vfio_pci": {"loaded": True}}
    mdev = {"id": "nvidia-18", "name": "GRID M60-2Q", "description": "", "device_api": "vfio-pci", "available": 4}
    old = function(device="1eb8", driver="nvidia", vfs_most=0, mdev_types=[mdev])
    for told in (
        facts(PF, *VGPU_VFS, nvml=vgpu_nvml(), modules=modules),
        facts(PF, *VGPU_VFS, nvml=vgpu_nvml(mig={"current": 1, "pending": 1}, instances=[{}, {}]), modules=modules),
        facts(old, nvml=vgpu_nvml(mig=None, sriov=False), modules=modules),
    ):
        found = look(told)
        assert {name: each for name, each in found.items() if each.level is not Level.ok} == {}
        assert f"card-vgpu:{CARD}" in found


# what is wrong · which check turns · how · what its cure contains
HOST: list[tuple[dict[str, Any], str, Level, str]] = [
    ({"cpu": {"vendor": "GenuineIntel", "flags_virt": False}}, "firmware-virtualization", Level.broken, "VT-x"),
    ({"cpu": {"vendor": "AuthenticAMD", "flags_virt": False}}, "firmware-virtualization", Level.broken, "SVM"),
    ({"iommu": iommu(dmar=False, groups=0)}, "firmware-iommu", Level.broken, "Intel VT-d"),
    (
        {"iommu": iommu(dmar=False, groups=0), "cpu": {"vendor": "AuthenticAMD", "flags_virt": True}},
        "firmware-iommu",
        Level.broken,
        "AMD-Vi",
    ),
    ({"iommu": iommu(groups=0)}, "kernel-iommu", Level.broken, "update-grub"),
    (
        {"iommu": iommu(groups=0)},
        "kernel-iommu",
        Level.broken,
        '"intel_iommu=on iommu=pt" to GRUB_CMDLINE_LINUX_DEFAULT',
    ),
    (
        {"iommu": iommu(groups=0), "os": ROCKY},
        "kernel-iommu",
        Level.broken,
        'grubby --update-kernel=ALL --args="intel_iommu=on iommu=pt"',
    ),
    ({"iommu": iommu(groups=0), "bootloader": "systemd-boot"}, "kernel-iommu", Level.broken, "/etc/kernel/cmdline"),
    (
        {"iommu": iommu(groups=0), "bootloader": "systemd-boot", "os": {"id": "pop", "like": "ubuntu debian"}},
        "kernel-iommu",
        Level.broken,
        "kernelstub -a",
    ),
    ({"iommu": iommu(groups=0), "bootloader": None, "os": {}}, "kernel-iommu", Level.broken, "With systemd-boot:"),
    (
        {"iommu": iommu(groups=0), "cmdline": "intel_iommu=off"},
        "kernel-iommu",
        Level.broken,
        'Remove "intel_iommu=off"',
    ),
    (
        {
            "iommu": iommu(groups=0, dmar=False, ivrs=True),
            "cpu": {"vendor": "AuthenticAMD"},
            "cmdline": "amd_iommu=off",
        },
        "kernel-iommu",
        Level.broken,
        'Remove "amd_iommu=off"',
    ),
    ({"iommu": iommu(remapping=False)}, "interrupt-remapping", Level.broken, "x2APIC"),
    ({"iommu": iommu(remapping=False), "cmdline": "intremap=off"}, "interrupt-remapping", Level.broken, "intremap=off"),
    (
        {"iommu": iommu(remapping=False), "os": ROCKY},
        "interrupt-remapping",
        Level.broken,
        "dracut -f --regenerate-all",
    ),
    ({"iommu": iommu(remapping=False), "unsafe_interrupts": True}, "interrupt-remapping", Level.warning, "remapping"),
    ({"vfio": False}, "vfio", Level.broken, "modprobe vfio-pci"),
    ({"vfio": False, "kernel": "6.1.0-28-cloud-amd64"}, "vfio", Level.broken, "linux-image-amd64"),
    ({"modules": {"vfio_pci": {"loaded": False, "builtin": False}}}, "vfio", Level.warning, "/etc/modules-load.d"),
    ({"cmdline": "pcie_acs_override=downstream"}, "kernel-command-line", Level.warning, "pcie_acs_override=downstream"),
    ({"uefi": False}, "firmware-uefi", Level.warning, "Above 4G"),
    (
        {"secure_boot": True, "modules": {"nvidia": {"loaded": False, "builtin": False}}},
        "firmware-secure-boot",
        Level.warning,
        "mokutil",
    ),
    (
        {"kernel_log": ["NVRM: Xid (PCI:0000:41:00): 79, pid=1, GPU has fallen off the bus."]},
        "kernel-log-card-off-the-bus",
        Level.warning,
        "Power-cycle",
    ),
    (
        {"hugepages": [{"size_kib": 1048576, "total": 400, "free": 400, "node": 0}]},
        "memory-hugepages",
        Level.warning,
        "vm.nr_hugepages",
    ),
    ({"memlock_kib": 64}, "memory-locked", Level.warning, "LimitMEMLOCK=infinity"),
    ({"time_synced": False}, "time", Level.warning, "apt install chrony"),
]


@pytest.mark.parametrize(("changes", "name", "level", "cure"), HOST, ids=[f"{h[1]}-{n}" for n, h in enumerate(HOST)])
def test_one_thing_wrong_with_the_host(changes: dict[str, Any], name: str, level: Level, cure: str) -> None:
    found = look(facts(**changes))[name]
    assert found.level is level and cure in found.cure, found


CARDS: list[tuple[list[dict[str, Any]], str, Level, str]] = [
    ([function(), SOUND, BRIDGE], f"card-group:{CARD}", Level.ok, ""),
    ([function(), SATA], f"card-group:{CARD}", Level.broken, "virsh nodedev-detach pci_0000_40_02_0"),
    ([function(), function("0000:42:00.0", group=0x41)], f"card-group:{CARD}", Level.warning, "together"),
    ([function(), function("0000:42:00.0", group=0x41)], "cards", Level.warning, "single cards"),
    ([function(), SATA], "cards", Level.broken, "single cards"),
    ([function(group=None), BRIDGE], f"card-group:{CARD}", Level.broken, "slot"),
    ([function(group=None)], f"card-group:{CARD}", Level.warning, "iommu_group"),
    ([function(dead=True)], f"card-alive:{CARD}", Level.broken, "power-cycle"),
    ([function(driver="nouveau")], f"card-driver:{CARD}", Level.warning, "blacklist nouveau"),
    (
        [function(vendor="1002", device="73bf", driver="amdgpu")],
        f"card-driver:{CARD}",
        Level.warning,
        "'options vfio-pci ids=1002:73bf' to /etc/modprobe.d/vfio.conf, run: update-initramfs",
    ),
    (
        [function(driver_override="vfio-pci", driver="nvidia")],
        f"card-override:{CARD}",
        Level.warning,
        f"{CARD}/driver_ov",
    ),
    (
        [function(driver="nvidia", holders=[{"pid": 7, "command": "nvidia-persistenced", "vm": None, "file": "/dev"}])],
        f"card-open:{CARD}",
        Level.warning,
        "systemctl disable --now nvidia-persistenced",
    ),
    (
        [function(driver="nvidia", holders=[{"pid": 7, "command": "python3", "vm": None, "file": "/dev"}])],
        f"card-open:{CARD}",
        Level.warning,
        "process 7 (python3)",
    ),
    (
        [function(holders=[{"pid": 8, "command": "qemu", "vm": "5e1b", "file": "/dev"}])],
        f"card-open:{CARD}",
        Level.ok,
        "",
    ),
    ([function(boot_vga=True)], f"card-console:{CARD}", Level.broken, "primary display"),
    (
        [function(bars=[{"index": 1, "size": 2**37, "start": 0, "assigned": False}])],
        f"card-bars:{CARD}",
        Level.broken,
        "pci=realloc",
    ),
    ([function(bars=[{"index": 0, "size": 2**24, "assigned": True}])], f"card-bars:{CARD}", Level.broken, "Above 4G"),
    ([function(reset_methods=[])], f"card-reset:{CARD}", Level.broken, "reset_method"),
    ([function(reset_methods=[], vendor="1002")], f"card-reset:{CARD}", Level.broken, "vendor-reset"),
    ([function(reset_methods=["pm"])], f"card-reset:{CARD}", Level.warning, "twice"),
    ([function(reset_methods=["bus"])], f"card-reset:{CARD}", Level.ok, ""),
    (
        [function(reset_methods=["bus"]), function("0000:41:01.0", group=9)],
        f"card-reset:{CARD}",
        Level.warning,
        "one guest",
    ),
    ([function(link={"width": 4, "max_width": 16})], f"card-link:{CARD}", Level.warning, "slot"),
    ([BRIDGE], "cards", Level.warning, "lspci"),
]


@pytest.mark.parametrize(("pci", "name", "level", "cure"), CARDS, ids=[f"{c[1]}-{n}" for n, c in enumerate(CARDS)])
def test_one_thing_wrong_with_a_card(pci: list[dict[str, Any]], name: str, level: Level, cure: str) -> None:
    found = look(facts(*pci))[name]
    assert found.level is level and cure in found.cure, found


VGPU: list[tuple[list[dict[str, Any]], dict[str, Any], str, Level, str]] = [
    ([function(driver="nvidia")], {}, f"card-vgpu:{CARD}", Level.warning, f"sriov-manage -e {CARD}"),
    (
        [PF, *(virtual(each, **{}) | {"nvidia": None} for each in ("0000:41:00.4", "0000:41:00.5"))],
        {},
        f"card-vgpu:{CARD}",
        Level.broken,
        "systemctl restart nvidia-vgpud nvidia-vgpu-mgr",
    ),
    ([PF, *VGPU_VFS, SATA], {}, f"card-group:{CARD}", Level.warning, "slot"),
    ([function(driver="nvidia", vfs_most=0)], {}, "firmware-sriov", Level.broken, "SR-IOV"),
    (
        [function(driver="nvidia", device="1eb8", vfs_most=0)],
        {"sriov": False, "mig": None},
        f"card-vgpu:{CARD}",
        Level.warning,
        "gpumodeswitch",
    ),
    ([PF, VGPU_VFS[0] | {"driver": "vfio-pci"}], {}, f"card-vfs:{CARD}", Level.broken, "managed='no'"),
    ([PF, *(each | {"group": 5} for each in VGPU_VFS)], {}, f"card-vf-groups:{CARD}", Level.broken, "ACS"),
    ([PF, *VGPU_VFS], {"display_active": True}, f"card-display:{CARD}", Level.warning, "DisplayModeSelector"),
    ([PF | {"device": "13f2"}, *VGPU_VFS], {"ecc": True}, f"card-ecc:{CARD}", Level.broken, "-e 0"),
    (
        [PF | {"device": "13f2"}, *VGPU_VFS],
        {"vgpu_types": [{"id": 18, "name": "GRID M60-2Q"}]},
        f"card-cuda:{CARD}",
        Level.warning,
        "8Q",
    ),
    (
        [PF, *VGPU_VFS],
        {"vgpus": [{"vm": "5e1b", "type": 557, "driver": "550.54.14", "licensed": False}]},
        f"vgpu-licence:{CARD}-0",
        Level.warning,
        "ClientConfigToken",
    ),
    (
        [PF, *VGPU_VFS],
        {"vgpus": [{"vm": "5e1b", "type": 557, "driver": "580.65.06", "licensed": True}]},
        f"vgpu-driver:{CARD}-0",
        Level.broken,
        "guest driver",
    ),
    ([PF, *VGPU_VFS], {"mig": {"current": 0, "pending": 1}}, f"card-mig:{CARD}", Level.broken, "--gpu-reset"),
    (
        [PF, *VGPU_VFS],
        {"mig": {"current": 1, "pending": 0}, "processes": [{"pid": 9, "command": "dcgm"}]},
        f"card-mig:{CARD}",
        Level.broken,
        "9 (dcgm)",
    ),
    ([PF, *VGPU_VFS], {"mig": {"current": 1, "pending": 1}}, f"card-mig:{CARD}", Level.warning, "-cgi"),
    (
        [function(driver="nvidia")],
        {"mig": {"current": 1, "pending": 1}, "instances": [{}]},
        f"card-mig:{CARD}",
        Level.warning,
        f"sriov-manage -e {CARD}",
    ),
    (
        [function(driver="nvidia")],
        {"mig": {"current": 1, "pending": 1}, "virtualization": "none"},
        f"card-mig:{CARD}",
        Level.warning,
        "-mig 0",
    ),
]


@pytest.mark.parametrize(
    ("pci", "device", "name", "level", "cure"), VGPU, ids=[f"{v[2]}-{n}" for n, v in enumerate(VGPU)]
)
def test_one_thing_wrong_with_vgpus(
    pci: list[dict[str, Any]], device: dict[str, Any], name: str, level: Level, cure: str
) -> None:
    found = look(facts(*pci, nvml=vgpu_nvml(**device)))[name]
    assert found.level is level and cure in found.cure, found


@pytest.mark.parametrize(
    ("nvml", "level", "cure"),
    [
        ({"state": "ok", "driver": "550.90"}, Level.ok, ""),
        ({"state": "no_library"}, Level.ok, ""),
        ({"state": "no_module"}, Level.warning, "helper"),
        ({"state": "error", "error": "Driver/library version mismatch"}, Level.warning, "Reboot"),
        ({"state": "error", "error": "something new"}, Level.warning, "dmesg"),
    ],
)
def test_what_nvml_says_of_the_driver(nvml: dict[str, Any], level: Level, cure: str) -> None:
    found = look(facts(nvml=nvml))["vgpu-manager"]
    assert found.level is level and cure in found.cure


@pytest.mark.parametrize(
    ("fabric", "name", "level", "cure"),
    [
        (
            {"manager": "running", "mode": 1, "partitions": [{"id": 0, "active": True, "gpus": [{}] * 8}]},
            "",
            Level.ok,
            "",
        ),
        ({"manager": "stopped"}, "fabric-manager", Level.broken, "systemctl enable --now nvidia-fabricmanager"),
        ({"manager": "absent"}, "fabric-manager", Level.broken, "Install nvidia-fabricmanager"),
        ({}, "fabric-manager", Level.warning, "systemctl status"),
        ({"manager": "running", "mode": 0}, "fabric-mode", Level.warning, "FABRIC_MODE=1"),
        ({"manager": "running", "mode": 1, "partitions": []}, "fabric-partitions", Level.warning, "fmpm -l"),
    ],
)
def test_a_machine_with_switches(fabric: dict[str, Any], name: str, level: Level, cure: str) -> None:
    found = look(facts(function(), SWITCH, fabric=fabric | {"switches": ["0000:c1:00.0"]}))
    if name:
        assert found[name].level is level and cure in found[name].cure
    else:
        assert found["fabric-partitions"].level is found["fabric-mode"].level is found["fabric-manager"].level is level
    assert "fabric-manager" not in look(facts())


@pytest.mark.parametrize(
    ("changes", "name", "level", "cure"),
    [
        ({"accel": "tcg", "accel_why": "/dev/kvm is missing"}, "kvm", Level.broken, "VT-x"),
        ({"accel": "tcg", "accel_why": "set by the administrator"}, "kvm", Level.broken, "accel"),
        ({"accel": None}, "kvm", Level.warning, "vmgpu host survey"),
        ({"libvirt": "7.0.0"}, "libvirt", Level.broken, "newer"),
        ({"qemu": "4.2.1"}, "qemu", Level.warning, "apt install qemu-system-x86"),
        ({"efi": False}, "guest-firmware", Level.broken, "apt install ovmf"),
        ({"hostdevs": ("usb",)}, "libvirt-hostdev", Level.broken, "modprobe vfio-pci"),
        ({"pool_free_gib": 0}, "pool", Level.broken, "Release VMs"),
        ({"pool_free_gib": 20}, "pool", Level.warning, "vmgpu image list"),
        ({"network_active": False}, "network", Level.broken, "virsh net-start vmgpu"),
    ],
)
def test_one_thing_wrong_with_the_software(changes: dict[str, Any], name: str, level: Level, cure: str) -> None:
    found = look(facts(), replace(HEALTHY_SEEN, **changes))[name]
    assert found.level is level and cure in found.cure, found


def test_no_slices_of_mig_on_a_fabric_for_vgpus() -> None:
    nvml = vgpu_nvml(mig={"current": 1, "pending": 1}, instances=[{}])
    found = look(facts(PF, *VGPU_VFS, SWITCH, nvml=nvml, fabric={"manager": "running", "mode": 2}))
    assert found[f"card-mig:{CARD}"].level is Level.warning and "-mig 0" in found[f"card-mig:{CARD}"].cure
    assert found["fabric-mode"].level is Level.ok


def test_libvirt_is_measured_by_what_the_host_offers() -> None:
    old = replace(HEALTHY_SEEN, libvirt="9.0.0")
    assert look(facts(), old)["libvirt"].level is Level.ok
    assert "virtual functions" not in look(facts(), old)["libvirt"].means
    assert look(facts(PF, *VGPU_VFS, nvml=vgpu_nvml()), old)["libvirt"].level is Level.warning
    mdev = facts() | {"mdev_parents": [{"name": CARD, "address": CARD, "types": []}]}
    assert look(mdev, replace(HEALTHY_SEEN, libvirt="7.2.0"))["libvirt"].level is Level.warning
    assert "apt install mdevctl" in look(mdev, replace(HEALTHY_SEEN, hostdevs=("pci",)))["libvirt-hostdev"].cure


def test_what_can_be_handed_out_singly() -> None:
    pairs = [function(f"0000:{bus:02x}:00.0", group=bus // 2) for bus in (0x10, 0x11, 0x20, 0x30)]
    found = look(facts(*pairs))["cards"]
    assert found.level is Level.warning
    assert found.seen == "4 cards in 3 IOMMU groups" and "at most 3 of 4 guests" in found.means
    assert look(facts(function(), function(SECOND)))["cards"].means == "Each can be handed out by itself."


def test_the_window_of_a_guest_follows_the_regions() -> None:
    window = look(facts())[f"card-window:{CARD}"]
    assert window.level is Level.ok and "64-bit window of 256 GiB" in window.seen
    no_uefi = look(facts(), replace(HEALTHY_SEEN, efi=False))[f"card-window:{CARD}"]
    assert no_uefi.level is Level.broken and "apt install ovmf" in no_uefi.cure
    small = function(bars=[{"index": 1, "size": 2**26, "assigned": True}])
    assert f"card-window:{CARD}" not in look(facts(small))


def test_other_vendors_functions_are_devices_of_their_own() -> None:
    amd = function(vendor="1002", device="74a1", driver="gim", vfs_most=8)
    assert "as a whole" in look(facts(amd))[f"card-vfs:{CARD}"].means
    assert look(facts(amd | {"vfs_on": 8}))[f"card-vfs:{CARD}"].seen == "8 of 8 virtual functions are on"
    assert "vgpu-manager" not in look(facts(amd))


def test_an_iommu_that_is_no_intel_one() -> None:
    amd = look(facts(iommu=iommu(dmar=False, ivrs=True, groups=0), cpu={"vendor": "AuthenticAMD"}))
    assert "intel_iommu" not in amd["kernel-iommu"].cure and "AMD-Vi" in amd["kernel-iommu"].cure
    arm = look(facts(iommu=iommu(dmar=False, groups=0), arch="aarch64"))
    assert "SMMU" in arm["kernel-iommu"].cure and "firmware-iommu" not in arm


def test_a_host_without_cards_is_only_warned() -> None:
    told = facts(BRIDGE, iommu=iommu(dmar=False, groups=0), vfio=False)
    found = look(told, replace(HEALTHY_SEEN, accel="tcg", accel_why="libvirt offers no KVM on this host"))
    assert not [each for each in found.values() if each.level is Level.broken]
    assert found["kernel-iommu"].level is found["vfio"].level is found["kvm"].level is Level.warning


def test_the_dead_say_nothing_of_themselves() -> None:
    found = look(facts(function(dead=True, bars=[], reset_methods=[])))
    assert not {f"card-bars:{CARD}", f"card-reset:{CARD}"} & set(found)


def test_the_unknown_breaks_nothing() -> None:
    for told in ({}, None, {"host": {}}, {"host": None, "pci": None, "nvml": None, "fabric": None}):
        found = examine(told, LibvirtSeen())
        assert not [each for each in found if each.level is Level.broken]
    assert [each.id for each in examine({}, LibvirtSeen())] == ["helper"]
    assert "SSH key" in examine({}, LibvirtSeen(remote=True))[0].cure
    bare = function(CARD, **{name: None for name in function() if name not in ("address", "vendor", "class")})
    assert not [each for each in look(facts(bare)).values() if each.level is Level.broken and ":" in each.id]


def test_every_check_that_is_not_ok_says_what_to_do() -> None:
    spoilt = [facts(**h[0]) for h in HOST] + [facts(*c[0]) for c in CARDS]
    spoilt += [facts(*v[0], nvml=vgpu_nvml(**v[1])) for v in VGPU]
    for told in spoilt:
        for each in examine(told, replace(HEALTHY_SEEN, libvirt="1.0", efi=False, pool_free_gib=0)):
            assert each.seen and each.means and (each.level is Level.ok) == (not each.cure), each


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([CARD, "10de", "0302", "ok"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_rubbish_makes_it_fail(told: Any) -> None:
    examine(told, LibvirtSeen())


@given(st.data())
@settings(max_examples=examples(150))
def test_no_rubbish_in_the_right_place_makes_it_fail(data: st.DataObject) -> None:
    """Facts in their form, where any value anywhere is something else."""
    told = facts(PF, *VGPU_VFS, SOUND, SWITCH, nvml=vgpu_nvml(), fabric={"manager": "running", "mode": 1})
    for _ in range(data.draw(st.integers(1, 4))):
        at: Any = told
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(at[key], dict | list) and data.draw(st.booleans()):
                at = at[key]
                continue
            at[key] = data.draw(JSON)
            break
    found = examine(told, HEALTHY_SEEN)
    assert all(each.id and each.seen and (each.cure or each.level is Level.ok) for each in found)
    assert len({each.id for each in found}) == len(found)


def test_a_card_that_the_settings_name_is_looked_at() -> None:
    """A maker that nobody knows is left alone, unless an admin says that its device is a card."""
    display = function(SECOND, vendor="1234", device="1111", driver=None, **{"class": "0380"})
    neighbour = function(
        "0000:81:01.0", vendor="1af4", device="1000", group=0x81, driver="virtio-pci", **{"class": "0200"}
    )
    told = facts(function(), display, neighbour)
    assert not [each for each in examine(told, HEALTHY_SEEN) if SECOND in each.id]
    found = {each.id: each for each in examine(told, replace(HEALTHY_SEEN, device_ids=("1234:1111",)))}
    assert found[f"card-driver:{SECOND}"].level is Level.ok
    assert found[f"card-group:{SECOND}"].level is Level.broken and "0000:81:01.0" in found[f"card-group:{SECOND}"].seen


def test_the_iommu_is_called_by_its_table() -> None:
    """A virtual machine may have one maker's processor and the other's IOMMU."""
    amd = {"model": "AMD EPYC", "vendor": "AuthenticAMD", "threads": 2, "flags_virt": False}
    found = {each.id: each for each in examine(facts(cpu=amd), HEALTHY_SEEN)}
    assert "Intel VT-d" in found["firmware-iommu"].means and "SVM" in found["firmware-virtualization"].cure
    off = facts(cpu=amd, cmdline="quiet", iommu=iommu(groups=0))
    found = {each.id: each for each in examine(off, HEALTHY_SEEN)}
    assert "intel_iommu=on" in found["kernel-iommu"].cure


def test_parents_that_the_settings_name() -> None:
    """A parent must be the kernel's, and one that libvirt takes for a parent."""
    told = facts() | {"mdev_parents": [{"name": name, "address": None, "types": []} for name in ("mtty", "mbochs")]}
    named = {"mtty": True, "mbochs": False, "gone": False, "unasked": None}
    found = {each.id: each for each in examine(told, replace(HEALTHY_SEEN, mdev_parents=named))}
    assert found["mdev-parent:mtty"].level is Level.ok
    assert found["mdev-parent:mbochs"].level is Level.broken and "libvirt" in found["mdev-parent:mbochs"].seen
    assert "Load its driver" in found["mdev-parent:gone"].cure
    assert "mdev-parent:gone" in {each.id for each in examine(facts(), replace(HEALTHY_SEEN, mdev_parents=named))}


def test_the_consoles_card_is_not_counted_among_those_that_can_go() -> None:
    found = {each.id: each for each in examine(facts(function(), function(SECOND, boot_vga=True)), HEALTHY_SEEN)}
    assert found["cards"].level is Level.warning and "1 of 2" in found["cards"].means

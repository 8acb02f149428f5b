"""A survey tells what is there, explains what cannot be given away, and never trips over odd devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libvirt
import pytest

from vmgpu.errors import HostUnreachable
from vmgpu.hypervisor import GpuFacts, HostFacts, HostRef, Network, NetworkRef, NumaNode
from vmgpu.hypervisor.hostctl.facts import PROTOCOL
from vmgpu.hypervisor.hostctl_client import HostCtlRefused, LocalHostCtl
from vmgpu.hypervisor.hostctl_zip import VERSION
from vmgpu.hypervisor.ssh_login import NotLetIn
from vmgpu.hypervisor.survey import is_local, survey

from .host_tree import ACTUAL_BOOT, Connection, Tree, node

A100 = "<class>0x030200</class><product id='0x20b5'>GA100 [A100 PCIe 80GB]</product><vendor id='0x10de'>NVIDIA</vendor>"
LOCAL, REMOTE = "qemu:///system", "qemu+ssh://root@gpu1.example/system"


@dataclass(frozen=True)
class Pool:
    total_gib: int = 100
    free_gib: int = 60
    written_mib: Mapping[str, int] = field(default_factory=lambda: {"vm-1": 512})
    name: str = "vmgpu"


@dataclass(frozen=True)
class Net:
    name: str = "vmgpu"
    range: str = "192.168.140.0/24"


@dataclass
class Ctl:
    """A remote host's hostctl: what it says of itself, or how it fails."""

    said: dict[str, Any] | Exception

    def call(
        self, verb: str, arguments: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        if isinstance(self.said, Exception):
            raise self.said
        return dict(self.said) if verb == "version" else {"pci": [], "host": {"cpu": {"model": "told by hostctl"}}}


def look(
    connection: Connection, root: Path, *, uri: str = LOCAL, there: Ctl | None = None, **settings: tuple[str, ...]
) -> HostFacts:
    ref = HostRef(
        id="h1",
        name="local",
        uri=uri,
        installation="inst-1",
        network=NetworkRef(Network.nat, "vmgpu"),
        accel="tcg",
        state_dir=root,
        **settings,
    )
    ctl = LocalHostCtl(root) if is_local(uri) else there
    return survey(connection, ref, pool=Pool(), network=Net(), ctl=ctl, root=root)  # type: ignore[arg-type]


def only(facts: HostFacts) -> GpuFacts:
    assert len(facts.gpus) == 1
    return facts.gpus[0]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_host_facts(tree: Tree) -> None:
    facts = look(Connection(), tree.root)
    assert (facts.hostname, facts.boot_id) == ("gpu1", ACTUAL_BOOT)
    assert facts.machine.endswith("gpu1") and facts.disk_written_mib == {"vm-1": 512}
    assert (facts.libvirt, facts.qemu) == ("9.0.0", "7.2.22")
    assert (facts.cpu_model, facts.threads, facts.memory_mib) == ("Made-up Xeon 9000", 16, 64000)
    assert (facts.accel, facts.accel_why) == ("tcg", "set by the administrator")
    assert (facts.pool, facts.disk_total_gib, facts.disk_free_gib) == ("vmgpu", 100, 60)
    assert (facts.network, facts.network_range) == ("vmgpu", "192.168.140.0/24")
    assert facts.numa == (NumaNode(0, "0-3,8-11", 32000), NumaNode(1, "4-7,12", 16000))
    assert facts.gpus == () and facts.warnings == ()


def test_emulated_cards_are_called_emulated(tree: Tree) -> None:
    facts = look(Connection(), tree.root, emulate=("A100-40GB", "A30"))
    assert [each.key for each in facts.gpus] == ["emulated:0", "emulated:1"]
    first = facts.gpus[0]
    assert first.emulated and first.name == "emulated A100-40GB" and first.model == "A100-40GB"
    assert first.modes == ("emulated",) and first.memory_mib == 40960 and first.address is None
    assert facts.gpus[1].memory_mib is None


def test_what_an_admin_calls_a_card_is_one(tree: Tree) -> None:
    """A display of an unknown maker, and a driver's parent of mediated devices that is no PCI device at all."""
    tree.function("0000:05:00.0", ids="1234:1111", class_code="038000", group=5)
    for name, left in (("mtty-1", 24), ("mtty-2", 12)):
        tree.write(f"sys/class/mdev_bus/mtty/mdev_supported_types/{name}/available_instances", f"{left}\n")
    tree.write("sys/class/mdev_bus/mbochs/mdev_supported_types/mbochs-large/available_instances", "1\n")
    plain = Connection(node("0000:05:00.0", "<product id='0x1111'/><vendor id='0x1234'/>"), parents=("mtty",))
    assert look(plain, tree.root).gpus == ()
    (other,) = look(plain, tree.root, mdev_parents=("mbochs",)).gpus
    assert other.modes == () and "libvirt knows no parent mbochs" in other.refusals["vgpu"]
    card, parent = look(plain, tree.root, device_ids=("1234:1111",), mdev_parents=("mtty",)).gpus
    assert (card.address, card.modes) == ("0000:05:00.0", ("passthrough",))
    assert (parent.address, parent.iommu_group, parent.bars_mib, parent.modes) == (None, None, (), ("vgpu",))
    assert {cut.name: (cut.cells, cut.most) for cut in parent.cuts["vgpu"].pieces} == {
        "mtty-1": (1, 24),
        "mtty-2": (2, 12),
    }


def test_a_free_card_with_sound_can_be_passed_through(tree: Tree) -> None:
    tree.function(
        "0000:65:00.0", group=38, driver="nvidia", bars=(16 << 20, 64 << 30, 32 << 20), numa_node="1", boot_vga="0"
    )
    tree.function("0000:65:00.1", ids="10de:1aef", class_code="040300", group=38, driver="snd_hda_intel")
    tree.function("0000:64:00.0", ids="8086:2030", class_code="060400", group=38, driver="pcieport")
    card = only(look(Connection(node("0000:65:00.0", A100 + "<numa node='0'/>")), tree.root))
    assert card.key == "pci:0000:65:00.0:10de:20b5" and card.address == "0000:65:00.0"
    assert (card.model, card.name, card.class_code) == ("10de:20b5", "GA100 [A100 PCIe 80GB]", "0302")
    assert (card.driver, card.numa_node, card.iommu_group) == ("nvidia", 1, 38)
    assert card.companions == ("0000:65:00.1",)
    assert card.bars_mib == (16, 65536, 32) and not card.boot_vga
    assert card.modes == ("passthrough",) and "passthrough" not in card.refusals


def test_iommu_off_is_explained(tree: Tree) -> None:
    tree.function("0000:65:00.0")
    card = only(look(Connection(node("0000:65:00.0", A100)), tree.root))
    assert card.modes == () and card.iommu_group is None
    assert "IOMMU is off" in card.refusals["passthrough"]


def test_the_console_is_refused(tree: Tree) -> None:
    tree.function("0000:65:00.0", group=1, boot_vga="1")
    card = only(look(Connection(node("0000:65:00.0", A100)), tree.root))
    assert card.boot_vga and card.modes == ()
    assert "host's console" in card.refusals["passthrough"]


def test_a_foreign_endpoint_of_the_group_is_named(tree: Tree) -> None:
    tree.function("0000:65:00.0", group=7)
    tree.function("0000:66:00.0", ids="8086:10fb", class_code="020000", group=7, driver="ixgbe")
    tree.function("0000:67:00.0", ids="10de:22a3", class_code="068000", group=7)
    card = only(look(Connection(node("0000:65:00.0", A100)), tree.root))
    said = card.refusals["passthrough"]
    assert "IOMMU group 7" in said and "0000:66:00.0 (class 0200, driver ixgbe)" in said
    assert "0000:67:00.0 (class 0680, driver none)" in said  # an NVSwitch calls itself a bridge and is none


@pytest.mark.parametrize("opened", ["/dev/nvidia3", "/dev/dri/card1", "/dev/dri/renderD129", "/dev/vfio/9"])
def test_a_card_held_open_names_the_process(tree: Tree, opened: str) -> None:
    tree.function("0000:65:00.0", group=9, driver="nvidia")
    for name in ("card1", "renderD129"):
        tree.link(f"sys/class/drm/{name}/device", "../../../0000:65:00.0")
    tree.write("proc/driver/nvidia/gpus/0000:65:00.0/information", "Model: A100\nDevice Minor: \t 3\n")
    tree.process(1, "systemd")
    tree.process(4711, "python3", opened)
    card = only(look(Connection(node("0000:65:00.0", A100)), tree.root))
    assert card.held_by == "process 4711 (python3)" and card.modes == ()
    assert "held open by process 4711 (python3)" in card.refusals["passthrough"]


def test_another_cards_files_do_not_count(tree: Tree) -> None:
    tree.function("0000:65:00.0", group=9, driver="nvidia")
    tree.write("proc/driver/nvidia/gpus/0000:65:00.0/information", "Device Minor: 3\n")
    tree.process(4711, "python3", "/dev/nvidia2", "/dev/nvidiactl", "/dev/dri/card1", "/dev/vfio/90", "/dev/vfio/vfio")
    assert only(look(Connection(node("0000:65:00.0", A100)), tree.root)).modes == ("passthrough",)


def test_a_card_in_our_own_vm_is_not_refused_but_a_strangers_is(tree: Tree) -> None:
    vm = "0f8b5a0e-1111-4222-8333-944455556666"
    tree.function("0000:65:00.0", group=9, driver="vfio-pci")
    tree.process(
        500, "qemu-system-x86", "/dev/vfio/9", words=("/usr/bin/qemu-system-x86_64", "-uuid", vm, "-nodefaults")
    )

    def domain(owner: str) -> str:
        return f"<domain><metadata><v:vm xmlns:v='https://v'><v:installation>{owner}</v:installation></v:vm></metadata></domain>"

    device = node("0000:65:00.0", A100)
    ours = only(look(Connection(device, domains={vm: domain("inst-1")}), tree.root))
    assert ours.modes == ("passthrough",) and ours.held_by == ""
    for domains in ({vm: domain("inst-2")}, {vm: "<domain/>"}, {}):
        strange = only(look(Connection(device, domains=domains), tree.root))
        assert strange.modes == () and strange.held_by == "process 500 (qemu-system-x86)"


def test_integrated_graphics_are_listed_and_refused(tree: Tree) -> None:
    tree.function("0000:00:02.0", ids="8086:191b", class_code="030000", group=0, driver="i915")
    inner = "<product id='0x191B'>HD Graphics 530</product><vendor id='0x8086'>Intel</vendor>"
    card = only(look(Connection(node("0000:00:02.0", inner, driver="i915")), tree.root))
    assert "processor's own graphics" in card.refusals["passthrough"]


def test_virtual_functions_are_children_and_keep_the_card_from_leaving(tree: Tree) -> None:
    tree.function("0001:82:00.0", group=99, sriov_numvfs="2")
    virtual = (
        "<capability type='phys_function'><address domain='0x0001' bus='0x82' slot='0x00' function='0x0'/></capability>"
    )
    tree.function("0001:82:00.4", group=100)
    tree.link("sys/bus/pci/devices/0001:82:00.4/physfn", "../0001:82:00.0")
    for number in (0, 1):
        tree.link(f"sys/bus/pci/devices/0001:82:00.0/virtfn{number}", f"../0001:82:00.{4 + number}")
    card = only(look(Connection(node("0001:82:00.0", A100), node("0001:82:00.4", A100 + virtual)), tree.root))
    assert card.address == "0001:82:00.0"
    assert "2 virtual functions" in card.refusals["passthrough"]


def test_a_remote_host_is_judged_by_libvirt_alone(tree: Tree) -> None:
    tree.function("0000:65:00.0", boot_vga="1")  # this machine's files are not that host's
    group = (
        "<iommuGroup number='12'>"
        "<address domain='0x0000' bus='0x65' slot='0x00' function='0x0'/>"
        "<address domain='0x0000' bus='0x65' slot='0x00' function='0x1'/>"
        "<address domain='0x0000' bus='0x00' slot='0x1f' function='0x3'/>"
        "</iommuGroup><numa node='1'/>"
    )
    sound = "<class>0x040300</class><product id='0x1aef'/><vendor id='0x10de'/>"
    smbus = "<class>0x0c0500</class><product id='0xa123'/><vendor id='0x8086'/>"
    connection = _Remote(
        node("0000:65:00.0", A100 + group, driver="nvidia"),
        node("0000:65:00.1", sound),
        node("0000:00:1f.3", smbus, driver="i801_smbus"),
    )
    facts = look(connection, tree.root, uri=REMOTE)
    card = only(facts)
    assert (card.numa_node, card.iommu_group, card.boot_vga, card.bars_mib) == (1, 12, False, ())
    assert card.companions == ("0000:65:00.1",)
    assert "0000:00:1f.3 (class 0c05, driver i801_smbus)" in card.refusals["passthrough"]
    assert facts.cpu_model == "Skylake-Server" and facts.boot_id == "a-mark"
    assert any("libvirt alone" in each for each in facts.warnings)


class _Remote(Connection):
    """A host that lets us lay a mark."""

    def storagePoolLookupByName(self, name: str) -> _Remote:
        return self

    def refresh(self, flags: int) -> int:
        return 0

    def listVolumes(self) -> list[str]:
        return ["b-mark", "a-mark"]


@pytest.mark.parametrize(
    ("uri", "local"),
    [
        ("qemu:///system", True),
        ("qemu+unix:///system?socket=/run/x", True),
        ("qemu+ssh://root@h/system", False),
        ("qemu+tls://h/system", False),
    ],
)
def test_only_this_machine_is_local(uri: str, local: bool) -> None:
    assert is_local(uri) is local


def test_odd_devices_are_passed_over(tree: Tree) -> None:
    """A server's VGA, a bridge of a GPU vendor, a device that left, broken and hostile XML, no address at all."""
    aspeed = "<class>0x030000</class><product id='0x2000'>ASPEED</product><vendor id='0x1a03'/>"
    facts = look(
        Connection(
            node("0000:03:00.0", aspeed),
            node("0000:04:00.0", A100 + "<capability type='pci-bridge'/>"),
            "gone",
            "<device><name>half",
            "<!DOCTYPE d [<!ENTITY a 'b'>]><device><name>&a;</name></device>",
            "<device><name>computer</name><capability type='system'/></device>",
            "<device><name>pci_1</name><capability type='pci'><bus>1</bus></capability></device>",
            "<device><capability type='pci'><bus>x</bus><slot/><function>-1</function></capability></device>",
        ),
        tree.root,
    )
    assert facts.gpus == ()
    assert len(facts.warnings) == 2 and all("cannot be read" in each for each in facts.warnings)


def test_the_address_comes_from_the_elements_never_from_the_name(tree: Tree) -> None:
    inner = '<product id="0x13F2">GM204GL [Tesla M60]</product><vendor id="0x10DE">Nvidia</vendor><numa node="8"/>'
    mdev = "<capability type='mdev_types'><type id='nvidia-11'><name>M60-0B</name></type></capability>"
    facts = look(Connection(node("0000:0a:01.5", inner + mdev, name="pci_0000_06_00_0", driver="nvidia")), tree.root)
    card = only(facts)  # no class, but a graphics driver; ids in capitals
    assert (card.address, card.vendor, card.device, card.numa_node) == ("0000:0a:01.5", "10de", "13f2", 8)
    assert any("pci_0000_06_00_0" in each for each in facts.warnings)


def test_hex_and_decimal_are_both_read(tree: Tree) -> None:
    inner = A100.replace("0x030200", "197120")  # the same class, in decimal
    xml = node("0000:10:10.0", inner).replace("<bus>16</bus>", "<bus>0x10</bus>").replace("<domain>0</domain>", "")
    assert only(look(Connection(xml), tree.root)).address == "0000:10:10.0"


def test_a_device_without_class_and_driver_is_doubtful_not_a_card(tree: Tree) -> None:
    inner = "<product id='0x71c4'>M56GL</product><vendor id='0x1002'>ATI</vendor><numa node='-1'/>"
    facts = look(Connection(node("0000:01:00.0", inner, name="pci_1002_71c4")), tree.root)
    assert facts.gpus == () and any("names no class" in each for each in facts.warnings)
    tree.function("0000:01:00.0", ids="1002:71c4", class_code="030000")
    assert only(look(Connection(node("0000:01:00.0", inner)), tree.root)).numa_node is None  # sysfs knows the class


@pytest.mark.libvirt
@pytest.mark.skipif("VMGPU_TEST_LIBVIRT" not in os.environ, reason="VMGPU_TEST_LIBVIRT names no libvirtd")
def test_this_machine_is_surveyed_by_its_own_libvirt() -> None:
    connection = libvirt.open(os.environ["VMGPU_TEST_LIBVIRT"])
    try:
        facts = look(connection, Path("/"), emulate=("A30",))
    finally:
        connection.close()
    assert facts.hostname and facts.libvirt and facts.qemu and facts.cpu_model
    assert facts.threads == os.cpu_count() and facts.memory_mib > 512
    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert sum(node.memory_mib for node in facts.numa) == pytest.approx(facts.memory_mib, abs=64)
    assert facts.gpus[0].emulated and all(each.address for each in facts.gpus[1:])


OURS = {"hostctl": PROTOCOL, "build": VERSION}


@pytest.mark.parametrize(
    ("said", "used", "words"),
    [
        (OURS, True, None),
        (OURS | {"build": "0ld0ld0ld0ld"}, True, f"build 0ld0ld0ld0ld, ours is {VERSION}"),
        (OURS | {"hostctl": "0"}, False, f"speaks version 0, not {PROTOCOL}"),
        ({}, False, "speaks version None"),
        (HostCtlRefused("gpu1: hostctl version ended without an answer"), False, "without an answer"),
        (NotLetIn("gpu1 does not let vmgpu in"), False, "does not let vmgpu in"),
    ],
)
def test_another_hostctl_or_none_is_said_with_the_cure(
    tmp_path: Path, said: dict[str, Any] | Exception, used: bool, words: str | None
) -> None:
    facts = look(_Remote(), tmp_path, uri=REMOTE, there=Ctl(said))
    assert (facts.cpu_model == "told by hostctl") is used
    if words is None:
        assert facts.warnings == ()
    else:
        assert len(facts.warnings) == 1 and words in facts.warnings[0]
        assert facts.warnings[0].endswith(": vmgpu host setup local --run")


def test_a_silent_host_is_not_a_host_without_hostctl(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachable):
        look(_Remote(), tmp_path, uri=REMOTE, there=Ctl(HostUnreachable("gpu1: timed out")))


def test_a_remote_host_without_hostctl_is_told_how_to_get_it(tmp_path: Path) -> None:
    facts = look(_Remote(node("0000:65:00.0", A100)), tmp_path, uri=REMOTE)
    assert any("through libvirt alone" in each and "vmgpu host setup local" in each for each in facts.warnings)

"""The mounted tree, used as people use it: cat, echo, and NVIDIA's own programs."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest

from tests.gpuhost import FakeHost, Refused
from tests.gpuhost.conftest import Start
from tests.gpuhost.describe import named

PF = "0000:41:00.0"
VM = "22222222-bbbb-4bbb-8bbb-00000000000a"
UUID = "11111111-aaaa-4aaa-8aaa-00000000000a"


def shell(host: FakeHost, text: str) -> subprocess.CompletedProcess[str]:
    """One line of shell at the host's root."""
    return subprocess.run(["bash", "-c", text], cwd=host.root, capture_output=True, text=True, timeout=30, check=False)


def device(host: FakeHost, address: str) -> Path:
    return host.root / "sys/bus/pci/devices" / address


def refused(path: Path, text: str) -> int:
    """The errno that a write gets. Unbuffered: Python's buffer writes once more when it is closed after a failure."""
    with pytest.raises(OSError) as told, path.open("wb", buffering=0) as file:
        file.write(text.encode())
    return told.value.errno or 0


def enable(host: FakeHost, address: str) -> list[str]:
    done = shell(host, f"usr/lib/nvidia/sriov-manage -e {address}")
    assert done.returncode == 0, done.stderr
    return [(device(host, address) / f"virtfn{n}").resolve().name for n in range(16)]


def test_functions_come_by_sriov_manage_and_not_by_hand(start: Start) -> None:
    host = start("h100")
    assert "write error" in shell(host, f"echo 16 > sys/bus/pci/devices/{PF}/sriov_numvfs").stderr
    vfs = enable(host, PF)
    assert (vfs[0], vfs[4], vfs[15]) == ("0000:41:00.4", "0000:41:01.0", "0000:41:02.3")
    assert shell(host, f"cat sys/bus/pci/devices/{PF}/sriov_numvfs").stdout == "16\n"
    assert (device(host, vfs[0]) / "driver").resolve().name == "nvidia"
    assert len(list((device(host, vfs[0]) / "vfio-dev").iterdir())) == 1
    assert shell(host, "usr/lib/nvidia/sriov-manage -d ALL").returncode == 0
    assert not device(host, vfs[0]).exists()


def test_before_functions_exist_the_two_generations_look_alike(start: Start) -> None:
    host = start("a100")
    assert not list((host.root / "sys/class/mdev_bus").iterdir())
    vf = device(host, enable(host, PF)[0])
    assert (vf / "mdev_supported_types").is_dir() and not (vf / "nvidia").exists()
    assert not (device(host, PF) / "mdev_supported_types").exists()


def test_a_vgpu_is_a_number_written_to_the_function(start: Start) -> None:
    host = start("l40s")
    vfs = enable(host, "0000:26:00.0")
    own, other = (device(host, each) / "nvidia" for each in vfs[:2])
    assert shell(host, f"cat {own}/current_vgpu_type").stdout == "0\n"
    assert (own / "creatable_vgpu_types").read_text().splitlines()[:2] == [
        "ID    : vGPU Name",
        "1145  : NVIDIA L40S-1B",
    ]
    with pytest.raises(OSError) as told:
        (own / "placement_id").read_text()
    assert told.value.errno == errno.ENXIO
    shell(host, f"echo 1155 > {own}/current_vgpu_type")
    assert (own / "current_vgpu_type").read_text() == "1155\n"
    assert (own / "placement_id").read_text() == "0\n"
    assert (own / "creatable_vgpu_types").read_text() == "ID    : vGPU Name\n"
    left = (other / "creatable_vgpu_types").read_text().splitlines()[1:]
    assert left == ["1155  : NVIDIA L40S-24Q", "1165  : NVIDIA L40S-24A"]
    assert refused(own / "current_vgpu_type", "1165") == errno.EIO  # 0 comes first
    assert refused(other / "current_vgpu_type", "1147") == errno.EIO  # another size
    assert refused(other / "current_vgpu_type", "7") == errno.EINVAL
    (other / "current_vgpu_type").write_text("1155")
    assert (device(host, vfs[2]) / "nvidia/creatable_vgpu_types").read_text() == "ID    : vGPU Name\n"
    (own / "current_vgpu_type").write_text("0")
    assert (own / "current_vgpu_type").read_text() == "0\n"


def test_a_vgpu_of_a_running_vm_is_not_deleted(start: Start) -> None:
    host = start("l40s")
    vf = enable(host, "0000:26:00.0")[0]
    current = device(host, vf) / "nvidia/current_vgpu_type"
    current.write_text("1147")
    pid = host.model.start_vm(VM, [vf])
    assert refused(current, "0") == errno.EBUSY
    words = (host.root / f"proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert words[words.index(b"-uuid") + 1] == VM.encode()
    group = (device(host, vf) / "iommu_group").resolve().name
    assert f"/dev/vfio/{group}" in [str(each.readlink()) for each in (host.root / f"proc/{pid}/fd").iterdir()]
    host.model.end_vm(VM)
    current.write_text("0")


def test_a_mig_backed_vgpu_needs_its_instance(start: Start) -> None:
    host = start("h100")
    host.model.take(mig=PF)
    current = device(host, enable(host, PF)[0]) / "nvidia/current_vgpu_type"
    assert refused(current, "1310") == errno.EIO
    assert "Failed to add vgpu create request: 0x38" in (host.root / "dev/kmsg").read_text()
    host.model.take(instance="1g.10gb", on=PF, at=3)
    current.write_text("1310")
    assert (current.parent / "gpu_instance_id").read_text() == "10\n"


def test_switching_functions_on_wipes_the_instances_cut_before(start: Start) -> None:
    host = start("h100")
    host.model.take(mig=PF)
    host.model.take(instance="1g.10gb", on=PF, at=0)
    enable(host, PF)
    card = host.model.state()["cards"][PF]
    assert card["mig"] == [True, True] and card["instances"] == []


def test_mdevs_come_and_go_by_their_type(start: Start) -> None:
    host = start("t4")
    types = host.root / f"sys/class/mdev_bus/{PF}/mdev_supported_types"
    assert (types / "nvidia-232/name").read_text() == "GRID T4-4Q\n"
    assert (types / "nvidia-232/description").read_text() == (
        "num_heads=4, frl_config=60, framebuffer=4096M, max_resolution=7680x4320, max_instance=4\n"
    )
    (types / "nvidia-232/create").write_text(UUID)
    assert (types / "nvidia-232/available_instances").read_text() == "3\n"
    assert (types / "nvidia-231/available_instances").read_text() == "0\n"
    assert refused(types / "nvidia-232/create", UUID) == errno.EEXIST
    assert refused(types / "nvidia-232/create", "not-a-uuid") == errno.EINVAL
    mdev = host.root / "sys/bus/mdev/devices" / UUID
    assert (mdev / "mdev_type").resolve().name == "nvidia-232"
    assert mdev.resolve().parent.name == PF
    assert (mdev / "iommu_group").resolve().is_dir()
    (mdev / "nvidia/vgpu_params").write_text("enable_uvm=1")
    host.model.start_vm(VM, [UUID])
    assert refused(mdev / "remove", "1") == errno.EBUSY
    host.model.end_vm(VM)
    (mdev / "remove").write_text("1")
    assert not mdev.exists()


def test_every_free_function_of_a_full_card_offers_the_last_place(start: Start) -> None:
    host = start("a2")
    seen = shell(host, "cat sys/class/mdev_bus/*/mdev_supported_types/nvidia-746/available_instances").stdout.split()
    assert sorted(seen) == ["0"] * 3 + ["1"] * 13
    free = host.root / "sys/class/mdev_bus/0000:08:01.7/mdev_supported_types"
    (free / "nvidia-746/create").write_text(UUID)
    seen = shell(host, "cat sys/class/mdev_bus/*/mdev_supported_types/*/available_instances").stdout.split()
    assert set(seen) == {"0"}
    assert (
        refused(host.root / "sys/class/mdev_bus/0000:08:01.6/mdev_supported_types/nvidia-746/create", VM) == errno.EIO
    )


def test_the_unbind_lock_is_refused_for_a_moment_or_while_the_card_is_open(start: Start) -> None:
    host = start("h100", mood={"kind": "unbind_lock", "times": 2})
    for _ in range(2):
        done = shell(host, f"usr/lib/nvidia/sriov-manage -e {PF}")
        assert done.returncode == 1 and f"Cannot obtain unbindLock for {PF}" in done.stderr
    enable(host, PF)
    pid = host.model.hold(PF, "dcgm-exporter")
    assert shell(host, f"usr/lib/nvidia/sriov-manage -d {PF}").returncode == 1
    host.model.let_go(pid)
    assert shell(host, f"usr/lib/nvidia/sriov-manage -d {PF}").returncode == 0


def test_a_card_moves_to_vfio_by_override_and_back(start: Start) -> None:
    host = start("h100")
    card = device(host, PF)
    lock = host.root / f"proc/driver/nvidia/gpus/{PF}/unbindLock"
    lock.write_text("1")
    assert lock.read_text() == "1\n"
    (card / "driver/unbind").write_text(PF)
    assert refused(host.root / "sys/bus/pci/drivers/vfio-pci/bind", PF) == errno.ENODEV
    (card / "driver_override").write_text("vfio-pci")
    (host.root / "sys/bus/pci/drivers_probe").write_text(PF)
    assert (card / "driver").resolve().name == "vfio-pci"
    assert (host.root / "dev/vfio" / (card / "iommu_group").resolve().name).exists()
    assert not lock.exists()
    host.model.start_vm(VM, [PF])
    with pytest.raises(Refused, match="busy"):
        host.model.start_vm(VM.replace("2222", "3333"), [PF])
    host.model.end_vm(VM)
    (card / "driver/unbind").write_text(PF)
    (card / "driver_override").write_text("\n")
    (host.root / "sys/bus/pci/drivers_probe").write_text(PF)
    assert (card / "driver").resolve().name == "nvidia"


def test_a_dead_card_reads_ones_and_a_living_function_only_in_its_ids(start: Start) -> None:
    host = start("h100")
    vf = enable(host, PF)[0]
    space = (device(host, vf) / "config").read_bytes()
    assert space[:4] == b"\xff\xff\xff\xff" and space[9:12] == b"\x00\x02\x03"
    assert (device(host, PF) / "config").read_bytes()[:4] == bytes.fromhex("de103023")
    host.model.kill_card(PF)
    assert set((device(host, PF) / "config").read_bytes()) == {0xFF}
    assert (device(host, PF) / "vendor").read_text() == "0x10de\n"  # the kernel remembers
    assert refused(device(host, PF) / "reset", "1") == errno.ENOTTY


def test_a_reboot_is_seen_by_the_boot_id_and_by_what_is_gone(start: Start) -> None:
    host = start("h100")
    boot = host.root / "proc/sys/kernel/random/boot_id"
    before = boot.read_text()
    vf = enable(host, PF)[0]
    host.model.reboot()
    assert boot.read_text() != before
    assert not device(host, vf).exists() and (device(host, PF) / "sriov_numvfs").read_text() == "0\n"


def test_paths_show_the_board(start: Start) -> None:
    host = start("m60")
    first, second = (device(host, each).resolve() for each in ("0000:06:00.0", "0000:07:00.0"))
    assert first.parent.parent == second.parent.parent
    assert first.parent.parent.parent.name == "0000:00:03.0"
    assert (first / "iommu_group").resolve() != (second / "iommu_group").resolve()
    assert (first.parent / "class").read_text() == "0x060400\n"


def test_a_host_without_iommu_shows_no_groups(start: Start) -> None:
    told = named("t4")
    host = start({**told, "machine": {**told["machine"], "iommu": False}})
    assert not list((host.root / "sys/kernel/iommu_groups").iterdir())
    assert not list((host.root / "sys/class/iommu").iterdir())
    assert [each.name for each in (host.root / "sys/firmware/acpi/tables").iterdir()] == ["APIC"]
    assert not (device(host, PF) / "iommu_group").exists()


def test_the_host_tells_about_itself(start: Start) -> None:
    host = start("h100")
    assert (
        shell(host, "cat proc/sys/kernel/hostname sys/devices/system/node/node1/cpulist").stdout == "gpu-h100\n32-63\n"
    )
    assert "intel_iommu=on" in shell(host, "cat proc/cmdline").stdout
    assert "NVIDIA H100 80GB HBM3" in shell(host, f"cat proc/driver/nvidia/gpus/{PF}/information").stdout
    assert {"nvidia", "nvidia_vgpu_vfio", "vfio_pci"} <= {each.name for each in (host.root / "sys/module").iterdir()}
    assert (host.root / "dev/vfio/vfio").exists() and (host.root / "dev/kvm").exists()


def test_partitions_are_switched_by_fmpm(start: Start) -> None:
    host = start("h200")
    assert shell(host, "usr/bin/fmpm -a 3").returncode == 0
    assert shell(host, "usr/bin/fmpm -a 0").returncode == 1
    listed = shell(host, "usr/bin/fmpm -l").stdout
    assert '"numPartitions": 15' in listed and listed.count('"isActive": 1') == 1
    assert shell(host, "cat usr/share/nvidia/nvswitch/fabricmanager.cfg").stdout.startswith("FABRIC_MODE=1")


def test_bad_days(start: Start) -> None:
    host = start("l40s")
    vfs = enable(host, "0000:26:00.0")
    own = device(host, vfs[0]) / "nvidia"
    host.model.set_mood("refuse", path="current_vgpu_type", times=1)
    assert refused(own / "current_vgpu_type", "1147") == errno.EIO
    (own / "current_vgpu_type").write_text("1147")
    host.model.set_mood("missing", path="creatable_vgpu_types")
    assert not (own / "creatable_vgpu_types").exists()
    assert "creatable_vgpu_types" not in [each.name for each in own.iterdir()]
    host.model.clear_moods()
    assert (own / "creatable_vgpu_types").exists()


def test_a_write_that_hangs_hangs_alone_and_ends_with_its_mood(start: Start) -> None:
    host = start("l40s")
    own = device(host, enable(host, "0000:26:00.0")[0]) / "nvidia/current_vgpu_type"
    host.model.set_mood("hang", path="current_vgpu_type")
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(own)!r}, 'w').write('1147')"])
    with pytest.raises(subprocess.TimeoutExpired):
        writer.wait(0.3)
    assert own.read_text() == "0\n"
    host.model.clear_moods()
    assert writer.wait(5) == 0
    assert own.read_text() == "1147\n"


def test_unbinding_a_card_in_use_hangs_until_its_user_leaves(start: Start) -> None:
    host = start("h100")
    pid = host.model.hold(PF, "Xorg")
    thread = Thread(target=(device(host, PF) / "driver/unbind").write_text, args=(PF,), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    host.model.let_go(pid)
    thread.join(5)
    assert not thread.is_alive() and not (device(host, PF) / "driver").exists()


def _is_there(mount: Path) -> bool:
    try:
        return bool(list(mount.iterdir()))
    except ConnectionAbortedError:  # its end is under way
        return True


def test_a_host_ends_with_the_test_that_began_it(start: Start, tmp_path: Path) -> None:
    start("t4")
    program = f"""
import sys, time
from pathlib import Path
from tests.gpuhost import gpu_host
with gpu_host("t4", Path({str(tmp_path / "own")!r})) as host:
    print(host.root, flush=True)
    time.sleep(60)"""
    room = Path(__file__).parents[2]
    path = os.pathsep.join((str(room), os.environ.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.stdout
    at = Path(process.stdout.readline().decode().strip())
    assert (at / "sys").is_dir()
    process.kill()
    process.communicate()
    deadline = monotonic() + 10
    while _is_there(at) and monotonic() < deadline:
        sleep(0.05)
    assert not list(at.iterdir())


def test_a_tree_left_by_a_killed_run_is_taken_away(start: Start, tmp_path: Path) -> None:
    start("t4")  # tells whether the machine can do it at all
    at = tmp_path / "left"
    at.mkdir()
    description = Path(__file__).parent / "hosts/t4.json"
    command = [sys.executable, "-m", "tests.gpuhost", str(description), "--mount", str(at), "--nvml", str(at) + ".nvml"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert process.stdout and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with pytest.raises(OSError) as told:
        at.stat()
    assert told.value.errno == errno.ENOTCONN
    from tests.gpuhost.mount import unmount_leftovers  # mfusepy may be missing where the test is skipped

    unmount_leftovers()
    assert at.is_dir() and not list(at.iterdir())

"""Puts together a disk that UEFI firmware boots, without mounting anything."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from vmgpu.errors import SetupError
from vmgpu.lab.programs import run

_GRUB = Path("/usr/lib/grub/x86_64-efi")
_GRUB_MODULES = ("part_gpt", "fat", "ext2", "search", "search_label", "test", "linux", "boot", "normal")
_GRUB_FOLDER = "/EFI/vmgpu"
_MIB = 1024 * 1024

PROGRAMS = ("grub-mkimage", "mkfs.vfat", "mmd", "mcopy", "sgdisk", "mkfs.ext4", "qemu-img")


def make_disk(out: Path, grub_cfg: str, *, esp: Mapping[str, Path], esp_mib: int, root: Root | None = None) -> None:
    """Write the qcow2 `out`: an EFI partition with GRUB, its configuration and `esp`, then the root, if any."""
    with tempfile.TemporaryDirectory(prefix="vmgpu-disk-", dir=out.parent) as work:
        raw = Path(work) / "disk.raw"
        root_mib = root.mib if root else 0
        with raw.open("wb") as blank:
            # One MiB before the first partition, one after the last for GPT's second copy.
            blank.truncate((1 + esp_mib + root_mib + 1) * _MIB)
        partitions = [f"--new=1:2048:+{esp_mib}M", "--typecode=1:ef00"]
        if root:
            partitions += [f"--new=2:{(1 + esp_mib) * 2048}:+{root_mib}M", "--typecode=2:8304"]
        run(["sgdisk", "--clear", *partitions, raw], doing="Partitioning the image")
        _fill_esp(raw, grub_cfg, esp, esp_mib, Path(work))
        if root:
            _fill_root(raw, root, (1 + esp_mib) * _MIB)
        run(["qemu-img", "convert", "-c", "-W", "-O", "qcow2", raw, out], doing="Compressing the image")
    out.chmod(0o644)


class Root:
    """The tree that becomes the last partition, so that it can grow."""

    def __init__(self, tree: Path, label: str, mib: int) -> None:
        self.tree, self.label, self.mib = tree, label, mib


def _fill_esp(raw: Path, grub_cfg: str, files: Mapping[str, Path], mib: int, work: Path) -> None:
    if not _GRUB.is_dir():
        raise SetupError(f"GRUB's EFI modules are not in {_GRUB}", hint="Run: make setup")
    loader, config = work / "BOOTX64.EFI", work / "grub.cfg"
    config.write_text(grub_cfg)
    # A small core instead of grub-mkstandalone's 5 MB with every module: the firmware reads it under emulation.
    run(
        ["grub-mkimage", "-O", "x86_64-efi", "-d", _GRUB, "-p", _GRUB_FOLDER, "-o", loader, *_GRUB_MODULES],
        doing="Making the boot loader",
    )
    fat = work / "esp.fat"
    run(["mkfs.vfat", "-C", "-n", "ESP", fat, str(mib * 1024)], doing="Making the EFI partition")
    run(["mmd", "-i", fat, "::/EFI", "::/EFI/BOOT", f"::{_GRUB_FOLDER}"], doing="Filling the EFI partition")
    wanted = {"/EFI/BOOT/BOOTX64.EFI": loader, f"{_GRUB_FOLDER}/grub.cfg": config, **files}
    for name, source in wanted.items():
        run(["mcopy", "-i", fat, source, f"::{name}"], doing="Filling the EFI partition")
    with raw.open("r+b") as whole:
        whole.seek(_MIB)
        whole.write(fat.read_bytes())


def _fill_root(raw: Path, root: Root, offset: int) -> None:
    run(
        [
            "mkfs.ext4", "-q", "-F", "-L", root.label, "-m", "1", "-d", root.tree,
            # Written now, or the guest's kernel spends its first minutes on it.
            "-E", f"offset={offset},lazy_itable_init=0,lazy_journal_init=0",
            # Newer mkfs turns these on; GRUB 2.06 cannot read them.
            "-O", "^metadata_csum_seed,^orphan_file",
            raw, f"{root.mib}M",
        ],
        doing="Making the root file system",
    )  # fmt: skip

"""Disks, images and the pool."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, USUAL, Known

KNOWN = (
    Known(
        "disk-locked",
        "Another process has this disk open",
        "A running guest writes to it (or to an image above it); two writers would destroy it.",
        "Find it: fuser -v FILE; virsh domblklist of running guests. Shut that guest down before copying. To look "
        "only: "
        "qemu-img info -U FILE.",
        (
            r"failed to get (shared )?'(write|consistent read|resize)' lock",
            r"another process using the image",
            r"failed to lock byte \d+",
        ),
        CULPRIT,
    ),
    Known(
        "disk-full",
        "The disk or pool is full",
        "Guests whose disk cannot grow are paused by QEMU; copies break off.",
        "df -h of the pool (/var/lib/libvirt/images); release VMs, delete images, or grow the file system. Paused "
        "guests: "
        "virsh resume NAME.",
        (r"(?<!mdev:\s)no space left on device", r"\benospc\b", r"disk quota exceeded"),
    ),
    Known(
        "image-backing-missing",
        "The image stands on another file, which is not there",
        "A qcow2 overlay holds only differences; the file below was moved, deleted, or never came along.",
        "qemu-img info --backing-chain FILE. Import a flat image: qemu-img convert -O qcow2 OVERLAY FLAT, where its "
        "base "
        "still lies.",
        (
            r"could not open backing (file|image)",
            r"missing backing (file|store)",
            r"cannot access backing file",
        ),
        CULPRIT,
    ),
    Known(
        "image-points-outside",
        "The image names a file of the host, and is refused",
        "A backing or data file in an uploaded image would let its owner read the host's files.",
        "Make a flat image where it was made: qemu-img convert -O qcow2 OLD NEW, and upload that.",
        (
            r"data.file'[^\n]{0,40}(is )?(required|not allowed|refused)",
            r"could not open '?(external )?data.file",
            r"(has|names|with) an? (backing|external data) file",
            r"(backing|data) file[^\n]{0,60}(refused|rejected|not allowed)",
        ),
        CULPRIT,
    ),
    Known(
        "image-corrupt",
        "The image is damaged",
        "An earlier write was torn (crash, full disk, two writers), or the upload broke off.",
        "qemu-img check FILE; -r all repairs a copy. Import it again from its source.",
        (
            r"image is corrupt",
            r"corrupt(ed)? image",
            r"marking image as corrupt",
            r"preventing invalid (read|write) (on|from|to)? ?metadata",
            r"could not read qcow2 header",
            r"could not read l1 table",
            r"unexpected end.of.file",
            r"image is too small",
        ),
        CULPRIT,
    ),
    Known(
        "image-feature",
        "The image uses something that this QEMU does not know",
        "It was made by a newer QEMU, or its header is not what it seems.",
        "Convert it where it was made: qemu-img convert -O qcow2 -o compat=1.1 OLD NEW.",
        (
            r"unsupported qcow2 feature",
            r"unsupported (incompatible )?feature",
            r"qcow2 feature which is not supported",
            r"unsupported qcow2 version",
        ),
        CULPRIT,
    ),
    Known(
        "image-format",
        "The file is not the kind of image that its name says",
        "A compressed file, an ISO or a raw disk under another name; QEMU trusts the content, not the name.",
        "file NAME; unpack it (gunzip, xz -d), then qemu-img info. Convert: qemu-img convert -O qcow2 OLD NEW.",
        (
            r"image is not in \S+ format",
            r"image not in \S+ format",
            r"invalid image format",
            r"not a qcow2 (image|file)",
        ),
        CULPRIT,
    ),
    Known(
        "image-encrypted",
        "The image is encrypted",
        "It cannot be opened without its key, which vmgpu does not keep.",
        "Decrypt it first: qemu-img convert with --object secret,… -O qcow2 OLD NEW.",
        (r"encrypt\.key-secret", r"aes-cbc encrypted qcow2", r"image is encrypted"),
        CULPRIT,
    ),
    Known(
        "disk-missing",
        "A disk of the VM is not there",
        "The file was deleted or moved, or the pool's file system is not mounted.",
        "ls and findmnt the path; virsh pool-refresh POOL. vmgpu: reset the VM for a fresh disk.",
        (
            r"cannot access storage file[^\n]{0,200}no such file",
            r"could not open '(?!/dev/)[^\n]{0,200}no such file",
            r"no storage vol(ume)? with matching",
            r"storage volume not found",
        ),
    ),
    Known(
        "pool-inactive",
        "The storage pool is not running",
        "It was not started after boot, or its folder is missing.",
        "virsh pool-start POOL; virsh pool-autostart POOL.",
        (r"storage pool '?\S+ is not active", r"no storage pool with matching", r"storage pool not found"),
    ),
    Known(
        "internal-snapshot",
        "A snapshot inside the disk file is not possible here",
        "UEFI variables or a raw disk cannot hold one; with a card no running state can be kept.",
        "Shut the VM down and capture it: vmgpu vm snapshot NAME.",
        (r"internal snapshots?[^\n]{0,80}(not supported|unsupported|pflash|nvram)",),
        USUAL,
    ),
)

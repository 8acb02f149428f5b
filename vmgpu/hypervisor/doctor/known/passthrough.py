"""A card on its way into a guest: driver binding, BARs, resets, interrupts, ROM, pinned memory."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, SYMPTOM, Known

_POWER_CYCLE = (
    "Keep the card away from guests. Try: echo 1 > /sys/bus/pci/devices/ADDRESS/remove, then echo 1 > "
    "/sys/bus/pci/rescan. If it stays so, power-cycle the host (off, not reboot)."
)

KNOWN = (
    Known(
        "not-detached",
        "The device is unmanaged and not with a driver that libvirt accepts",
        "With managed='no' the host must have bound it before. For a vGPU's virtual function the nvidia driver is "
        "right, and libvirt is too old to see that (it looks for vfio-dev below the device).",
        "Whole card: managed='yes', or virsh nodedev-detach pci_0000_41_00_0. vGPU on a virtual function: keep "
        "managed='no', a kernel of 6.1 or later and a newer libvirt (10.0 or later); never bind it to vfio-pci.",
        (r"unmanaged pci device \S+ must be manually detached",),
        CULPRIT,
    ),
    Known(
        "vfio-module",
        "The kernel module for passthrough cannot be loaded",
        "It is blacklisted, not built for this kernel (cloud kernels lack it), or refused by secure boot.",
        "Try: modprobe -v vfio-pci. Remove its blacklist line from /etc/modprobe.d; on Debian's cloud kernel install "
        "linux-image-amd64 and boot it.",
        (
            r"failed to load pci (driver|stub) module",
            r"administratively prohibited",
            r"module vfio.pci not found",
            r"could not insert 'vfio",
        ),
        CULPRIT,
    ),
    Known(
        "driver-holds-card",
        "The host's driver does not let go of the card",
        "Something has it open: persistence daemon, DCGM, X, an exporter, a container. Unbinding can then hang for "
        "ever.",
        "Find it: fuser -v /dev/nvidia*. Stop nvidia-persistenced, dcgm, display manager and exporters; switch virtual "
        "functions off (sriov-manage -d). For a card that is only for guests bind vfio-pci at boot.",
        (
            r"failed to unbind pci device",
            r"attempting to remove device \S+ with non-zero usage count",
            r"module nvidia\w* is in use",
        ),
    ),
    Known(
        "driver-not-bound",
        "The card could not be bound to vfio-pci",
        "Another driver takes it first, or a stale driver_override names something else.",
        "Clear it: echo > /sys/bus/pci/devices/ADDRESS/driver_override. Bind at boot: 'options vfio-pci ids=10de:2230' "
        "and 'softdep nvidia pre: vfio-pci' in /etc/modprobe.d/vfio.conf, then rebuild the initramfs.",
        (
            r"failed to add driver.{0,60}driver_override",
            r"failed to bind (pci )?device",
            r"vfio-pci: probe of \S+ failed with error",
            r"failed to add pci device id",
        ),
    ),
    Known(
        "no-reset",
        "The card has no way to be reset that may be used here",
        "Neither a function reset nor power management nor a reset of its bus is available; what one guest left in it "
        "the next would find.",
        "Read /sys/bus/pci/devices/ADDRESS/reset_method. With 'bus' alone give all devices of that bus to one guest. "
        "Consumer AMD cards need the vendor-reset module. An mdev sample device never has one.",
        (
            r"no flr, pm reset or bus reset available",
            r"no available reset mechanism",
        ),
        CULPRIT,
    ),
    Known(
        "reset-shared",
        "A bus reset would hit devices that others use",
        "The card can only be reset together with its neighbours on the bus, and one of them is with the host or "
        "another guest.",
        "Give all functions of that bus to one guest, or move the card to a slot of its own.",
        (
            r"devices on bus with \S+, not doing bus reset",
            r"cannot reset device.{0,80}depends on group",
        ),
        CULPRIT,
    ),
    Known(
        "card-dead",
        "The card answers nothing any more",
        "Its configuration space reads all ones: it hangs after a failed reset or has lost power.",
        _POWER_CYCLE,
        (
            r"header type '?(0x)?(127|7f)\b",
            r"config(uration)? space[^\n]{0,40}(all ones|0xff|ff ff)",
            r"\(rev ff\)",
            r"d3cold to d0, device inaccessible",
        ),
        CULPRIT,
    ),
    Known(
        "reset-hangs",
        "The card did not come back after a reset",
        "It had more than a minute. The next guest would find it dead.",
        _POWER_CYCLE,
        (r"not ready \d+ms after [^;\n]{1,40}; giving up",),
        CULPRIT,
    ),
    Known(
        "card-asleep",
        "The card cannot be woken from its deepest power state",
        "The platform switched it off while no driver used it, or it hangs.",
        lambda p: (
            p.module_option("options vfio-pci disable_idle_d3=1")
            + " For now: echo 0 > /sys/bus/pci/devices/ADDRESS/d3cold_allowed, remove and rescan it; finally "
            "power-cycle the host."
        ),
        (
            r"unable to change power state from d3",
            r"unable to power on device, stuck in d3",
            r"refused to change power state, currently in d3",
            r"can't change power state from d3",
        ),
        CULPRIT,
    ),
    Known(
        "bar-unassigned",
        "The firmware or kernel found no address range for the card's memory region",
        "Large cards have regions of 16 to 256 GB; they fit only above 4 GB, and into a guest only when its 64-bit "
        "window is large enough.",
        lambda p: (
            "Host: switch on 'Above 4G decoding' (and Resizable BAR where wanted) in the firmware, boot by UEFI; else: "
            f"{p.boot_with('pci=realloc')} Guest: machine q35 with UEFI; vmgpu sizes the window itself, for other "
            "guests: -fw_cfg name=opt/ovmf/X-PciMmio64Mb,string=262144 (MiB), or host-passthrough with "
            "<maxphysaddr mode='passthrough'/>."
        ),
        (
            r"pci i/o region assigned to your nvidia device is invalid",
            r"bar\d is 0m @ 0x0",
            r"request_mem_region failed for",
            r"can't claim bar \d+ [^\n]{0,80}(no compatible|address conflict)",
            r"(?<!vf\s)bar [0-5]( \[mem[^\]]*\])?: (no space for|can't assign|failed to assign) '\[?mem",
            r"(?<!vf\s)bar [0-5] \[mem[^\]]*\]: (can't assign|failed to assign|no space)",
        ),
        CULPRIT,
    ),
    Known(
        "phys-bits",
        "The guest's processor addresses too little memory for the cards' regions",
        "The sum of RAM and of the cards' regions lies above the highest physical address of the guest's CPU model.",
        "Use <cpu mode='host-passthrough'><maxphysaddr mode='passthrough'/></cpu>; give the guest fewer large cards.",
        (
            r"phys-bits too low",
            r"vfio_dma_map\([^\n]{1,200}\) = -22",
        ),
        CULPRIT,
    ),
    Known(
        "sriov-no-room",
        "The firmware left no room for virtual functions",
        "Bus numbers or address ranges for them were not reserved at boot.",
        lambda p: (
            "Switch on SR-IOV, ARI and 'Above 4G decoding' in the firmware; else: "
            + p.boot_with("pci=realloc,assign-busses")
        ),
        (
            r"not enough mmio resources for sr-iov",
            r"sr-iov: bus number out of range",
            r"can't enable \d+ vfs",
            # until 6.8 the kernel counts VF BARs from 7; 13 to 16 are bridge windows, which often stay empty unharmed
            r"bar ([7-9]|1[0-2]): (no space for|failed to assign) '\[?mem",
            r"vf bar ?\d[^\n]{0,80}(no space|can't assign|failed to assign)",
        ),
        CULPRIT,
    ),
    Known(
        "memory-not-locked",
        "The guest's memory could not be pinned for the card",
        "A guest with a card needs all of its RAM locked, at once, in real memory: no overcommit, no swap, no "
        "ballooning.",
        "Give the guest less memory, or stop others: free -g. Under libvirt the limit is raised by itself; for other "
        "guests <memtune><hard_limit unit='GiB'>RAM + 2</hard_limit></memtune>. With hugepages look at the free ones "
        "of each NUMA node.",
        (
            r"vfio_map_dma'? failed: cannot allocate memory",
            r"vfio_map_dma:? -12",
            r"vfio_dma_map\([^\n]{1,200}\) = -12",
            r"rlimit.?(_?memlock)? .{0,20}exceeded",
            r"cannot limit locked memory",
        ),
        CULPRIT,
    ),
    Known(
        "intx-shared",
        "The card's legacy interrupt line is shared with a device of the host",
        "It cannot mask its interrupt (no DisINTx), so the line would have to be its own.",
        lambda p: (
            "Use MSI in the guest where the card has it; unbind the neighbour on the same line (/proc/interrupts); "
            "or demand the line: " + p.module_option("options vfio-pci nointxmask=1")
        ),
        (
            r"failed to set ?up intx",
            r"failed to enable intx",
            r"genirq: flags mismatch irq \d+.{0,60}vfio",
        ),
        CULPRIT,
    ),
    Known(
        "bar-held-by-console",
        "The host's console still uses the card's memory",
        "It is the firmware's primary display; its framebuffer was not given up.",
        lambda p: (
            "Make another card (the server's own VGA) the primary display in the firmware. Else: "
            + p.boot_with("video=efifb:off initcall_blacklist=sysfb_init")
        ),
        (r"bar \d+( \[mem[^\]]*\])?: can't reserve",),
        CULPRIT,
    ),
    Known(
        "rom-unreadable",
        "The card's boot ROM cannot be read",
        "The primary display's ROM is a shadow copy, or the card is asleep. Data-centre cards need none in a guest.",
        "Leave it out: <rom bar='off'/>. Where the guest needs it: <rom file='/path/vbios.rom'/> with a dumped copy.",
        (
            r"invalid pci (expansion )?rom (header|data) signature",
            r"invalid rom contents",
            r"option rom contents are probably invalid",
            r"cannot read device rom at",
        ),
    ),
    Known(
        "device-busy-at-return",
        "The card could not go back to the host",
        "It is still with a guest, or its old driver did not take it.",
        "See who has it: virsh list --all and fuser -v /dev/vfio/N. Then: virsh nodedev-reattach pci_0000_41_00_0.",
        (
            r"failed to re-?attach pci device",
            r"not (detaching|re-?attaching) active device",
        ),
    ),
    Known(
        "link-errors",
        "The card's PCIe link has errors that cannot be corrected",
        "A bad riser, cable, slot or power supply; the card may vanish under load.",
        "Seat the card and its power again, try another slot, lower the link speed in the firmware, update firmware.",
        (
            r"pcie bus error: severity=uncorrect",
            r"aer: (multiple )?uncorrect\w+ \(?(fatal|non-fatal)",
        ),
    ),
    Known(
        "code-43",
        "The guest's Windows driver refuses the card",
        "GeForce drivers before R465 refuse to work in a virtual machine; with a vGPU it means that guest and host "
        "drivers do not fit.",
        "Install a newer guest driver. Only where that is impossible: <kvm><hidden state='on'/></kvm> and a "
        "<hyperv><vendor_id state='on' value='whatever12'/></hyperv>. With a vGPU: journalctl -u nvidia-vgpu-mgr.",
        (
            r"(?<!exit\s)(code|error) 43\b",
            r"windows has stopped this device because",
        ),
    ),
    Known(
        "migration-with-card",
        "A guest with a card cannot be migrated or saved while it runs",
        "What the card holds is not part of the saved state. Of vGPUs only some can, on equal hosts.",
        "Shut the guest down first; capture it then.",
        (
            r"domain has assigned (non-usb )?host devices",
            r"vfio migration is not supported",
            r"cannot migrate.{0,60}(hostdev|host devices|vfio)",
            r"state blocked by non-migratable",
        ),
    ),
    Known(
        "reset-failed",
        "The card could not be reset",
        "The line before or after says which way was missing.",
        "Read /sys/bus/pci/devices/ADDRESS/reset_method; look at journalctl -k for this address.",
        (
            r"failed to reset pci device",
            r"unable to reset pci device",
            r"cannot reset device",
            r"vfio_bar_restore: reset recovery",
        ),
        SYMPTOM,
    ),
)

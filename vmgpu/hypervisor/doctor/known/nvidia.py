"""The NVIDIA driver, NVML and MIG; NVSwitch fabrics."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, SYMPTOM, Known, nvml

KNOWN = (
    Known(
        "nvidia-adapter",
        "The NVIDIA driver could not start the card",
        "Regions without an address, a card that hangs after a bad reset, missing power, firmware trouble, or (with a "
        "vGPU) a driver that does not fit the host.",
        "Look at the lines before it: an unassigned BAR and a dead card have cures of their own. Else remove and "
        "rescan "
        "the card, power-cycle the host, update driver and VBIOS. In a vGPU guest compare driver branches.",
        (r"rminitadapter failed", r"rm_init_adapter failed", r"failed to copy vbios", r"nvidia: probe of \S+ failed"),
    ),
    Known(
        "nouveau-first",
        "Another driver took the NVIDIA card first",
        "nouveau (or vfio-pci) was bound to it before the NVIDIA driver came.",
        lambda p: (
            p.module_option("blacklist nouveau", file="blacklist-nouveau.conf")
            + " In a guest the same. If vfio-pci has it on purpose, nothing is wrong."
        ),
        (
            r"nvidia probe routine was not called",
            r"already bound to (nouveau|vfio-pci|another driver)",
            r"nvrm:[^\n]{0,80}nouveau",
        ),
        CULPRIT,
    ),
    Known(
        "nvidia-wrong-driver",
        "The installed NVIDIA driver does not serve this card",
        "Too old or too new a branch for the model, the open modules on a card without GSP (before Turing), the "
        "proprietary ones where only open ones work (Blackwell), or a vGPU host driver with a card it does not know.",
        "Install the branch that NVIDIA names for the card; with vGPU the release that lists it.",
        (
            r"not supported by (the )?(nvrm: )?(nvidia|open|proprietary)",
            r"none of the nvidia (graphics adapters|devices) were initialized",
            r"no nvidia (gpu|graphics adapter) found",
        ),
    ),
    Known(
        "module-unsigned",
        "Secure boot keeps the driver's module out",
        "It is not signed with a key that the firmware trusts.",
        "Sign it: mokutil --import the DKMS key (/var/lib/dkms/mok.pub), reboot, enrol it at the blue screen. Or "
        "switch "
        "secure boot off in the firmware.",
        (r"key was rejected by service", r"required key not available", r"unsigned module loading is restricted"),
        CULPRIT,
    ),
    Known(
        "module-not-built",
        "The driver's module was not built for this kernel",
        "After a kernel update the headers were missing or the driver is too old for it.",
        "Install the headers of the running kernel, then: dkms autoinstall. Keep kernel updates off where nobody "
        "watches.",
        (
            r"bad return status for module build",
            r"kernel headers for [^\n]{1,80} cannot be found",
            r"dkms[^\n]{0,80}failed",
        ),
    ),
    Known(
        "driver-half-updated",
        "Kernel module and library of the NVIDIA driver are of two versions",
        "The packages were updated while the old module stayed loaded.",
        "Reboot, or unload the nvidia modules and load them again; hold the packages on hosts. On vGPU hosts install "
        "the "
        "library that belongs to the vGPU manager.",
        (r"driver/library version mismatch", r"nvrm: api mismatch"),
        CULPRIT,
    ),
    Known(
        "nvml-no-library",
        "NVML is not installed here",
        "Without libnvidia-ml.so.1 there is no NVIDIA driver in user space; cards for passthrough do not need it.",
        "For vGPU, MIG and card health install NVIDIA's driver (its vGPU package on vGPU hosts); else ignore it.",
        (
            *nvml("library_not_found"),
            r"nvml shared library not found",
            r"libnvidia-ml\.so[^\n]{0,80}(not found|cannot open|no such)",
        ),
    ),
    Known(
        "nvml-no-driver",
        "The NVIDIA kernel module is not loaded",
        "Not installed for this kernel, refused by secure boot, or all cards are with vfio-pci.",
        "modprobe nvidia, then dmesg | tail. With DKMS: dkms status. If all cards are for guests, nothing is wrong.",
        (
            *nvml("driver_not_loaded"),
            r"couldn't communicate with the nvidia driver",
            r"nvidia driver is not loaded",
            r"\bdriver not loaded",
        ),
    ),
    Known(
        "no-card-in-nvml",
        "The driver is loaded and sees no card",
        "In a guest: the card is not there, or its start failed. On a host: all cards are with vfio-pci.",
        "lspci -nnk -d 10de: shows whether it is there and with which driver; then dmesg | grep NVRM.",
        (r"no devices were found", r"nvidia-smi: command not found"),
    ),
    Known(
        "mig-no-room",
        "The card has no room for this MIG profile at that place",
        "Compute slices or memory cells are taken, or small instances stand where the large one would start.",
        "Make the largest first, or name a place: nvidia-smi mig -lgipp, then -cgi PROFILE:START. Free what is not "
        "used: "
        "nvidia-smi mig -dci; -dgi.",
        (*nvml("insufficient_resources"), r"insufficient(_| )resources"),
        CULPRIT,
    ),
    Known(
        "mig-pending",
        "The MIG mode changes only after a reset of the card",
        "The wish is noted as pending; the card still runs in the old mode.",
        "Stop what uses the card, then nvidia-smi --gpu-reset -i N; inside a guest reboot the guest; else reboot.",
        (
            *nvml("reset_required"),
            r"reset_required",
            r"gpu requires a reset",
            r"mig mode is in pending",
            r"make mig mode effective",
            r"resetting gpu \S+ is not supported",
        ),
        CULPRIT,
    ),
    Known(
        "card-has-clients",
        "Programs have the card open",
        "MIG mode, instances and resets need the card to themselves: persistence daemon, DCGM, nvsm, X, exporters and "
        "containers count.",
        "fuser -v /dev/nvidia* and nvidia-smi; stop nvidia-persistenced, nvidia-dcgm, nvsm, display manager, "
        "exporters; "
        "destroy compute instances before their GPU instance.",
        (*nvml("in_use"), r"in use by another client"),
        CULPRIT,
    ),
    Known(
        "mig-instances-gone",
        "The GPU instance or device that was asked for does not exist",
        "Instances do not survive a reboot, a reset, a driver reload or sriov-manage; on Hopper and later the mode "
        "does "
        "not survive a reboot either.",
        "nvidia-smi mig -lgi. Let the wanted layout be made again: vmgpu does so before it starts guests.",
        (
            *nvml("not_found"),
            r"no (gpu|compute) instances found",
            r"no mig(-supported)? devices? found",
        ),
    ),
    Known(
        "nvml-permission",
        "NVML was asked by somebody who may not",
        "MIG and vGPU calls need root, or access to the mig/config capability.",
        "Run it as root: the helper of the host is called through sudo; check its line in sudoers.",
        (*nvml("no_permission"), r"nvml: insufficient permissions", r"unable to [^\n]{0,60}: insufficient permissions"),
    ),
    Known(
        "nvml-not-supported",
        "The card cannot do what NVML was asked",
        "MIG is off or unknown to this card, the host driver is not the vGPU one, or the call came from inside a "
        "guest.",
        "nvidia-smi -q -i N: see 'MIG Mode' and 'Virtualization Mode'. Switch MIG on first: nvidia-smi -i N -mig 1.",
        (*nvml("not_supported"),),
    ),
    Known(
        "nvml-bad-argument",
        "NVML does not know this profile, place or handle",
        "Handles die with a reset, a driver unbind or a change of mode; ids differ by driver branch.",
        "Survey the host again, so that profiles and handles are fresh. Ids come from the driver, not from tables.",
        (*nvml("invalid_argument"), *nvml("insufficient_size")),
    ),
    Known(
        "nvml-trouble",
        "The driver did not answer as it should",
        "A hanging card or driver.",
        "dmesg | grep -E 'NVRM|Xid'; reset the card; reload the driver or reboot.",
        (*nvml("timeout"), *nvml("unknown")),
        SYMPTOM,
    ),
    Known(
        "fabric-not-ready",
        "The cards' fabric is not set up, so CUDA does not start",
        "On machines with NVSwitches a card works only in an activated partition, and one card alone too.",
        "Host: systemctl status nvidia-fabricmanager (FABRIC_MODE=1 for shared switches); fmpm -l, then fmpm -a ID "
        "of the "
        "partition with exactly the guest's cards, before the guest starts. Versions of fabric manager and driver must "
        "be equal.",
        (
            r"cudaerrorsystemnotready",
            r"cuda_error_system_not_ready",
            r"(cuda|error)[^\n]{0,20}\b802\b",
            r"system not yet initialized",
        ),
        CULPRIT,
    ),
    Known(
        "fabric-partition-overlaps",
        "Another active partition uses some of these cards",
        "Partitions of a fabric are fixed sets; two that share a card cannot be active at once.",
        "fmpm -l; stop the other guest, then fmpm -d ID. Choose sets of 1, 2, 4 or 8 cards that match a partition.",
        (
            r"partition[^\n]{0,80}(already (in use|active|activated)|overlap)",
            r"fm_st_in_use",
            r"fmpm[^\n]{0,80}(failed|error)",
        ),
    ),
    Known(
        "fabric-manager-down",
        "The service that sets up the NVSwitches is down",
        "NVSwitches are set up by this service; without it no card of the machine runs CUDA.",
        "Install nvidia-fabricmanager of exactly the driver's version; systemctl enable --now nvidia-fabricmanager.",
        (
            r"fabric\s?manager[^\n]{0,80}(not running|failed|stopped|inactive|not installed)",
            r"failed[^\n]{0,60}fabric\s?manager",
        ),
    ),
)

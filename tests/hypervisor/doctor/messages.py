"""Lines as QEMU, libvirt, the kernel, the NVIDIA driver and guests print them, each under the cause it must lead to."""

from __future__ import annotations

KERNEL = "Dec 01 09:12:44 gpu1 kernel: "
SECONDS = "[  123.456789] "
LIBVIRT = "2026-12-01 08:00:01.123+0000: 4711: error : qemuProcessReportLogError:2051 : "

LEADS: dict[str, tuple[str, ...]] = {
    # the IOMMU and its groups
    "iommu-off": (
        "error: unsupported configuration: host doesn't support passthrough of host PCI devices",
        "unsupported configuration: host doesn't support VFIO PCI passthrough",
        "error: argument unsupported: VFIO device assignment is currently not supported on this system",
        "qemu-system-x86_64: -device vfio-pci,host=41:00.0: vfio 0000:41:00.0: no iommu_group found: No such file or "
        "directory",
        "vfio: error no iommu_group for device\nvfio 0000:41:00.0: failed to get iommu_group",
        "ls: cannot access '/sys/kernel/iommu_groups/0': No such file or directory",
    ),
    "no-interrupt-remapping": (
        KERNEL + "vfio_iommu_type1_attach_group: No interrupt remapping support.  "
        'Use the module param "allow_unsafe_interrupts" '
        "to enable VFIO IOMMU support on this platform",
        KERNEL + "vfio_iommu_type1_attach_group: No interrupt remapping for this platform",
        SECONDS + "DMAR-IR: Failed to enable irq remapping. You are vulnerable to irq-injection attacks.",
    ),
    "group-not-viable": (
        "vfio: error, group 27 is not viable, please ensure all devices within the iommu_group are bound to their "
        "vfio bus driver.",
        LIBVIRT
        + "internal error: qemu unexpectedly closed the monitor: 2026-12-01T08:00:01Z qemu-system-x86_64: -device "
        '{"driver":"vfio-pci"}: vfio 0000:01:00.0: Group 1 is NOT viable',
        "Please ensure all devices within the iommu_group\n   are bound to their vfio bus driver.",
    ),
    "group-busy": (
        "vfio 0000:41:00.0: failed to open /dev/vfio/27: Device or resource busy",
        "qemu-system-x86_64: vfio: error opening /dev/vfio/27: Device or resource busy",
    ),
    "group-unbound": ("vfio 0000:41:00.0: failed to open /dev/vfio/27: No such file or directory",),
    "group-denied": (
        "vfio 0000:41:00.0: failed to open /dev/vfio/27: Permission denied",
        "Could not open '/dev/vfio/devices/vfio3': Operation not permitted",
    ),
    "group-spaces": ("vfio 0000:41:00.0: group 27 used in multiple address spaces",),
    "group-device-refused": (
        "vfio: error: error getting device from group 27: No such device",
        "Verify all devices in group 27 are bound to vfio-<bus> or pci-stub and not already in use",
    ),
    "device-gone": (
        "qemu-system-x86_64: -device vfio-pci,host=0000:41:00.4: no such host device: No such file or directory",
        "error: Device 0000:41:00.4 not found: could not access /sys/bus/pci/devices/0000:41:00.4/config: No such file",
        "error: Node device not found: no node device with matching name 'pci_0000_41_00_4'",
    ),
    "device-twice": ("vfio 0000:41:00.0: device is already attached",),
    "device-of-other-guest": (
        "error: Requested operation is not valid: PCI device 0000:41:00.1 is in use by driver QEMU, domain other",
    ),
    "rmrr": (
        KERNEL
        + "vfio-pci 0000:05:00.0: Device is ineligible for IOMMU domain attach due to platform RMRR requirement.  "
        "Contact your platform vendor.",
        KERNEL + "vfio-pci 0000:05:00.0: Firmware has requested this device have a 1:1 IOMMU mapping, rejecting "
        "configuring the device without a 1:1 mapping. Contact your platform vendor.",
    ),
    "acs-missing": (
        "error: internal error: Device 0000:05:00.0 is behind a switch lacking ACS and cannot be assigned",
        "PCI device 0000:05:00.0 is not assignable",
        KERNEL + "Warning: PCIe ACS overrides enabled; This may allow non-IOMMU protected peer-to-peer DMA",
    ),
    "bridge-given": ("error: internal error: Non-endpoint PCI devices cannot be assigned to guests",),
    "iommu-fault": (
        KERNEL + "DMAR: [DMA Read NO_PASID] Request device [41:00.0] fault addr 0xdeadb000 [fault reason 0x06]",
        KERNEL + "DMAR: DRHD: handling fault status reg 2",
        KERNEL + "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0012 address=0x0 flags=0x0020]",
    ),
    "group-not-opened": (
        "vfio 0000:41:00.0: failed to open /dev/vfio/27: Input/output error",
        "vfio: error opening /dev/vfio/27: Interrupted system call",
    ),
    "group-status": ("vfio: error, failed to get group 27 status: Bad address",),
    "vfio-container": (
        "vfio 0000:41:00.0: failed to setup container for group 27: Failed to set iommu for container: Operation not "
        "permitted",
        "vfio: failed to set up container for group 27",
        "vfio: No available IOMMU models",
    ),
    # passthrough
    "not-detached": (
        "error: Requested operation is not valid: Unmanaged PCI device 0000:41:00.4 must be manually detached from "
        "the host",
    ),
    "vfio-module": (
        "modprobe: ERROR: could not insert 'vfio_pci': Invalid argument",
        "error: internal error: Failed to load PCI driver module vfio-pci: administratively prohibited",
        "Failed to load PCI stub module vfio-pci",
        "modprobe: FATAL: Module vfio-pci not found in directory /lib/modules/6.1.0-13-cloud-amd64",
    ),
    "driver-holds-card": (
        "error: Failed to unbind PCI device '0000:41:00.0' from nvidia",
        KERNEL + "NVRM: Attempting to remove device 0000:41:00.0 with non-zero usage count!",
        "modprobe: FATAL: Module nvidia is in use.",
    ),
    "driver-not-bound": (
        "Failed to add driver 'vfio-pci' to driver_override  interface of PCI device '0000:41:00.0': Invalid argument",
        KERNEL + "vfio-pci: probe of 0000:41:00.0 failed with error -22",
    ),
    "no-reset": (
        "internal error: Unable to reset PCI device 0000:41:00.0: no FLR, PM reset or bus reset available",
        "vfio: Cannot reset device mtty-1, no available reset mechanism.",
    ),
    "reset-shared": (
        "internal error: Unable to reset PCI device 0000:41:00.0: internal error: Active 0000:41:00.1 devices on bus "
        "with "
        "0000:41:00.0, not doing bus reset",
        "vfio: Cannot reset device 0000:41:00.0, depends on group 28 which is not owned.",
    ),
    "card-dead": (
        "internal error: Unknown PCI header type '127' for device '0000:01:00.0'",
        "\t!!! Unknown header type 7f",
        "0000:01:00.0: its configuration space reads all ones",
        "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GP104 [10de:1b80] (rev ff) (prog-if ff)",
        KERNEL + "vfio-pci 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible",
    ),
    "reset-hangs": (
        KERNEL + "vfio-pci 0000:01:00.0: not ready 65535ms after bus reset; giving up",
        KERNEL + "pci 0000:01:00.0: not ready 65535ms after FLR; giving up",
    ),
    "card-asleep": (
        KERNEL + "vfio-pci 0000:01:00.0: Unable to change power state from D3hot to D0",
        KERNEL + "vfio-pci 0000:01:00.0: can't change power state from D3hot to D0 (config space inaccessible)",
        "vfio: Unable to power on device, stuck in D3",
        KERNEL + "vfio-pci 0000:01:00.0: Refused to change power state, currently in D3",
    ),
    "bar-unassigned": (
        "kernel: pci 0000:41:00.0: can't claim BAR 1 [mem 0x100000000-0x1ffffffff 64bit pref]: no compatible bridge "
        "window",
        "NVRM: request_mem_region failed for 0M @ 0x0. This can",
        KERNEL + "pci 0000:41:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]",
        KERNEL + "pci 0000:41:00.0: BAR 1: failed to assign [mem size 0x2000000000 64bit pref]",
        KERNEL + "pci 0000:41:00.0: BAR 1 [mem size 0x2000000000 64bit pref]: can't assign; no space",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 "
        "(PCI:0000:06:00.0)",
    ),
    "phys-bits": (
        "qemu-system-x86_64: Address space limit 0xffffffffff < 0x57fffffffff phys-bits too low (40)",
        "vfio_dma_map(0x55d0c8b2b2d0, 0x380000000000, 0x2000000000, 0x7f0a00000000) = -22 (Invalid argument)",
    ),
    "sriov-no-room": (
        KERNEL + "nvidia 0000:41:00.0: not enough MMIO resources for SR-IOV",
        KERNEL + "nvidia 0000:41:00.0: SR-IOV: bus number out of range",
        KERNEL + "pci 0000:41:00.0: BAR 8: no space for [mem size 0x4000000000 64bit pref]",
        KERNEL + "pci 0000:41:00.0: VF BAR 1 [mem size 0x4000000000 64bit pref]: can't assign; no space",
    ),
    "memory-not-locked": (
        "qemu-system-x86_64: VFIO_MAP_DMA failed: Cannot allocate memory",
        "vfio_dma_map(0x55aa, 0x100000000, 0x17f80000000, 0x7f00) = -12 (Cannot allocate memory)",
        "qemu-system-x86_64: VFIO_MAP_DMA: -12",
        KERNEL + "vfio_pin_pages_remote: RLIMIT_MEMLOCK (67108864) exceeded",
        "error: cannot limit locked memory of process 4711 to 103079215104: Operation not permitted",
    ),
    "intx-shared": (
        "vfio: Error: Failed to setup INTx fd: Device or resource busy",
        "vfio 0000:01:00.0: failed to setup INTx unmask fd: Device or resource busy",
        KERNEL + "genirq: Flags mismatch irq 16. 00000000 (vfio-intx(0000:01:00.0)) vs. 00000080 (ehci_hcd:usb1)",
    ),
    "bar-held-by-console": (
        KERNEL + "vfio-pci 0000:01:00.0: BAR 1: can't reserve [mem 0xe0000000-0xefffffff 64bit pref]",
        KERNEL + "vfio-pci 0000:01:00.0: BAR 1 [mem 0xe0000000-0xefffffff 64bit pref]: can't reserve",
    ),
    "rom-unreadable": (
        KERNEL + "vfio-pci 0000:01:00.0: Invalid PCI ROM header signature: expecting 0xaa55, got 0xffff",
        "vfio-pci: Cannot read device rom at 0000:01:00.0\nDevice option ROM contents are probably invalid (check "
        "dmesg).",
    ),
    "device-busy-at-return": (
        "error : virHostdevReattachAllPCIDevices: Failed to re-attach PCI device: Device or resource busy",
        "Not detaching active device 0000:41:00.0",
    ),
    "link-errors": (
        KERNEL + "pcieport 0000:40:01.1: AER: Uncorrected (Fatal) error received: 0000:41:00.0",
        KERNEL + "nvidia 0000:41:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
    ),
    "code-43": (
        "Windows has stopped this device because it has reported problems. (Code 43)",
        "device manager shows Error 43",
    ),
    "migration-with-card": (
        "error: Requested operation is not valid: domain has assigned non-USB host devices",
        "qemu-kvm: 0000:41:00.0: VFIO migration is not supported in kernel",
    ),
    "reset-failed": (
        "kernel: vfio-pci 0000:41:00.0: vfio_bar_restore: reset recovery - restoring BARs",
        "error: Failed to reset PCI device: internal error",
    ),
    # vGPUs
    "vgpu-guest-too-old": (
        "vmiop_log: (0x0): Guest driver 470.82 is older than the host supports",
        "nvidia-vgpu-mgr[4236]: error: vmiop_log: (0x0): Incompatible Guest/Host drivers: Guest VGX version is older "
        "than "
        "the minimum version supported by the Host. Disabling vGPU.",
    ),
    "vgpu-guest-too-new": (
        "vmiop_log: (0x0): guest NVIDIA driver version 580.65 is newer than the vGPU manager 535.129",
        "Incompatible Guest/Host drivers: Guest VGX version is newer than the maximum version supported by the Host. "
        "Disabling vGPU.",
        "Incompatible Guest/Host drivers: Host VGX version is older than the minimum version supported by the Guest.",
    ),
    "vgpu-drivers-differ": (
        "nvidia-vgpu-mgr[99]: error: vmiop_log: (0x0): guest driver version mismatch",
        "vmiop_log: guest and host driver versions do not match",
        "Guest NVIDIA driver 535.104 is not compatible with the vGPU manager 580.65",
    ),
    "vgpu-manager-down": (
        KERNEL + "NVRM: Timeout occurred in event processing by vgpu_mgr daemon",
        KERNEL + "NVRM: kvgpumgrCreateRequestVgpu: GPU is not initialized yet",
    ),
    "vgpu-no-gpu-instance": (KERNEL + "NVRM: Failed to add vgpu create request: 0x38",),
    "vgpu-create-refused": (
        "error: internal error: Unable to start mediated device: write error",
        KERNEL + "NVRM: Failed to add vgpu create request: 0x56",
        "tee: /sys/bus/pci/devices/0000:41:00.4/nvidia/current_vgpu_type: Input/output error",
        "cannot write current_vgpu_type: [Errno 22] Invalid argument",
        KERNEL + "[nvidia-vgpu-vfio] 9b3a1c6e: start failed. status: 0x0 Timeout Occured",
    ),
    "vgpu-other-size": (
        "error: mdev type nvidia-559 has no available instances",
        "Available_instances: 0",
        "mdevctl start: mdev_create: write error: Too many users\nmdev create: Too many users",
    ),
    "vgpu-placement": (
        "cat: /sys/bus/pci/devices/0000:41:00.4/nvidia/placement_id: No such device or address",
        "vmiop_log: (0x0): Invalid placement ID 8",
    ),
    "vgpu-mixed-sizes": (
        "Unable to set vGPU heterogeneous mode for GPU 00000000:41:00.0: In use by another client",
        "Heterogenous mode could not be enabled",
    ),
    "vgpu-params-late": ("bash: /sys/bus/mdev/devices/c2177883/nvidia/vgpu_params: Operation not permitted",),
    "unbind-lock": (
        "Cannot obtain unbindLock for 0000:41:00.0",
        "/proc/driver/nvidia/gpus/0000:41:00.0/unbindLock: 0",
    ),
    "vfs-by-hand": ("tee: /sys/bus/pci/devices/0000:41:00.0/sriov_numvfs: Operation not permitted",),
    "vgpu-dirty": (KERNEL + "[nvidia-vgpu-vfio] c2177883-f1bb-47f0-914d-32a22e3a8804: VF FLR failed during close -25",),
    "vgpu-vendor-framework": (
        "ls: cannot access '/sys/class/mdev_bus/': No such file or directory",
        "/sys/class/mdev_bus is empty",
        "stat: cannot stat '/sys/bus/pci/devices/0000:26:00.4/mdev_supported_types': No such file or directory",
    ),
    "mdev-missing": (
        "error: device not found: mediated device 'c2177883-f1bb-47f0-914d-32a22e3a8804' not found",
        "vfio /sys/bus/mdev/devices/c2177883-f1bb: no such host device: No such file or directory",
    ),
    "mdev-in-use": (
        "Requested operation is not valid: mediated device c2177883-f1bb-47f0 is in use by driver QEMU, domain vm7",
        "bash: echo: /sys/bus/mdev/devices/c2177883/remove: write error: Device or resource busy",
    ),
    "mdev-api": (
        "invalid device API 'vfio-ccw' for device c2177883: device only supports 'vfio-pci'",
        "device API 'vfio-ap' not supported yet",
    ),
    "mdev-exists": ("bash: /sys/class/mdev_bus/0000:06:00.0/mdev_supported_types/nvidia-18/create: File exists",),
    "vgpu-not-supported": ("GPU 0000:41:00.0 does not support vGPU", "vGPU is not supported on this GPU"),
    "licence-restricted": (
        "        License Status                    : Unlicensed (Restricted)",
        "nvidia-gridd[812]: Valid GRID license not found. GPU features and performance will be restricted.",
        "notice: vmiop_log: (0x0): vGPU license state: Unlicensed",
    ),
    "licence-grace": ("notice: vmiop_log: (0x0): vGPU license state:  Unlicensed (Unrestricted)",),
    "licence-not-got": (
        "nvidia-gridd[812]: Unable to connect to license server cls.example",
        "nvidia-gridd[812]: Failed to acquire license from cls.example (Info: NVIDIA RTX Virtual Workstation)",
        "client configuration token not found in /etc/nvidia/ClientConfigToken",
    ),
    "gsp-feature": (
        "Invalid feature requested for the underlying GSP firmware configuration. Disable GSP firmware to use this "
        "feature.",
    ),
    "vgpu-plugin-failed": ("error: vmiop_env_log: (0x0): Failed to attach device: 0x1f",),
    # driver, NVML, MIG, fabric
    "nvidia-adapter": (
        "kernel: nvidia: probe of 0000:01:00.0 failed with error -1",
        KERNEL + "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0xffff:1457)",
        SECONDS + "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
    ),
    "nouveau-first": (
        KERNEL + "NVRM: GPU 0000:01:00.0 is already bound to nouveau.",
        KERNEL + "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
    ),
    "nvidia-wrong-driver": (
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:13f2)\nNVRM: installed in this system is not supported by "
        "the\n"
        "NVRM: NVIDIA 580.65.06 driver release.",
        KERNEL + "NVRM: None of the NVIDIA devices were initialized.",
        "NVRM: installed in this system is not supported by open nvidia.ko because it does not include the required "
        "GSP",
    ),
    "module-unsigned": (
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
        "insmod: ERROR: could not insert module nvidia.ko: Required key not available",
    ),
    "module-not-built": (
        "Error! Bad return status for module build on kernel: 6.8.0-31-generic (x86_64)",
        "Error! Your kernel headers for kernel 6.1.0-13-amd64 cannot be found.",
    ),
    "driver-half-updated": (
        "Failed to initialize NVML: Driver/library version mismatch",
        "NVRM: API mismatch: the client has the version 570.148.08, but",
    ),
    "nvml-no-library": (
        "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        "libnvidia-ml.so.1: cannot open shared object file: No such file or directory",
    ),
    "nvml-no-driver": (
        "pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ),
    "no-card-in-nvml": ("No devices were found", "bash: nvidia-smi: command not found"),
    "mig-no-room": (
        "Unable to create a GPU instance on GPU  0 using profile 9: Insufficient Resources\nFailed to create GPU "
        "instances",
        "pynvml.NVMLError_InsufficientResources: Insufficient Resources",
    ),
    "mig-pending": (
        "Warning: MIG mode is in pending enable state for GPU 00000000:07:00.0:In use by another client",
        "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU 00000000:07:00.0",
        "Resetting GPU 00000000:07:00.0 is not supported.",
        "activation status NVML_ERROR_RESET_REQUIRED",
        "NVMLError_ResetRequired",
        "RESET_REQUIRED",
    ),
    "card-has-clients": ("00000000:07:00.0: In use by another client", "NVML_ERROR_IN_USE", "pynvml.NVMLError_InUse"),
    "mig-instances-gone": (
        "No GPU instances found: Not Found",
        "No MIG devices found.",
        "pynvml.NVMLError_NotFound: Not Found",
    ),
    "nvml-permission": ("NVMLError_NoPermission: Insufficient Permissions",),
    "nvml-not-supported": ("pynvml.NVMLError_NotSupported: Not Supported",),
    "nvml-bad-argument": ("NVMLError_InvalidArgument: Invalid Argument", "NVML_ERROR_INSUFFICIENT_SIZE"),
    "nvml-trouble": ("NVMLError_Timeout: Timeout", "NVML_ERROR_UNKNOWN"),
    "fabric-not-ready": (
        "RuntimeError: CUDA error: system not yet initialized (error 802)",
        "CUDA failure: cudaErrorSystemNotReady",
        "cuInit returned error 802",
    ),
    "fabric-partition-overlaps": (
        "fmpm: Failed to activate partition 3: resource is in use",
        "FM_ST_IN_USE",
        "partition 7 is already active",
    ),
    "fabric-manager-down": (
        "NVIDIA Fabric Manager is not running",
        "systemd[1]: Failed to start NVIDIA fabric manager",
    ),
    # Xids
    "card-off-the-bus": (
        KERNEL + "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        SECONDS + "NVRM: Xid (0000:41:00): 79, GPU has fallen off the bus.",
        "NVML: GPU is lost",
        "nvmlReturn 15 GPU_IS_LOST",
    ),
    "card-memory-errors": (
        KERNEL + "NVRM: Xid (PCI:0000:41:00): 48, pid=1234, name=python3, An uncorrectable double bit error (DBE)",
        KERNEL + "NVRM: Xid (PCI:0000:41:00): 94, pid=1234, Contained: CE User Channel (0x9)",
    ),
    "nvlink-errors": (KERNEL + "NVRM: Xid (PCI:0000:41:00): 74, pid=0, NVLink: fatal error detected on link 2",),
    "gsp-hangs": (
        KERNEL
        + "NVRM: Xid (PCI:0000:41:00): 119, pid=99, Timeout after 45s of waiting for RPC response from GPU0 GSP!",
    ),
    "program-fault": (
        KERNEL + "NVRM: Xid (PCI:0000:41:00): 43, pid=2107, name=vgpu, Ch 00000008",
        KERNEL + "NVRM: Xid (PCI:0000:41:00): 31, pid=2107, name=python, Ch 00000008, MMU Fault",
    ),
    "xid-other": (KERNEL + "NVRM: Xid (PCI:0000:41:00): 109, pid=7, CTX SWITCH TIMEOUT",),
    # KVM
    "kvm-missing": (
        "Could not access KVM kernel module: No such file or directory",
        "error: invalid argument: could not find capabilities for arch=x86_64 domaintype=kvm",
        "Emulator '/usr/bin/qemu-system-x86_64' does not support virt type 'kvm'",
    ),
    "kvm-firmware": (
        "modprobe: ERROR: could not insert 'kvm_intel': Operation not supported",
        KERNEL + "kvm: disabled by bios",
        SECONDS + "kvm_intel: VMX (outside TXT) disabled by BIOS",
    ),
    "kvm-denied": (
        "Could not access KVM kernel module: Permission denied\nqemu-system-x86_64: failed to initialize kvm: "
        "Permission denied",
        "Could not open '/dev/kvm': Permission denied",
    ),
    "kvm-busy": ("qemu-system-x86_64: failed to initialize KVM: Device or resource busy",),
    "kvm-unusable": (
        "qemu-system-x86_64: error: failed to set MSR 0x10a to 0x0",
        "kvm_buf_set_msrs: Assertion `ret == cpu->kvm_msr_buf->nmsrs' failed.",
        "KVM: entry failed, hardware error 0x80000021",
        "a guest kernel made no progress under KVM within 12 s: it printed nothing",
    ),
    "cpu-model": (
        "error: unsupported configuration: CPU mode 'host-passthrough' for x86_64 qemu domain on x86_64 host is not "
        "supported by hypervisor",
        "the CPU is incompatible with host CPU: Host CPU does not provide required features: avx512f",
    ),
    # libvirt and QEMU
    "state-lock": (
        "error: Timed out during operation: cannot acquire state change lock (held by "
        "monitor=remoteDispatchDomainSnapshotCreateXML)",
        "cannot acquire state change lock (held by remoteDispatchDomainSnapshotCreateXML)",
    ),
    "undefine-leftovers": (
        "error: Requested operation is not valid: cannot undefine domain with nvram",
        "Refusing to undefine while domain managed save image exists",
        "cannot delete inactive domain with 3 snapshots",
        "cannot undefine domain with 2 checkpoints",
    ),
    "firmware-missing": (
        "error: operation failed: Unable to find any firmware to satisfy 'efi'",
        "qemu-system-x86_64: Could not open '/usr/share/OVMF/OVMF_CODE.fd': No such file or directory",
        "unable to find any master var store for loader: /usr/share/OVMF/OVMF_CODE.fd",
    ),
    "qemu-too-old": (
        "qemu-system-x86_64: unsupported machine type 'pc-q35-9.2'",
        "'bochs-display' is not a valid device model name",
    ),
    "qemu-missing": (
        "error: Cannot check QEMU binary /usr/bin/qemu-system-x86_64: No such file or directory",
        "error: internal error: Cannot find suitable emulator for x86_64",
    ),
    "hugepages-short": (
        "internal error: Unable to find any usable hugetlbfs mount for 1048576 KiB",
        "qemu-system-x86_64: unable to map backing store for guest RAM: Cannot allocate memory",
        "os_mem_prealloc: Insufficient free host memory pages available to allocate guest RAM",
    ),
    "memory-short": (
        "qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory",
        KERNEL + "Out of memory: Killed process 4711 (qemu-system-x86) total-vm:103079215kB",
    ),
    "apparmor": (
        "libvirt:  error : unable to set AppArmor profile 'libvirt-5e1b' for '/usr/bin/kvm': No such file or directory",
        KERNEL + 'audit: type=1400 apparmor="DENIED" operation="open" profile="libvirt-5e1b" name="/srv/x.qcow2"',
    ),
    "selinux": ('type=AVC msg=audit(1): avc:  denied  { read } for  pid=1 comm="qemu-kvm" name="x.qcow2"',),
    "files-denied": (
        "libvirt:  error : cannot execute binary /usr/bin/kvm: Permission denied",
        "error: Cannot access storage file '/root/vm.qcow2' (as uid:64055, gid:109): Permission denied",
        "qemu-system-x86_64: -kernel /root/vmlinuz: could not open '/root/vmlinuz': Permission denied",
    ),
    "libvirt-unreachable": (
        "error: Failed to connect socket to '/var/run/libvirt/libvirt-sock': No such file or directory",
        "End of file while reading data: virt-ssh-helper: command not found: Input/output error",
    ),
    "libvirt-refuses": (
        "error: authentication unavailable: no polkit agent available to authenticate action 'org.libvirt.unix.manage'",
        "error: Failed to connect socket to '/var/run/libvirt/libvirt-sock': Permission denied",
    ),
    "host-key-changed": ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "Host key verification failed."),
    "domain-gone": ("error: Domain not found: no domain with matching uuid '5e1b2c3d'",),
    "domain-exists": ("error: operation failed: domain 'vm7' already exists with uuid 5e1b2c3d",),
    "agent-silent": ("error: Guest agent is not responding: QEMU guest agent is not connected",),
    "call-too-long": ("error: Timed out during operation: monitor", "internal error: monitor socket did not show up"),
    "qemu-ended": (
        LIBVIRT + "internal error: qemu unexpectedly closed the monitor",
        "internal error: process exited while connecting to monitor",
    ),
    "sysfs-refused": ("bash: echo: write error: Invalid argument",),
    "device-busy": ("bash: echo: Device or resource busy", "error: device in use"),
    "no-memory": ("fork: Cannot allocate memory",),
    # disks
    "disk-locked": (
        "qemu-system-x86_64: Failed to lock byte 100",
        'Failed to get "write" lock\nIs another process using the image [/var/lib/libvirt/images/x.qcow2]?',
        "qemu-img: Could not open 'x.qcow2': Failed to get shared \"write\" lock",
        '{"desc": "Failed to get \\"consistent read\\" lock"}',
    ),
    "disk-full": ("qemu-img: error while writing at byte 0: No space left on device",),
    "image-backing-missing": (
        "qemu-img: Could not open 'top.qcow2': Could not open backing file: Could not open 'base.qcow2'",
    ),
    "image-points-outside": (
        "qemu-img: Could not open 'x.qcow2': 'data-file' is required for this image",
        "The image has a backing file",
    ),
    "image-corrupt": (
        "qcow2: Image is corrupt; cannot be opened read/write",
        "qcow2: Marking image as corrupt: Preventing invalid write on metadata (overlaps with active L1 table)",
    ),
    "image-feature": (
        "qemu-img: Could not open 'x.qcow2': Unsupported qcow2 feature(s): Unknown incompatible feature: 8",
        "'drive0' uses a qcow2 feature which is not supported by this qemu version",
    ),
    "image-format": ("qemu-img: Could not open 'x.qcow2': Image is not in qcow2 format",),
    "image-encrypted": ("Parameter 'encrypt.key-secret' is required for cipher",),
    "disk-missing": (
        "error: Cannot access storage file '/var/lib/libvirt/images/x.qcow2': No such file or directory",
        "error: Storage volume not found: no storage vol with matching path",
    ),
    "pool-inactive": ("error: Requested operation is not valid: storage pool 'default' is not active",),
    "internal-snapshot": ("internal snapshots of a VM with pflash based firmware are not supported",),
    # networks
    "network-off": (
        "error: Requested operation is not valid: network 'default' is not active",
        "error: Network not found: no network with matching name 'vmgpu'",
    ),
    "bridge-missing": ("error: Cannot get interface MTU on 'br0': No such device",),
    "network-range-taken": ("internal error: Network is already in use by interface eth0",),
    "dnsmasq-port": ("dnsmasq: failed to create listening socket for 192.168.122.1: Address already in use",),
    "firewall": (
        "error: internal error: Failed to apply firewall rules /usr/sbin/iptables -w --table filter",
        "iptables: No chain/target/match by that name.",
    ),
    "passt": (
        "error: unsupported configuration: the passt network backend is not supported by this QEMU",
        "internal error: Child process (passt --one-off) unexpected exit status 1",
    ),
    "address-twice": (
        "dnsmasq-dhcp[900]: not using configured address 192.168.150.9 because it is leased to 52:54:00:aa:bb:cc",
        SECONDS + "IPv4: duplicate address 192.168.150.9 detected",
    ),
    "no-free-address": ("dnsmasq-dhcp[900]: DHCP packet: no address range available for DHCP request via virbr1",),
    "no-lease": (
        "dhclient[512]: No DHCPOFFERS received.",
        "systemd-networkd-wait-online[333]: Timeout occurred while waiting for network connectivity.",
    ),
    # inside guests
    "seed-not-seen": (
        "cloud-init[400]: Used fallback datasource",
        "Cloud-init v. 22.4.2 finished. Datasource DataSourceNone.  Up 93.25 seconds",
    ),
    "cloud-init-config": (
        "util.py[WARNING]: Failed loading yaml blob. Invalid format at line 2 column 1",
        "Unhandled non-multipart (text/x-not-multipart) userdata: 'b'hostname: x'...'",
    ),
    "cloud-init-failed": (
        "status: error",
        '{"status": "error", "extended_status": "error - running"}',
        "cloud-init[500]: 2026-12-01 - cc_scripts_user.py[WARNING]: Failed to run module scripts_user",
    ),
    "cloud-init-degraded": ("status: degraded done", '"extended_status": "degraded done"'),
    "cloud-init-old": ("cloud-init: error: unrecognized arguments: --format json",),
    "clone-not-new": ("both clones have the same instance-id",),
    "user-name": (
        "useradd: invalid user name 'MaxMustermann': use --badname to ignore",
        "useradd: invalid username 'd.o'neil'",
    ),
    "ssh-key-refused": ("anna@10.0.0.7: Permission denied (publickey).", "Permission denied (publickey,password)."),
    "ssh-key-unusable": ('Load key "id": invalid format', "key.pub is not a public key file."),
    "ssh-no-answer": ("ssh: connect to host 10.0.0.7 port 22: Connection refused",),
    "guest-no-boot": (
        'BdsDxe: failed to load Boot0001 "UEFI Misc Device"',
        SECONDS + "Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)",
        "ALERT!  LABEL=root does not exist.  Dropping to a shell!",
    ),
}

ORDINARY = """\
Dec 01 09:00:00 gpu1 kernel: Linux version 6.1.0-28-amd64 (debian-kernel@lists.debian.org)
[    0.123456] DMAR: IOMMU enabled
[    0.223456] DMAR-IR: Enabled IRQ remapping in x2apic mode
[    0.323456] AMD-Vi: Interrupt remapping enabled
[    0.423456] pci 0000:41:00.0: Adding to iommu group 27
[    0.523456] pci 0000:00:1c.0: BAR 13: no space for [io  size 0x1000]
[    0.583456] pci 0000:00:1c.0: BAR 15: no space for [mem size 0x00200000 64bit pref]
[    0.593456] pci 0000:41:00.0: BAR 6: no space for [mem size 0x00080000 pref]
[    0.603456] pci 0000:00:1c.0: bridge window [mem size 0x00200000 64bit pref]: can't assign; no space
[    0.623456] pci 0000:41:00.0: BAR 1: assigned [mem 0x380000000000-0x381fffffffff 64bit pref]
[    0.723456] pci 0000:41:00.0: not ready 1023ms after FLR; waiting
[    1.023456] nvidia: module verification failed: signature and/or required key missing - tainting kernel
[    1.123456] nvidia: loading out-of-tree module taints kernel.
[    1.223456] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.05  Mon May  5 11:36:21 UTC 2025
[    1.323456] NVRM: GPU at 0000:41:00.0 has software scheduler ENABLED with policy BEST_EFFORT.
[    1.423456] nvidia-nvlink: Nvlink Core is being initialized, major device number 236
[    1.523456] vfio-pci 0000:41:00.0: vgaarb: VGA decodes changed: olddecodes=io+mem,decodes=none:owns=none
[    1.623456] vfio-pci 0000:41:00.0: enabling device (0000 -> 0003)
[    1.723456] vfio-pci 0000:41:00.0: resetting
[    1.823456] vfio-pci 0000:41:00.0: reset done
[    1.923456] VFIO - User Level meta-driver version: 0.3
[    2.023456] kvm_intel: Using Hyper-V Enlightened VMCS
nvidia-vgpu-mgr[2866]: notice: vmiop_env_log: nvidia-vgpu-mgr daemon started
mgr[2866]: notice: vmiop_env_log: Unable to get VM name from QEMU commandline, using VM's UUID as VM name. 0x57
nvidia-vgpu-mgr[2866]: notice: vmiop_log: ######## Guest NVIDIA Driver Information: ########
nvidia-vgpu-mgr[2866]: notice: vmiop_log: Driver Version: 550.90.07
nvidia-vgpu-mgr[2866]: notice: vmiop_log: display_init inst: 0 successful
nvidia-vgpu-mgr[2866]: notice: vmiop_log: (0x0): vGPU license state: Licensed
        License Status                    : Licensed (Expiry: 2026-3-1 10:0:0 GMT)
    vGPU Heterogeneous Mode               : Disabled
    MIG Mode                              : Enabled
libvirtd[900]: libvirt version: 9.0.0, package: 9.0.0-4+deb12u2
dnsmasq-dhcp[901]: DHCPACK(virbr1) 192.168.150.9 52:54:00:aa:bb:cc vm7
dnsmasq-dhcp[901]: DHCPOFFER(virbr1) 192.168.150.9 52:54:00:aa:bb:cc
Cloud-init v. 24.4.1 finished at Tue, 01 Dec 2026. Datasource DataSourceNoCloud [seed=/dev/vdb].  Up 12.25 seconds
{"status": "done", "extended_status": "done", "errors": [], "recoverable_errors": {}}
sshd[700]: Accepted publickey for anna from 10.0.0.1 port 51234 ssh2: ED25519 SHA256:abc
systemd[1]: Started nvidia-vgpu-mgr.service - NVIDIA vGPU Manager Daemon.
systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric manager service.
qemu-system-x86_64: terminating on signal 15 from pid 900 (/usr/sbin/libvirtd)
char device redirected to /dev/pts/3 (label charserial0)
"""

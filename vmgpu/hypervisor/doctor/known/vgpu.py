"""vGPUs on the host and their licence in the guest: sysfs, mdev, the vGPU manager and its plugin."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, SYMPTOM, Known

_WRITE = r"[^\n]{0,120}(invalid argument|input/output error|i/o error)"
_DRIVERS = (
    "NVIDIA supports a manager with guest drivers of the same branch, or of the one before it (and of the long-term "
    "branch before it). Host version: cat /sys/module/nvidia/version; guest version: nvidia-smi in the guest. "
)

KNOWN = (
    Known(
        "vgpu-guest-too-old",
        "The guest's NVIDIA driver is too old for the host's vGPU manager",
        "The plugin switched the vGPU off: the host no longer speaks the guest's protocol.",
        _DRIVERS + "Install the guest driver that came with the host's vGPU package, or capture an image that has it.",
        (
            r"guest vgx version is older",
            r"guest(?!/host)[^\n]{0,40}driver[^\n]{0,60}(too old|older than)",
        ),
        CULPRIT,
    ),
    Known(
        "vgpu-guest-too-new",
        "The guest runs a later NVIDIA driver than the host's vGPU manager can serve",
        "The plugin switched the vGPU off. Usual after an automatic update inside the guest.",
        _DRIVERS + "Update the host's vGPU manager, or go back in the guest and hold the package there.",
        (
            r"guest vgx version is newer",
            r"host vgx version is older",
            r"guest(?!/host)[^\n]{0,40}driver[^\n]{0,60}(too new|(newer|later) than)",
        ),
        CULPRIT,
    ),
    Known(
        "vgpu-drivers-differ",
        "Guest driver and host vGPU manager do not fit together",
        "They come from branches that NVIDIA does not support together, so the guest's driver does not load.",
        _DRIVERS + "Bring both to one vGPU release.",
        (
            r"incompatible guest/host drivers",
            r"vmiop\w*log:[^\n]{0,160}(version mismatch|versions? (mismatch|do(es)? not match|differ)|incompatible)",
            r"guest[^\n]{0,80}driver[^\n]{0,80}(does not match|do not match|mismatch|incompatible|not compatible)",
            r"vgpu[^\n]{0,60}version[^\n]{0,20}(mismatch|incompatible|not compatible|do(es)? not match)",
        ),
    ),
    Known(
        "vgpu-manager-down",
        "NVIDIA's vGPU manager on the host does not answer",
        "The service that makes vGPUs is not running or not ready yet.",
        "systemctl restart nvidia-vgpud nvidia-vgpu-mgr, then journalctl -u nvidia-vgpu-mgr. Wait for it after boot; "
        "check that the vGPU (not the data-centre) host driver is installed.",
        (
            r"timeout occurred in event processing by vgpu_mgr",
            r"kvgpumgrcreaterequestvgpu",
            r"vgpu[^\n]{0,60}gpu is not initialized yet",
        ),
        CULPRIT,
    ),
    Known(
        "vgpu-no-gpu-instance",
        "No free GPU instance of the right profile for this MIG-backed vGPU",
        "MIG-backed types need their instance first, and switching virtual functions on wipes instances.",
        "In this order: nvidia-smi -i N -mig 1; sriov-manage -e ADDRESS; nvidia-smi mig -i N -cgi PROFILE -C; then the "
        "type. Look at what is there: nvidia-smi mig -lgi.",
        (r"failed to add vgpu create request: 0x38",),
        CULPRIT,
    ),
    Known(
        "vgpu-create-refused",
        "The driver refused to make the vGPU",
        "The type cannot be made now: the card is full, cut in another size, or its MIG instances are missing.",
        "Read creatable_vgpu_types of this virtual function and the line in journalctl -k; in equal-size mode only "
        "types of the size in use remain until the last vGPU is gone.",
        (
            r"failed to add vgpu create request",
            rf"current_vgpu_type{_WRITE}",
            r"current_vgpu_type[^\n]{0,120}(no space left|device or resource busy|operation not permitted)",
            r"nvidia-vgpu-vfio[^\n]{0,100}(start failed|creation failed)",
            r"vgpu creation failed",
            r"unable to (start|create|define) mediated device",
        ),
    ),
    Known(
        "vgpu-other-size",
        "The card is already cut into vGPUs of another size",
        "Without mixed sizes the first vGPU fixes the size for the whole card; other types show none available until "
        "the last one has gone. Series of the same size may stand side by side.",
        "Ask for a type of the size in use, wait, use another card, or (Ampere and later, while no vGPU exists) switch "
        "mixed sizes on: nvidia-smi vgpu -i N -shm 1.",
        (
            r"no available instances",
            r"available_instances[:= ]{0,20}0\b",
            r"mdev[^\n]{0,120}(too many users|no space left on device)",
            r"vmiop\w*log:[^\n]{0,80}(insufficient|not enough|out of) (free )?(framebuffer|frame buffer|fb|memory)",
        ),
    ),
    Known(
        "vgpu-placement",
        "The vGPU's place on the card is not legal or not readable",
        "With mixed sizes each type may start at a few places only; a wrong one is accepted when written and fails "
        "when "
        "the guest starts. Without a vGPU the place cannot be read at all.",
        "Write a legal place: nvmlDeviceGetVgpuTypeCreatablePlacements lists them. Make the vGPU before reading it.",
        (
            r"(placement_id|gpu_instance_id)[^\n]{0,80}(no such device or address|enxio)",
            r"(invalid|illegal|unsupported|bad|wrong) (vgpu )?placement.?id",
            r"placement.?id[^\n]{0,60}(invalid|not (valid|supported|legal))",
        ),
        CULPRIT,
    ),
    Known(
        "vgpu-mixed-sizes",
        "Mixed vGPU sizes could not be switched on",
        "The mode changes only while the card has no vGPU, after its virtual functions are on, and is lost with them, "
        "with a driver reload and at reboot.",
        "Stop the card's vGPUs, then: sriov-manage -e ADDRESS; nvidia-smi vgpu -i N -shm 1; then make vGPUs.",
        (
            r"(failed|unable|cannot|could not)[^\n]{0,60}heterogen\w+",
            r"heterogen\w+[^\n]{0,60}(not supported|failed|in use|could not)",
        ),
        CULPRIT,
    ),
    Known(
        "vgpu-params-late",
        "Plugin parameters cannot be changed now",
        "They are taken between making the vGPU and starting its guest.",
        "Shut the guest down, write vgpu_params, start it again. A single blank clears them.",
        (r"vgpu_params[^\n]{0,120}(not permitted|busy|denied|invalid argument|i(nput)?/o(utput)? error)",),
        CULPRIT,
    ),
    Known(
        "unbind-lock",
        "Something still uses the card, so its virtual functions cannot be switched",
        "The driver gives its lock only when nobody has the card open.",
        "Wait a second and repeat, up to five times. Then: fuser -v /dev/nvidia*; stop nvidia-persistenced, DCGM and "
        "exporters; read /proc/driver/nvidia/gpus/ADDRESS/unbindLock, it must say 1.",
        (
            r"cannot obtain unbindlock",
            r"unbindlock[^\n]{0,40}(failed|in use|busy|not obtained|: 0\b)",
        ),
        CULPRIT,
    ),
    Known(
        "vfs-by-hand",
        "The driver does not take a count of virtual functions by hand",
        "NVIDIA's own tool is the only supported way; AMD and Intel drivers take the count, but only when it was 0.",
        "NVIDIA: /usr/lib/nvidia/sriov-manage -e ADDRESS. AMD, Intel: write 0 first, then the count, and not more than "
        "sriov_totalvfs says.",
        (r"sriov_numvfs[^\n]{0,120}(error|denied|not permitted|invalid|busy|no such file|not implemented)",),
        CULPRIT,
    ),
    Known(
        "vgpu-dirty",
        "The vGPU is stuck after its guest crashed",
        "Its function could not be reset; it stays listed but can no longer be opened.",
        "Remove it and make it anew: echo 1 > /sys/bus/mdev/devices/UUID/remove (or write 0 to current_vgpu_type). If "
        "that fails: sriov-manage -d, then -e.",
        (r"vf flr failed during close", r"nvidia-vgpu-vfio[^\n]{0,80}flr failed"),
        CULPRIT,
    ),
    Known(
        "vgpu-vendor-framework",
        "This driver offers vGPUs without mediated devices",
        "On newer kernels the type is written to the virtual function itself; /sys/class/mdev_bus is empty there by "
        "design.",
        "Switch virtual functions on (sriov-manage -e ALL), read nvidia/creatable_vgpu_types of each, write the id to "
        "nvidia/current_vgpu_type and give the function with managed='no'. vgpu-capable driver and nvidia-vgpu-mgr "
        "must be running.",
        (
            r"mdev_bus[^\n]{0,60}(no such file|is empty|empty)",
            r"mdev_supported_types[^\n]{0,80}no such file",
        ),
    ),
    Known(
        "mdev-missing",
        "The mediated device does not exist now",
        "libvirt does not make it at start, and it does not survive a reboot unless it was defined with autostart.",
        "Make it again, or define it: virsh nodedev-define FILE && virsh nodedev-autostart NAME. Look: mdevctl list; "
        "mdevctl list -d. Virtual functions must be on before.",
        (
            r"mediated device '\S+ not found",
            r"/sys/bus/mdev/devices/[^\n]{0,80}no such file",
            r"mdev[^\n]{0,80}: no such device\b",
        ),
        CULPRIT,
    ),
    Known(
        "mdev-in-use",
        "The mediated device belongs to a running guest",
        "It can neither be given a second time nor removed before that guest has ended.",
        "Stop the guest that the message names (virsh list), or make another vGPU.",
        (
            r"mediated device '\S+ is in use by",
            r"/remove[^\n]{0,60}device or resource busy",
            r"mdev[^\n]{0,100}device or resource busy",
        ),
        CULPRIT,
    ),
    Known(
        "mdev-api",
        "The domain names the wrong device API for its mediated device",
        "<hostdev model=…> must be what the type's device_api says; for cards it is vfio-pci.",
        "Write model='vfio-pci' in the domain's <hostdev type='mdev'>.",
        (r"invalid device api", r"device api '\S+ (is )?not supported yet"),
        CULPRIT,
    ),
    Known(
        "mdev-exists",
        "A mediated device with this UUID is there already",
        "UUIDs of mediated devices are unique on a host.",
        "Adopt it, or remove it first: mdevctl list; mdevctl stop -u UUID.",
        (r"(mdev|/create)[^\n]{0,120}file exists",),
    ),
    Known(
        "vgpu-not-supported",
        "This card or this driver has no vGPUs",
        "Wrong host driver (the data-centre one), a card without vGPU support, or a card in compute or display mode: "
        "M60 and M6 need graphics mode and ECC off, some RTX cards need their displays off.",
        "Install NVIDIA's vGPU host driver. Change the mode with gpumodeswitch (M60) or DisplayModeSelector, ECC with "
        "nvidia-smi -e 0; reboot.",
        (r"(does not|do not|doesn't) support vgpu", r"vgpu[^\n]{0,30} (is )?not supported"),
    ),
    Known(
        "licence-restricted",
        "The vGPU has no licence and is throttled",
        "Its time of grace is over: compute types after about 20 minutes, graphics types fall to a few frames a "
        "second. "
        "Full speed returns at once with a licence.",
        "In the guest: a client_configuration_token_*.tok in /etc/nvidia/ClientConfigToken, FeatureType=1 in "
        "/etc/nvidia/gridd.conf, then systemctl restart nvidia-gridd. Ports 443 and 80 to the licence server.",
        (
            r"unlicensed \(restricted\)",
            r"valid (grid|vgpu|nvidia) license not found",
            r"license (state|status)\s*: (expired|unlicensed(?! \())",
        ),
        CULPRIT,
    ),
    Known(
        "licence-grace",
        "The vGPU has no licence yet, and still runs at full speed",
        "Every guest starts so; it is throttled after about 20 minutes if no licence arrives.",
        "Wait a minute. Then look in the guest: systemctl status nvidia-gridd, and the token in "
        "/etc/nvidia/ClientConfigToken; ports 443 and 80 to the licence server.",
        (r"unlicensed \(unrestricted\)",),
        CULPRIT,
    ),
    Known(
        "licence-not-got",
        "The guest could not take a vGPU licence",
        "The token is missing or old, the licence server does not answer, or its pool is empty.",
        "Look: journalctl -u nvidia-gridd in the guest. Renew the token, open ports 443 and 80, check the guest's "
        "clock, "
        "and count the licences on the server.",
        (
            r"nvidia-gridd[^\n]{0,120}(failed|error|invalid|expired|denied)",
            r"failed to acquire[^\n]{0,40}licen[cs]e",
            r"client.?configuration.?token[^\n]{0,100}(not found|missing|invalid|expired|no such)",
            r"(failed|unable) to (connect|communicate)[^\n]{0,60}licen[cs]e server",
        ),
    ),
    Known(
        "gsp-feature",
        "The licensed feature does not work with the card's GSP firmware",
        "vWS and vApps on a passed-through card need the driver without GSP firmware.",
        "In the guest: 'options nvidia NVreg_EnableGpuFirmware=0' in /etc/modprobe.d/nvidia.conf, rebuild the "
        "initramfs, reboot the guest.",
        (r"underlying gsp firmware configuration", r"disable gsp firmware to use"),
        CULPRIT,
    ),
    Known(
        "vgpu-plugin-failed",
        "NVIDIA's vGPU plugin gave up on this guest",
        "The first error line of the plugin names the reason.",
        "journalctl -u nvidia-vgpu-mgr around the guest's start; compare guest and host driver, placement, MIG "
        "instances.",
        (
            r"error: vmiop\w*log:[^\n]{0,80}(failed|unable|initiali[sz]ation)",
            r"vmiop[^\n]{0,20}unable to reserve vgpu",
        ),
        SYMPTOM,
    ),
)

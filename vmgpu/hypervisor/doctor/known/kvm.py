"""KVM and the processor that guests see."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, Known

KNOWN = (
    Known(
        "kvm-missing",
        "The host has no KVM",
        "Virtualization is off in the firmware, the kvm module is not loaded, or the host is itself a guest without "
        "nested virtualization.",
        "Switch on VT-x (Intel) or SVM (AMD) in the firmware; modprobe kvm_intel or kvm_amd; in a guest let its host "
        "allow nesting. Without KVM: vmgpu runs guests by emulation (accel tcg), slowly.",
        (
            r"could not access kvm kernel module: no such (file|device)",
            r"failed to initialize kvm: no such (file|device)",
            r"/dev/kvm'?[^\n]{0,40}(no such (file|device)|is missing|does not exist)",
            r"kvm is not (available|supported)",
            r"does not support virt type 'kvm",
            r"could not find capabilities for[^\n]{0,60}domaintype=kvm",
            r"no (vmx|svm|hardware virtuali[sz]ation)",
        ),
        CULPRIT,
    ),
    Known(
        "kvm-firmware",
        "The firmware has switched processor virtualization off",
        "The kernel module refuses to load until it is on.",
        "Firmware setup: Intel Virtualization Technology (VT-x) or SVM Mode; switch on, save, power off and on.",
        (
            r"kvm: [^\n]{0,60}disabled by (the )?(bios|firmware)",
            r"(vmx|svm)[^\n]{0,40}disabled by (the )?(bios|firmware)",
            r"could not insert 'kvm_(intel|amd)[^\n]{0,10} operation not supported",
        ),
        CULPRIT,
    ),
    Known(
        "kvm-denied",
        "The account that runs QEMU may not use /dev/kvm",
        "The device belongs to group kvm; a container may not have it at all.",
        "ls -l /dev/kvm must show group kvm and mode crw-rw----: udevadm trigger --name-match=kvm. Add libvirt's "
        "user to "
        "the group: usermod -aG kvm libvirt-qemu (RHEL: qemu); restart libvirtd.",
        (
            r"could not access kvm kernel module: permission denied",
            r"failed to initialize kvm: permission denied",
            r"/dev/kvm'?[^\n]{0,40}permission denied",
        ),
        CULPRIT,
    ),
    Known(
        "kvm-busy",
        "Another hypervisor has the processor's virtualization",
        "VirtualBox, VMware or another program of the kind is running on this host.",
        "Stop it and unload its modules (lsmod | grep -E 'vbox|vmmon'), then modprobe -r kvm_intel && modprobe "
        "kvm_intel.",
        (
            r"failed to initialize kvm: device or resource busy",
            r"kvm_create_vm[^\n]{0,40}(busy|16)",
            r"vmx[^\n]{0,40}already in use",
        ),
        CULPRIT,
    ),
    Known(
        "kvm-unusable",
        "KVM is there, but does not run ordinary guests here",
        "Typical of a host that is itself a guest: the device opens, and guests stand still or QEMU aborts on a "
        "register "
        "that the outer hypervisor forbids.",
        "Run guests by emulation: set the host's accel to tcg (vmgpu does so by itself when its probe fails), with "
        "<cpu mode='maximum'/>. For speed use bare metal, or better nesting on the outer host.",
        (
            r"failed to set msr",
            r"kvm_(buf_)?set_msrs[^\n]{0,60}assertion",
            r"kvm: entry failed, hardware error",
            r"kvm internal error",
            r"made no progress under kvm",
            r"kvm probe could not be run",
            r"did not start a guest under kvm",
        ),
        CULPRIT,
    ),
    Known(
        "cpu-model",
        "The guest's CPU model does not fit this host",
        "The domain asks for features that the processor or the emulator lacks; host-passthrough exists under KVM "
        "alone.",
        "Under KVM: <cpu mode='host-passthrough'/>; under emulation: <cpu mode='maximum'/>. Guests that must run on "
        "several hosts take the oldest host's model.",
        (
            r"guest cpu is not compatible with host cpu",
            r"cpu is incompatible with host cpu",
            r"host doesn't support requested feature",
            r"cpu mode '\S+ [^\n]{0,80}not supported",
            r"unable to find cpu (model|definition)",
        ),
    ),
)

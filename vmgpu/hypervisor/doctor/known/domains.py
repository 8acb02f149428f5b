"""libvirt and QEMU: connections, domains, firmware, memory, permissions."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, SYMPTOM, USUAL, Known

KNOWN = (
    Known(
        "state-lock",
        "An earlier call on this VM never ended",
        "libvirt allows one change at a time; the call that the text names holds the VM, usually because its QEMU was "
        "killed or its storage hangs. Other VMs go on.",
        "Start nothing more on this VM. virsh domjobinfo NAME; virsh destroy NAME. If that waits too: end its QEMU "
        "process, then systemctl restart libvirtd (or virtqemud); running guests survive that.",
        (r"cannot acquire state change lock", r"held by (remotedispatch|monitor)"),
        CULPRIT,
    ),
    Known(
        "undefine-leftovers",
        "The VM has more than its definition, and libvirt asks what to do with it",
        "UEFI variables, a saved state, snapshots, checkpoints or a TPM belong to it.",
        "virsh undefine NAME --nvram --managed-save --snapshots-metadata --checkpoints-metadata (--tpm where known). "
        "vmgpu gives these flags itself; delete the .fd file of the VM if it stays.",
        (
            r"undefine[^\n]{0,60}nvram",
            r"undefine[^\n]{0,80}(managed save|snapshots?|checkpoints?|tpm)",
            r"(delete|undefine) (inactive )?domain with \d+ (snapshots?|checkpoints?)",
        ),
        CULPRIT,
    ),
    Known(
        "firmware-missing",
        "The host has no UEFI firmware for guests that libvirt can choose",
        "OVMF is not installed, its description files are missing, or libvirt is too old to choose by itself (before "
        "5.2).",
        lambda p: (
            p.install("ovmf")
            + " Look: virsh domcapabilities | grep -A3 \"name='firmware'\" must show efi, and /usr/share/qemu/firmware "
            "must hold JSON files."
        ),
        (
            r"unable to find any firmware",
            r"unable to find '?(uefi|efi)",
            r"firmware auto.?selection not",
            r"unable to find any master var store",
            r"(ovmf|aavmf|edk2)\S*\.(fd|qcow2)[^\n]{0,60}no such file",
            r"could not load pc bios",
            r"os firmware[^\n]{0,40}not supported",
        ),
        CULPRIT,
    ),
    Known(
        "qemu-too-old",
        "This QEMU does not know a machine, device or property of the VM",
        "The domain was made for a newer QEMU, or a QEMU package with that device is not installed.",
        lambda p: (
            "Choose a machine that the host lists: virsh domcapabilities; remove the property, or update QEMU. "
            + p.install("qemu")
        ),
        (
            r"unsupported machine type",
            r"does not support machine type",
            r"is not a valid (device|machine)",
            r"property '\S+ not found",
            r"failed to find romfile",
        ),
    ),
    Known(
        "qemu-missing",
        "QEMU is not installed where libvirt looks for it",
        "The emulator that the domain names is not there, or none serves this processor.",
        lambda p: p.install("qemu") + " Then restart libvirt and look: virsh capabilities must list <emulator>.",
        (
            r"cannot check qemu binary",
            r"cannot find suitable emulator",
            r"no emulator found for arch",
            r"qemu-system-x86_64: (command )?not found",
        ),
        CULPRIT,
    ),
    Known(
        "hugepages-short",
        "Not enough free hugepages for the guest",
        "They are reserved at boot or by hand, per NUMA node, and other guests hold them.",
        lambda p: (
            "Look: cat /sys/devices/system/node/node*/hugepages/hugepages-*/free_hugepages. Reserve more: "
            + p.boot_with("default_hugepagesz=1G hugepagesz=1G hugepages=64")
            + " And mount them: mount -t hugetlbfs hugetlbfs /dev/hugepages."
        ),
        (
            r"unable to find any usable hugetlbfs mount",
            r"insufficient free host memory pages",
            r"os_mem_prealloc",
            r"unable to map backing store for guest ram",
            r"hugepage[^\n]{0,60}(not available|cannot allocate|no such)",
        ),
        CULPRIT,
    ),
    Known(
        "memory-short",
        "The host has too little free memory for this guest",
        "QEMU did not get the guest's RAM at start, or the kernel ended it later for lack of memory.",
        "free -g; stop guests or give this one less. vmgpu never promises memory twice: look for programs beside it, "
        "and "
        "raise the host's reserve.",
        (
            r"cannot set up guest memory",
            r"out of memory: killed process[^\n]{0,60}qemu",
            r"oom-kill[^\n]{0,200}qemu",
        ),
        CULPRIT,
    ),
    Known(
        "apparmor",
        "AppArmor forbade a file to libvirt or QEMU",
        "The file lies where libvirt's profile does not look, or is not named in the domain's XML.",
        "Keep disks in a libvirt pool. For another place add it to /etc/apparmor.d/local/abstractions/libvirt-qemu and "
        "run: systemctl reload apparmor.",
        (r"apparmor='?denied", r"apparmor[^\n]{0,40}denied", r"unable to set apparmor profile"),
        CULPRIT,
    ),
    Known(
        "selinux",
        "SELinux forbade a file to libvirt or QEMU",
        "The file does not carry the label of a virtual machine's disk.",
        "restorecon -Rv /var/lib/libvirt/images; for another place: semanage fcontext -a -t virt_image_t "
        "'/PLACE(/.*)?', "
        "then restorecon. NFS: setsebool -P virt_use_nfs on.",
        (r"avc: denied", r"selinux[^\n]{0,40}(denied|preventing)"),
        CULPRIT,
    ),
    Known(
        "files-denied",
        "The account that runs QEMU cannot read a file or a folder on the way to it",
        "libvirt runs guests as libvirt-qemu (RHEL: qemu); nothing below /root or a home folder is open to it.",
        "Put the file into the pool (/var/lib/libvirt/images). Look at each folder: namei -l PATH.",
        (
            r"(could not|cannot|can't|failed to|unable to) (open|access|read|create)"
            r"(?![^\n]{0,40}(/dev/(vfio|kvm)|kvm kernel module))"
            r"[^\n]{0,200}permission denied",
            r"unable to set user and group to",
            r"cannot execute binary [^\n]{1,80}permission denied",
        ),
    ),
    Known(
        "libvirt-unreachable",
        "libvirt does not answer on the host",
        "The service is not running, or (from another machine) SSH or its helper failed.",
        "systemctl enable --now libvirtd (or virtqemud.socket). Remote: ssh HOST virsh -c qemu:///system list must "
        "work "
        "with this key.",
        (
            r"failed to connect socket to '?\S*libvirt",
            r"(cannot|unable to|failed to) connect to (libvirt|the hypervisor)",
            r"end of file while reading data",
            r"virt-ssh-helper[^\n]{0,40}not found",
            r"failed to connect to the hypervisor",
        ),
    ),
    Known(
        "libvirt-refuses",
        "libvirt does not let this account manage guests",
        "Only root and members of group libvirt may, unless polkit says otherwise.",
        "usermod -aG libvirt ACCOUNT, then log in again.",
        (
            r"no polkit agent",
            r"authentication (unavailable|failed)[^\n]{0,60}(polkit|policy)",
            r"checkauthorization",
            r"failed to connect socket to '\S*libvirt\S*: permission denied",
        ),
        CULPRIT,
    ),
    Known(
        "host-key-changed",
        "Another machine answers under this name, or it was installed anew",
        "The SSH host key is not the one that was stored.",
        "Make sure that it is the right machine, then remove the old key: ssh-keygen -R HOST (vmgpu: remove the host "
        "and "
        "add it again).",
        (r"host key verification failed", r"remote host identification has changed"),
        CULPRIT,
    ),
    Known(
        "domain-gone",
        "The host no longer knows this VM",
        "Somebody undefined it by hand, or the host was installed anew.",
        "vmgpu vm start NAME defines it again on its disk; vmgpu vm release NAME gives it up. Its card is free.",
        (r"no domain with matching", r"domain not found"),
        CULPRIT,
    ),
    Known(
        "domain-exists",
        "A VM of this name or UUID is already there",
        "It was made by hand or by another installation, or a start came twice.",
        "virsh list --all; rename or undefine the one that is not ours.",
        (r"already exists with uuid", r"domain is already (active|running)"),
    ),
    Known(
        "agent-silent",
        "The guest's agent does not answer",
        "qemu-guest-agent is not installed, not started until the next boot, or the guest hangs.",
        "In the guest: install qemu-guest-agent and start it. vmgpu needs it for nothing but a second way to the "
        "address.",
        (r"guest agent is not (responding|connected|available)", r"qemu guest agent is not"),
    ),
    Known(
        "call-too-long",
        "A call to libvirt took longer than it may",
        "A hanging QEMU, storage that does not answer, or KVM being probed again at each call (an unusable /dev/kvm).",
        "virsh list --all on the host: if it hangs too, restart libvirtd. Look at storage (df, dmesg).",
        (r"timed out during operation", r"monitor socket did not show up", r"timed out waiting for (the )?monitor"),
        USUAL,
    ),
    Known(
        "qemu-ended",
        "QEMU ended while the VM was starting",
        "The real reason is in QEMU's own words, before or after this line.",
        "/var/log/libvirt/qemu/NAME.log on the host: explain that text (vmgpu doctor --explain FILE).",
        (
            r"unexpectedly closed the monitor",
            r"process exited (while connecting to|prior to) monitor",
            r"qemu unexpectedly",
        ),
        SYMPTOM,
    ),
    Known(
        "sysfs-refused",
        "The kernel refused a value that was written by hand",
        "For a device file of a card: the value is not one of those offered now, or the device is in use.",
        "Read the file first; look at the kernel's last line: journalctl -k -n 20. For cards let vmgpu write it.",
        (r"write error: (invalid argument|input/output error|device or resource busy|operation not permitted)",),
        SYMPTOM,
    ),
    Known(
        "device-busy",
        "Something else uses this device",
        "A guest, a driver or a program has it open; only one can.",
        "fuser -v on its file (/dev/nvidia*, /dev/vfio/*); virsh list; stop who has it.",
        (r"device or resource busy", r"\bdevice (is )?(already )?in use\b"),
        SYMPTOM,
    ),
    Known(
        "no-memory",
        "Something did not get memory",
        "RAM is used up, or a limit on locked memory was met.",
        "free -g on the host; with cards see also the limit on locked memory: prlimit -p PID.",
        (r"cannot allocate memory", r"\benomem\b"),
        SYMPTOM,
    ),
)

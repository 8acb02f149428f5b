"""Inside the guest: boot, cloud-init, accounts, SSH."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, Known

KNOWN = (
    Known(
        "seed-not-seen",
        "cloud-init did not see the VM's seed disk",
        "The guest's kernel has no driver for the disk's bus (cloud kernels lack AHCI), or its cloud-init does not "
        "allow NoCloud. The VM runs, and nobody can log in.",
        "The seed must be a virtio disk labelled cidata (vmgpu's is). In the image: datasource_list: [NoCloud, None] "
        "in "
        "/etc/cloud/cloud.cfg.d.",
        (
            r"datasourcenone",
            r"used fallback datasource",
            r"no (instance )?datasource found",
            r"did not find any data ?source",
            r"by-label/cidata[^\n]{0,60}(timed out|no such)",
        ),
        CULPRIT,
    ),
    Known(
        "cloud-init-config",
        "cloud-init does not understand its user-data",
        "It is no valid YAML, or its first line is not #cloud-config.",
        "cloud-init schema --system in the guest; the first line must be exactly #cloud-config.",
        (
            r"failed loading yaml",
            r"unhandled non-multipart",
            r"invalid cloud-config",
            r"cloud config schema errors",
        ),
        CULPRIT,
    ),
    Known(
        "cloud-init-failed",
        "cloud-init ended with an error",
        "A module or script of it failed; accounts and keys may be missing.",
        "cloud-init status --long and /var/log/cloud-init.log in the guest, or its console: vmgpu vm console NAME.",
        (
            r"'status':? 'error",
            r"status: error",
            r"cloud-init[^\n]{0,120}(failed running|traceback|running module[^\n]{0,60}failed)",
            r"failed (to run|running) module",
            r"failed to start cloud-(init|config|final)",
        ),
    ),
    Known(
        "cloud-init-degraded",
        "cloud-init is done, with warnings",
        "Since 23.4 it then ends with code 2; the VM is usable.",
        "Read the warnings: cloud-init status --long. Nothing needs to be done for the VM.",
        (r"degraded (done|running)", r"'extended_status':? 'degraded", r"status: degraded"),
    ),
    Known(
        "cloud-init-old",
        "The image's cloud-init is too old to answer in JSON",
        "Before 23.4 some releases know no --format; it says nothing about the VM.",
        "Read the plain text instead (cloud-init status), or update cloud-init in the image.",
        (r"unrecognized arguments: --format", r"no such option: --format", r"unknown option[^\n]{0,10}--format"),
        CULPRIT,
    ),
    Known(
        "clone-not-new",
        "The clone takes itself for the machine that it was copied from",
        "It was given the same instance-id, so cloud-init keeps the first owner's account, keys and name.",
        "Each build needs an instance-id of its own (vmgpu: id and build). By hand: cloud-init clean before capturing.",
        (r"same instance.?id", r"instance.?id[^\n]{0,40}(unchanged|not changed)"),
        CULPRIT,
    ),
    Known(
        "user-name",
        "The account's name is not a name that Linux takes",
        "Capitals, dots, a leading dash or digit, or a reserved name.",
        "Choose lower-case letters, digits, _ and -, beginning with a letter, at most 32: vmgpu makes such a name "
        "from a "
        "person's and keeps it.",
        (
            r"useradd: invalid user ?name",
            r"invalid user name '",
            r"enter a username matching the regular expression",
            r"user(add)?:? '?\S+ already exists",
        ),
        CULPRIT,
    ),
    Known(
        "ssh-key-refused",
        "The guest does not accept this SSH key",
        "It is not among the account's keys: pasted broken, glued to another line, for another account, or "
        "cloud-init did "
        "not run.",
        "vmgpu key list; ssh -v shows which key was offered. Each key is one line of its own, with a line end.",
        (r"permission denied \([a-z,-]*publickey",),
        CULPRIT,
    ),
    Known(
        "ssh-key-unusable",
        "The SSH key itself cannot be read",
        "It is cut, of another kind (a private key, a certificate), or has foreign characters.",
        "ssh-keygen -l -f FILE must print a fingerprint; paste the .pub file as one line.",
        (
            r"load key [^\n]{1,200}(invalid format|error in libcrypto)",
            r"is not a public key file",
            r"invalid public key",
        ),
        CULPRIT,
    ),
    Known(
        "ssh-no-answer",
        "Nothing answers at the guest's SSH port",
        "The guest still boots, has another address, or its SSH server did not start.",
        "Look at the console: vmgpu vm console NAME. The right address is that of the interface with the VM's own MAC, "
        "not docker0 or a link-local one.",
        (
            r"connect to (host|address) \S+ port \d+: (connection (refused|timed out)|no route to host)",
            r"kex_exchange_identification",
        ),
    ),
    Known(
        "guest-no-boot",
        "The guest finds nothing that it can boot",
        "The image has no UEFI boot loader, its kernel has no virtio disk driver, or its root file system is not "
        "found.",
        "Use an image that boots by UEFI from a virtio disk; rebuild its initramfs with virtio_blk. See the console: "
        "vmgpu vm console NAME.",
        (
            r"no bootable (device|option)",
            r"bdsdxe: (failed to load|no bootable)",
            r"unable to mount root fs",
            r"gave up waiting for root",
            r"you are in emergency mode",
            r"alert! [^\n]{1,80}does not exist",
        ),
    ),
)

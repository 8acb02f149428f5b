"""The script that makes a machine one of our hosts: packages, an account with two keys, two commands, hostctl."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Network

from vmgpu import render
from vmgpu.errors import Invalid

ACCOUNT = "vmgpu"
FOLDER = "/usr/local/lib/vmgpu"
GUEST_PORT = 22
# OpenSSH reads no more entries than this of one line.
_MOST_ADDRESSES = 4096
_SOCKETS = ("/var/run/libvirt/libvirt-sock", "/run/libvirt/libvirt-sock")
_HELPER = "virt-ssh-helper 'qemu:///system'"


@dataclass(frozen=True)
class PublicKeys:
    """The public halves of the installation's keys on hosts."""

    libvirt: str
    hostctl: str


def script(*, name: str, address: str, keys: PublicKeys, network: IPv4Network | None, added: str) -> str:
    """POSIX sh, to be run as root on the host, as often as one likes.

    `name`, `address`: the host as it is, or will be, added; `network`: its guests' range behind NAT, None for a bridge;
    `added`: "ours" where it is added already as that account, "other" as another one, else empty.
    """
    # here, not above: the build reads all of hostctl and pynvml, and who only wants a name of this module needs neither
    from vmgpu.hypervisor import hostctl_zip

    app = hostctl_zip.build()
    packed = base64.b64encode(gzip.compress(app, mtime=0)).decode()
    return render.script(
        "setup.sh.j2",
        name=name,
        address=address,
        added=added,
        account=ACCOUNT,
        folder=FOLDER,
        gate=gate(),
        authorized=authorized_keys(keys, network),
        sudoers=sudoers(),
        build=hostctl_zip.VERSION,
        digest=hashlib.sha256(app).hexdigest(),
        packed="\n".join(packed[at : at + 76] for at in range(0, len(packed), 76)),
    )


def gate() -> str:
    """The forced command of libvirt's key: what a libvirt client asks for, word by word, and nothing else."""
    return render.script("gate.sh.j2", helper=_asked_helper(), netcat=[_sh(_netcat(each)) for each in _SOCKETS])


def authorized_keys(keys: PublicKeys, network: IPv4Network | None) -> str:
    """One line a key, each with its command; a pattern of hosts is not known there, so every address is named."""
    libvirt = [f'restrict,command="{FOLDER}/libvirt"']
    if network is not None:
        # listening on the host would come with the channels: it is kept to a port that no plain account can have
        libvirt += ["port-forwarding", 'permitlisten="localhost:1"', *_addresses(network)]
    hostctl = f'restrict,command="sudo -n {FOLDER}/hostctl.pyz"'
    return f"{','.join(libvirt)} {keys.libvirt}\n{hostctl} {keys.hostctl}\n"


def sudoers() -> str:
    """The one rule, and what its command may know; the "" allows no argument: the verb comes by the environment."""
    app = f"{FOLDER}/hostctl.pyz"
    return f'Defaults!{app} env_keep += "SSH_ORIGINAL_COMMAND", !requiretty\n{ACCOUNT} ALL=(root) NOPASSWD: {app} ""\n'


def _addresses(network: IPv4Network) -> list[str]:
    if network.num_addresses > _MOST_ADDRESSES:
        raise Invalid(
            f"The guests' range {network} has more addresses than one key can name",
            hint="Use a range of /20 or narrower for the network vmgpu, or a bridge.",
        )
    gateway = network[1]
    # the broadcast address is named as well: the survey asks with it whether this range is the one that is let through
    return [f'permitopen="{each}:{GUEST_PORT}"' for each in network if each not in (network[0], gateway)]


def _asked_helper() -> list[str]:
    """What libvirt clients ask for where the helper is there: in native mode, and when they look for it first."""
    looks = "which virt-ssh-helper 1>/dev/null 2>&1; if test $? = 0; then     {}; else    {}; fi"
    return [_sh(_HELPER), *(_sh(looks.format(_HELPER, _netcat(each))) for each in _SOCKETS)]


def _netcat(socket: str) -> str:
    finds = "if 'nc' -q 2>&1 | grep \"requires an argument\" >/dev/null 2>&1; then ARG=-q0;else ARG=;fi;"
    return f"{finds}'nc' $ARG -U {socket}"


def _sh(command: str) -> str:
    return f"sh -c '{command}'"

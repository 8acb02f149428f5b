"""How a person reaches a VM by SSH: where it answers, as whom, and the host key that must answer."""

from __future__ import annotations

from urllib.parse import urlsplit

from sqlmodel import Session, col, select

from vmgpu.errors import Conflict
from vmgpu.hypervisor.host_setup import ACCOUNT
from vmgpu.models import Host, User, VMMember
from vmgpu.service.access import Actor, find_vm
from vmgpu.service.shapes import ReachOut

PORT = 22


def ssh(session: Session, actor: Actor, ref: str) -> ReachOut:
    """The way into a VM for the person who asks. Raises Conflict while there is none."""
    vm = find_vm(session, actor, ref)
    host = session.get(Host, vm.host_id) if vm.host_id else None
    if host and host.simulated:
        raise Conflict(f"{vm.name} is simulated: nothing answers SSH there", hint="VMs on real hosts answer.")
    if not vm.address or not host:
        raise Conflict(f"{vm.name} is {vm.state} and has no address now", hint=f"Look at it: vmgpu vm show {vm.name}.")
    members = select(VMMember, User.name).join(User, col(User.id) == VMMember.user_id)
    logins = {name: member.login for member, name in session.exec(members.where(VMMember.vm_id == vm.id)).all()}
    owner = session.get_one(User, vm.owner_id).name
    login = logins.get(actor.name) or logins[owner]
    jump = _jump(host)
    if jump and not actor.admin:
        raise Conflict(
            f"{vm.name} lies behind the NAT of host {host.name}: only accounts of that host reach it by SSH",
            hint="Ask an admin for a host whose guests sit on a bridge, or to add this one with --bridge.",
        )
    alias = f"vmgpu-{vm.id}"
    return ReachOut(
        vm=vm.name,
        address=vm.address,
        port=PORT,
        login=login,
        logins=logins,
        host_key=vm.host_key,
        alias=alias,
        known_hosts=f"{alias} {vm.host_key}",
        jump=jump,
        jump_alias=_alias(host) if jump else None,
        jump_known_hosts=f"{_alias(host)} {host.host_key}" if jump else None,
        command=" ".join(
            ["ssh", *(["-J", jump] if jump else []), "-o", f"HostKeyAlias={alias}", f"{login}@{vm.address}"]
        ),
        says=_says(host, vm.address, jump),
    )


def _says(host: Host, address: str, jump: str | None) -> str:
    if jump:
        return f"Through the host {host.name}, by its own SSH server"
    if host.bridge:
        return f"Directly at {address}"
    return f"At {address}, from the machine of the service: its guests sit behind its NAT"


def _alias(host: Host) -> str:
    return f"vmgpu-host-{host.id}"


def _jump(host: Host) -> str | None:
    """The remote host itself, where its guests sit behind its NAT."""
    parts = urlsplit(host.uri)
    if parts.scheme != "qemu+ssh" or host.bridge:
        return None
    return parts.netloc.removeprefix(f"{ACCOUNT}@")  # that account is the service's own: admins come as themselves

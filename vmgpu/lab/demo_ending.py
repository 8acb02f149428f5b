"""What the demo says when its story is told, and when it is left: where to look, and how to go on or remove it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vmgpu.lab.demo_api import Api
from vmgpu.lab.demo_service import LOG, program, url_of
from vmgpu.lab.demo_ssh import Keyring
from vmgpu.lab.demo_story import HOST, PERSON, SNAPSHOT
from vmgpu.service.people import FIRST_ADMIN
from vmgpu.service.shapes import ImageOut, VMOut
from vmgpu.settings import Settings


def told_at_the_end(admin: Api, keyring: Keyring, folder: Path, token: Path, settings: Settings) -> str:
    """The addresses and commands with which a person goes on by hand."""
    link = admin.link(FIRST_ADMIN)
    vms = [vm for vm in admin.vms() if vm.state == "running" and not vm.simulated]
    lines = [
        "",
        "The story is told, and it goes on serving (Ctrl-C ends that; the VMs stay):",
        "",
        f"  page      {settings.base_url}/",
        f"  sign in   {link.url}   (as {FIRST_ADMIN}; once, within half an hour)",
        f"  API       {url_of(settings)}/api/v1/openapi.json",
        f"  log       {folder / LOG}",
        "",
        "A shell in a VM, with the demo's own key and the VM's pinned host key:",
        "",
    ]
    for vm in vms:
        way = admin.way_into(vm.id)
        keyring.pin(way)
        way = way.model_copy(update={"login": way.logins.get(PERSON, way.login)})
        lines.append(f"  {vm.name:<9} {keyring.spoken(way)}")
    vmgpu = _short(program())
    lines += [
        "",
        f"The same by vmgpu, as {PERSON}, from another terminal:",
        "",
        f"  export VMGPU_URL={url_of(settings)} VMGPU_TOKEN=$(cat {token})",
        *(f"  {vmgpu} vm ssh -i {keyring.key} {vm.name}" for vm in vms),
        f"  {vmgpu} vm list",
        f"  {vmgpu} queue list",
        f"  {vmgpu} vm events {vms[0].name if vms else 's1'}",
        "",
        f"As the admin: export VMGPU_TOKEN=$(cat {folder / 'admin-token'}); then",
        "",
        f"  {vmgpu} host show {HOST}",
        f"  {vmgpu} gpu list",
        f"  {vmgpu} user link {FIRST_ADMIN}",
        "",
    ]
    return "\n".join(lines)


def told_when_left(
    vms: Sequence[VMOut], images: Sequence[ImageOut], folder: Path, settings: Settings, *, by_sudo: bool
) -> str:
    """What stays after the service has ended, how to go on and how to remove it."""
    vmgpu = _short(program())
    sudo = "sudo -E " if by_sudo else ""
    lines = ["", "The service has ended."]
    if vms:
        lines.append(f"  VMs       {_named(vms)}: they stay as they are")
    lines += [
        f"  folder    {folder}",
        "",
        "To go on: make demo (it begins again with what is there). To remove everything:",
        "",
        f"  export VMGPU_DATA_DIR={folder} VMGPU_BIND={settings.bind}",
        f"  {sudo}{vmgpu} serve 2>/dev/null &",
        *(f"  {sudo}{vmgpu} vm release {vm.owner}/{vm.name} --yes --wait" for vm in vms),
        *(f"  {sudo}{vmgpu} image remove {image.name}" for image in images if image.name == SNAPSHOT),
        f"  {sudo}{vmgpu} host remove {HOST} --yes",
        f"  {sudo}kill $! && wait && {sudo}rm -r {folder}",
    ]
    return "\n".join(lines)


def told_when_private(vms: Sequence[VMOut], folder: Path) -> str:
    """The same where all of it lived in a network namespace, over folders of the demo's own."""
    lines = ["", "The service has ended, and with it the libvirtd of this network namespace."]
    if vms:
        lines.append(f"  VMs       {_named(vms)}: powered off; their disks stay")
    return "\n".join(
        [*lines, f"  folder    {folder}", "", f"To go on: make demo. To remove everything: rm -r {folder}"]
    )


def _named(vms: Sequence[VMOut]) -> str:
    return ", ".join(f"{vm.name} ({vm.state})" for vm in vms)


def _short(path: Path) -> str:
    """As seen from the working folder, where it lies below it."""
    here = Path.cwd()
    return os.fspath(path.relative_to(here)) if path.is_relative_to(here) else os.fspath(path)

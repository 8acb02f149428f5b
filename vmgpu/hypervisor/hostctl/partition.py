"""Partitions of an NVSwitch fabric: what fabric manager's own client lists, activates and deactivates."""

from __future__ import annotations

import json
import re
from typing import Any

from .deadline import Deadline
from .files import Files
from .nvml import sysfs_address
from .patterns import ADDRESS, Arguments
from .programs import FMPM
from .programs import run as run_program
from .refusal import Refusal

_CONFIG = "usr/share/nvidia/nvswitch/fabricmanager.cfg"
_MANAGER = "usr/bin/nv-fabricmanager"
_PID_FILES = ("run/nvidia-fabricmanager/nv-fabricmanager.pid", "var/run/nvidia-fabricmanager/nv-fabricmanager.pid")
_LIST_SECONDS = 8.0


def run(files: Files, arguments: Arguments, deadline: Deadline) -> dict[str, Any]:
    """The verb; what it says is always read from the manager afterwards."""
    action = arguments.choice("action", "list", "activate", "deactivate")
    if action == "list":
        arguments.only("action")
        return {"partitions": _listed(files, deadline)}
    arguments.only("action", "id")
    number, wanted = arguments.number("id", most=2**16), action == "activate"
    files.may_write()
    known = {each["id"]: each for each in _listed(files, deadline)}
    if number not in known:
        raise Refusal(
            "not_found", f"There is no partition {number}", hint="List them: their numbers are the machine's."
        )
    if known[number]["active"] != wanted:
        ran = run_program(files, FMPM, ["-a" if wanted else "-d", str(number)], deadline)
        if ran.status != 0:
            raise Refusal(
                "refused",
                f"Partition {number} was not {action}d: {ran.said()}",
                hint="No other active partition may share a GPU with it, and its GPUs must be free.",
            )
        known = {each["id"]: each for each in _listed(files, deadline)}
    if known.get(number, {}).get("active") != wanted:
        raise Refusal("failed", f"Partition {number} is still {'inactive' if wanted else 'active'}")
    return {"partitions": list(known.values())}


def look(files: Files, switches: list[str], deadline: Deadline) -> dict[str, Any]:
    """The fabric for the facts: its switches, its manager, its partitions where they can be had."""
    partitions = None
    if files.exists(FMPM):
        try:
            partitions = _listed(files, deadline)
        except Refusal as no:
            files.troubles.append(no.message)
    found = re.search(r"^\s*FABRIC_MODE\s*=\s*([0-9]{1,3})\s*$", files.text(_CONFIG) or "", re.M)
    return {
        "switches": switches,
        "manager": "running" if partitions is not None else _manager(files),
        "mode": int(found.group(1)) if found else None,
        "partitions": partitions,
    }


def partitions_of(said: str) -> list[dict[str, Any]] | None:
    """The partitions in what `fmpm -l` printed; None when there is no list in it. Log lines may come first."""
    start = said.find("{")
    if start < 0:
        return None
    try:
        listed, _ = json.JSONDecoder().raw_decode(said[start:])
    except (ValueError, RecursionError):
        return None
    told = listed.get("partitionInfo")
    if not isinstance(told, list):
        return None
    found = []
    for each in told:
        number = _number(each.get("partitionId")) if isinstance(each, dict) else None
        if number is not None:
            gpus = each.get("gpuInfo")
            found.append(
                {
                    "id": number,
                    "active": _number(each.get("isActive")) == 1,
                    "gpus": [_gpu(gpu) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else [],
                }
            )
    return found


def _listed(files: Files, deadline: Deadline) -> list[dict[str, Any]]:
    if not files.exists(FMPM):
        raise Refusal("not_supported", "fmpm is missing", hint="Install NVIDIA's fabric manager and its client.")
    ran = run_program(files, FMPM, ["-l"], deadline, seconds=_LIST_SECONDS)
    found = partitions_of(ran.output)
    if ran.status != 0 or found is None:
        raise Refusal("failed", f"fmpm -l: {ran.said()}", hint="Is nvidia-fabricmanager running, with FABRIC_MODE=1?")
    return found


def _gpu(told: dict[str, Any]) -> dict[str, Any]:
    uuid, written = told.get("uuid"), told.get("pciBusId")
    address = sysfs_address(written) if isinstance(written, str) else ""
    return {
        "physical_id": _number(told.get("physicalId")),
        "uuid": uuid if isinstance(uuid, str) and uuid else None,
        "address": address if ADDRESS.fullmatch(address) else None,
    }


def _number(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value):
        return int(value)
    return int(value) if isinstance(value, int) else None  # isActive is 0, 1 or a bool, by release


def _manager(files: Files) -> str:
    for path in _PID_FILES:
        pid = files.text(path) or ""
        if re.fullmatch(r"[0-9]{1,9}", pid) and files.exists(f"proc/{pid}"):
            return "running"
    return "stopped" if any(files.exists(each) for each in (_MANAGER, _CONFIG, FMPM)) else "absent"

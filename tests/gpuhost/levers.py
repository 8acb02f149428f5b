"""What a test may do to the host from outside, as one JSON line each way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.gpuhost.describe import take
from tests.gpuhost.host import Host
from tests.gpuhost.moods import Mood
from tests.gpuhost.refusal import Refused


def answer(host: Host, line: str) -> str:
    """`{"do": name, "with": {…}}` → `{"ok": result}` or `{"refused": text, "errno": number}`."""
    asked = json.loads(line)
    levers: dict[str, Callable[..., object]] = {
        "reboot": host.reboot,
        "start_vm": host.start_vm,
        "end_vm": host.end_vm,
        "guest_ready": host.guest_ready,
        "hold": host.hold,
        "let_go": host.let_go,
        "kill_card": host.kill_card,
        "keep_mdev": host.keep_mdev,
        "clear_moods": host.clear_moods,
        "set_mood": lambda **told: host.set_mood(Mood(**told)),
        "take": lambda step: take(host, step),
        "state": lambda: state(host),
    }
    with host.lock:
        try:
            result = levers[asked["do"]](**asked.get("with", {}))
        except Refused as refused:
            return json.dumps({"refused": str(refused), "errno": refused.errno})
        except (LookupError, TypeError, ValueError) as error:
            return json.dumps({"wrong": f"{type(error).__name__}: {error}"})
        finally:
            host.version += 1
    return json.dumps({"ok": result})


def state(host: Host) -> dict[str, Any]:
    """The truth in short: what is cut, what exists, who runs."""
    return {
        "boots": host.boots,
        "cards": {
            card.address: {
                "uuid": card.uuid,
                "driver": host.bus.functions[card.address].driver,
                "vfs": list(host.bus.functions[card.address].vfs),
                "mig": [card.mig, card.mig_pending],
                "mixed": card.mixed,
                "dead": card.dead,
                "instances": [[each.id, each.profile.name, each.start] for each in card.instances.values()],
                "vgpus": [
                    {"seat": each.seat, "type": each.type.name, "instance": each.instance, "placement": each.placement}
                    | {"vm": each.vm, "params": each.params}
                    for each in card.vgpus
                ],
            }
            for card in host.cards
        },
        "partitions": sorted(host.fabric.active) if host.fabric else [],
        "log": list(host.log),
    }

"""vmgpu gpu: cards, and what 1 fGPU is."""

from __future__ import annotations

from typing import Any

import click

from vmgpu.cli import say
from vmgpu.cli.desk import Desk, Refused, verb
from vmgpu.units import a_or_an


@click.group()
def gpu() -> None:
    """Cards, and what 1 fGPU is."""


@verb(gpu, "list")
def list_gpus(desk: Desk) -> None:
    """All cards with what is cut from them."""
    found = desk.items("gpus")
    rows = [[g["id"][:8], g["host"], g["name"], g["model"], _kind(g), g["state"], _held(g)] for g in found]
    head = ("id", "host", "name", "model", "given out", "state", "slices")
    desk.done({"items": found}, lambda: say.table(head, rows, empty="No host has shown a card yet."))


@verb(gpu, "show")
@click.argument("card")
def show(desk: Desk, card: str) -> None:
    """One card, by id, the beginning of its id, name or address."""
    found = _card(desk, card)
    desk.done(found, lambda: _show(found))


@verb(gpu, "unit")
@click.argument("model", required=False)
@click.argument("share", required=False)
def unit(desk: Desk, model: str | None, share: str | None) -> None:
    """Set the share of a card that 1 fGPU is. Without arguments: list what it is."""
    if model is None:
        found = desk.items("gpu-units")
        rows = [[u["model"], u["share"] + ("" if u["is_set"] else " (not set)"), _becomes(u)] for u in found]
        desk.done({"items": found}, lambda: say.table(("model", "share", "1 fGPU is"), rows, empty="No cards yet."))
        return
    if share is None:
        raise click.UsageError("say the share as well: vmgpu gpu unit MODEL 0.5")
    made = desk.put("gpu-units", model, body={"share": share})
    desk.done(made, lambda: click.echo(f"1 fGPU is {made['share']} of {a_or_an(made['model'])}: {_becomes(made)}."))


@verb(gpu, "clear")
@click.argument("card")
def clear(desk: Desk, card: str) -> None:
    """End a card's quarantine, after somebody has looked at it."""
    _after(desk, desk.post("gpus", _card(desk, card)["id"], "clear"))


@verb(gpu, "offer")
@click.argument("card")
@click.option(
    "--mode",
    type=click.Choice(["passthrough", "vgpu", "mixed", "mig"]),
    default="passthrough",
    show_default=True,
    help="Whole, cut into time-sliced vGPUs of one size, of mixed sizes, or into MIG-backed ones.",
)
def offer(desk: Desk, card: str, mode: str) -> None:
    """Give a real card out."""
    given = desk.post("gpus", _card(desk, card)["id"], "offer", body={"offered": True, "mode": mode})
    _after(desk, given)
    warn_where_unset(desk, [given])


@verb(gpu, "withhold")
@click.argument("card")
def withhold(desk: Desk, card: str) -> None:
    """Keep a real card for the host."""
    _after(desk, desk.post("gpus", _card(desk, card)["id"], "offer", body={"offered": False}))


def warn_where_unset(desk: Desk, cards: list[dict[str, Any]]) -> None:
    """Where shares are in use, say of each model among cards that can be cut that nobody has said what 1 fGPU is."""
    models = {card["model"] for card in cards if card["mode"] not in (None, "passthrough")}
    if desk.as_json or not models:
        return
    units = desk.items("gpu-units")
    if not any(unit["is_set"] for unit in units) and not any(flavor["fgpu"] for flavor in desk.items("flavors")):
        return
    for model in sorted(models & {unit["model"] for unit in units if not unit["is_set"]}):
        say.note(f"1 fGPU is a whole {model} here, until you say otherwise: vmgpu gpu unit {model} 0.5")


def _after(desk: Desk, changed: dict[str, Any]) -> None:
    desk.done(changed, lambda: _show(changed))


def _card(desk: Desk, text: str) -> dict[str, Any]:
    """The card that is meant: reasons name cards by name, lists by the beginning of their id."""
    found = [g for g in desk.items("gpus") if text in (g["id"], g["name"], g["address"])]
    found = found or [g for g in desk.items("gpus") if len(text) >= 4 and g["id"].startswith(text)]
    if len(found) == 1:
        return found[0]
    said = f"Several cards are called {text!r}" if found else f"There is no card {text!r}"
    raise Refused({"code": "conflict" if found else "not_found", "message": said, "hint": "List them: vmgpu gpu list."})


def _becomes(unit: dict[str, Any]) -> str:
    return str(unit["becomes"]["says"]) if unit["becomes"] else "no profile of this model meets it"


def _kind(card: dict[str, Any]) -> str:
    played = "simulated" if card["simulated"] else "emulated"
    return played if card["emulated"] else card["mode"] or "no: left alone"


def _pieces(sizes: dict[str, int]) -> str:
    return ", ".join(name + (f" ({count} per card)" if count > 1 else "") for name, count in sizes.items())


def _held(card: dict[str, Any]) -> str:
    ours = (f"{cut['profile']}@{cut['start']}" + (f" {cut['vm']}" if cut["vm"] else "") for cut in card["slices"])
    return ", ".join((*ours, *card["orphans"]))


def _show(card: dict[str, Any]) -> None:
    say.facts(
        [
            ("id", card["id"]),
            ("name", card["name"]),
            ("host", card["host"] + (" (simulated)" if card["simulated"] else "")),
            ("model", card["model"]),
            ("address", card["address"]),
            ("given out", _kind(card)),
            ("state", card["state"]),
            ("reason", say.reason(card["reason"])),
            ("memory", say.mib(card["memory_mib"])),
            ("IOMMU group", card["iommu_group"]),
            ("NUMA node", card["numa_node"]),
            ("driver", card["driver"]),
            ("goes along", card["companions"]),
            ("reset by", card["reset_methods"]),
            ("BARs", [say.mib(size) for size in card["bars_mib"]]),
            ("link", card["link"]),
            ("now", card["now"]),
            ("can be", [f"{mode}: {_pieces(sizes)}" for mode, sizes in card["per_card"].items()]),
            ("still fit", [f"{count} x {name}" for name, count in card["free"].items()]),
            ("to be cut again", [f"{each}: before its VM starts" for each in card["to_cut_again"]]),
            ("cannot be", [f"{mode}: {why}" for mode, why in card["refusals"].items()]),
            ("held by", card["held_by"]),
            ("slices", _held(card)),
            ("others' slices", card["foreign"]),
        ]
    )

"""Imports go downwards only: the rooms lie on floors, and every import of the product is walked."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import vmgpu

ROOT = Path(vmgpu.__file__).parent
FLOORS = (
    {"cli"},
    {"lab"},
    {"api", "worker", "vm_work", "host_work", "work", "leader", "outcomes", "host_outcomes", "connections"},
    {"courses"},
    {"service", "requests", "lifecycle", "steps", "leases", "licensing", "specs", "machines", "views", "ledger"},
    {"guest", "placement", "hypervisor"},
    {"models", "db", "migrations", "render", "sshkeys"},
    {"errors", "reasons", "states", "settings", "logs", "units", "crash"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
APART = FLOORS[5]  # no way sideways here
NEVER = {
    "api": {"lifecycle", "hypervisor"},  # a web request cannot touch a host
    "placement": {"db", "models"},
    "hypervisor": {"db", "models"},
    "guest": {"db", "models"},
}
HOSTCTL = "vmgpu.hypervisor.hostctl"
Import = tuple[str, str]  # who imports, what is imported; full module names


def imports(source: str, module: str, modules: set[str]) -> Iterator[Import]:
    """The product's modules that a module imports, anywhere in its text: TYPE_CHECKING and functions count."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                whole, home = node.module or "", module.rpartition(".")[0]
                # hostctl leaves the house: on a GPU host it is a package of its own, under another name
                assert not node.level or (home == HOSTCTL and node.level == 1), f"{module} imports relatively"
                if node.level:
                    whole = f"{home}.{whole}".rstrip(".")
                inside = [f"{whole}.{alias.name}" for alias in node.names]
                names = [name if name in modules else whole for name in inside]
            case _:
                continue
        yield from ((module, name) for name in names if name.startswith("vmgpu.") and name != module)


def room(module: str) -> str:
    return module.split(".")[1]


def forbidden(one: Import) -> str:
    """What is wrong with an import; empty when nothing is."""
    who, what = room(one[0]), room(one[1])
    if who == what:
        return ""
    if what in NEVER.get(who, ()):
        return f"{one[0]} imports {one[1]}: {who} never imports {what}"
    if what == "lab" and who != "cli":
        return f"{one[0]} imports {one[1]}: the lab is for the command line alone"
    if FLOOR[who] > FLOOR[what]:
        return f"{one[0]} imports {one[1]}: that is upwards"
    if {who, what} <= APART:
        return f"{one[0]} imports {one[1]}: these rooms know nothing of one another"
    return ""


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for after in sorted(graph.get(node, ())):
            if found := walk(after, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := walk(node, []))), [])


def name_of(path: Path) -> str:
    return ".".join(("vmgpu", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
IMPORTS = [
    one for module, path in MODULES.items() if "." in module for one in imports(path.read_text(), module, set(MODULES))
]


def test_every_room_has_its_floor() -> None:
    assert {room(module) for module in MODULES if "." in module} <= set(FLOOR)


def test_imports_go_downwards_only() -> None:
    assert [wrong for one in IMPORTS if (wrong := forbidden(one))] == []


def test_no_room_stands_on_itself() -> None:
    rooms: dict[str, set[str]] = defaultdict(set)
    for who, what in IMPORTS:
        if room(who) != room(what):
            rooms[room(who)].add(room(what))
    assert cycle(rooms) == []


def test_no_module_imports_itself_in_the_end() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for who, what in IMPORTS:
        # a package's own name stands for its front; that it gathers its modules there is no circle
        if not who.startswith(f"{what}."):
            modules[who].add(what)
    assert cycle(modules) == []


def test_hostctl_takes_nothing_along() -> None:
    assert [one for one in IMPORTS if one[0].startswith(HOSTCTL + ".") and not one[1].startswith(HOSTCTL)] == []


@pytest.mark.parametrize(
    ("who", "line"),
    [
        ("vmgpu.api.rest", "from vmgpu import lifecycle"),
        ("vmgpu.api.rest", "from vmgpu.hypervisor.kvm import open_kvm"),
        ("vmgpu.api.rest", "def f():\n    import vmgpu.hypervisor.fake"),
        ("vmgpu.placement.policy", "if TYPE_CHECKING:\n    from vmgpu.models import VM"),
        ("vmgpu.hypervisor.kvm", "from vmgpu import db"),
        ("vmgpu.hypervisor.kvm", "from vmgpu import placement"),
        ("vmgpu.guest", "from vmgpu.hypervisor import Pci"),
        ("vmgpu.service.vms", "from vmgpu import worker"),
        ("vmgpu.errors", "from vmgpu.models import VM"),
        ("vmgpu.worker", "from vmgpu.lab import tiny"),
    ],
)
def test_a_wrong_import_is_seen(who: str, line: str) -> None:
    """The walk itself: each of these lines would be found."""
    (one,) = imports(line, who, set(MODULES))
    assert forbidden(one)


def test_a_circle_is_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}}) == []

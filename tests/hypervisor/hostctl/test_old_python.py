"""A host's own Python may be 3.9, and has nothing installed: the package keeps to that."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from vmgpu.hypervisor import hostctl

MODULES = sorted(Path(hostctl.__file__).parent.glob("*.py"))
# what came after 3.9, where a grammar check does not see it
LATER = ("pairwise", "tomllib", "StrEnum", "strict=", "slots=True", "kw_only=True", "ExceptionGroup")


@pytest.mark.parametrize("module", MODULES, ids=lambda each: each.name)
def test_python_3_9(module: Path) -> None:
    source = module.read_text()
    tree = ast.parse(source, feature_version=(3, 9))
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
    if any(isinstance(node, ast.AnnAssign | ast.FunctionDef) for node in ast.walk(tree)):
        assert "from __future__ import annotations" in source  # `int | None` is text there, and no error
    assert not [word for word in LATER if word in source]
    # only annotations may join types with |
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            assert not isinstance(node.args[1], ast.BinOp)


@pytest.mark.parametrize("module", MODULES, ids=lambda each: each.name)
def test_nothing_but_the_standard_library(module: Path) -> None:
    tree = ast.parse(module.read_text())
    tried = {id(node) for each in ast.walk(tree) if isinstance(each, ast.Try) for node in ast.walk(each)}
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or (name == "pynvml" and id(node) in tried), name


def test_no_module_is_long() -> None:
    assert [each.name for each in MODULES if len(each.read_text().splitlines()) > 350] == []


def test_no_shell_and_no_path_of_strangers() -> None:
    sources = {each.name: each.read_text() for each in MODULES}
    assert not [name for name, text in sources.items() if "shell=True" in text or "os.system" in text]
    assert [name for name, text in sources.items() if "subprocess.Popen(" in text] == ["programs.py"]

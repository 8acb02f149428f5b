"""kill -9 after every single step of every state: the next start finds all as it was, and goes on."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vmgpu
from tests.crash_story import MOODS, template
from vmgpu.hypervisor.fake import Mood
from vmgpu.models import VMState

pytestmark = pytest.mark.slow

S1 = ("host h1 A100-40GB", "request s1 3g.20gb", "running s1")
END = ("check", "release s1", "gone s1", "check")
BOTH_END = ("check", "release s1", "release s2", "gone s1", "gone s2", "check")
STEP = ("begin", "worked", "applied")


def vm(state: str, *when: str) -> tuple[str, ...]:
    return tuple(f"vm.{state}.{moment}" for moment in when or STEP)


def of(what: str, *when: str) -> tuple[str, ...]:
    return tuple(f"{what}.{moment}" for moment in when or STEP)


# story: its acts; `arm` is the moment from which the point is deadly, and the points it is played with
STORIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "the first VM of a host": (
        ("arm", *S1, *END),
        (*of("host"), *of("place", "begin", "applied"), *of("copy"), *vm("building")),
    ),
    "a VM beside another": (
        (*S1, "arm", "request s2 3g.20gb", "running s2", *BOTH_END),
        (*vm("carving"), *vm("building"), *vm("booting"), *vm("checking"), *vm("running")),
    ),
    "a reboot": ((*S1, "arm", "reboot s1", "running s1", *END), (*vm("running"), *vm("booting"))),
    "a reset": (
        (*S1, "arm", "reset s1", "running s1", *END),
        (*vm("running", "applied"), *vm("building"), *vm("booting", "worked")),
    ),
    "a stop": ((*S1, "arm", "stop s1", "stopped s1", *END), (*vm("stopping"), *vm("stopped"))),
    "a stop that gives back": (
        (*S1, "arm", "stop s1 release", "stopped s1", "check", "start s1", "running s1", *END),
        (*vm("stopping", "worked", "applied"), *of("place", "begin", "applied")),
    ),
    "a start with its slices": (
        (*S1, "stop s1 keep", "stopped s1", "arm", "start s1", "running s1", *END),
        (*vm("stopped"), *vm("carving", "worked"), *vm("building", "worked"), *vm("booting", "worked")),
    ),
    "a capture": (
        (*S1, "arm", "capture s1 t/x:1", "running s1", "image t/x:1", *END),
        (*vm("capturing"), *of("image"), *vm("booting", "worked")),
    ),
    "a capture of a stopped VM": (
        (*S1, "stop s1", "stopped s1", "arm", "capture s1 t/x:1", "stopped s1", "image t/x:1", *END),
        vm("capturing", "worked", "applied"),
    ),
    "a VM from a captured image": (
        (*S1, "capture s1 t/x:1", "image t/x:1", "arm", "request s2 3g.20gb t/x:1", "running s2", *BOTH_END),
        of("copy"),
    ),
    "a release": ((*S1, "arm", "release s1", "gone s1", "check"), (*vm("running", "worked"), *vm("releasing"))),
    "a release of one that waits": (
        (*S1, "request s2 7g.40gb", "waiting s2", "arm", "release s2", "gone s2", *END),
        vm("pending"),
    ),
    "a card that is not there": (
        ("host h1 A100-40GB", "feel cardless", "arm", "request s1 3g.20gb", "failed s1", *END),
        (*vm("checking", "worked"), *vm("failed")),
    ),
    "another card that is not there": (
        ("host h1 2xA100-40GB", "feel cardless", "arm", "request s1 3g.20gb", "failed s1", *END),
        vm("failed", "worked", "applied"),
    ),
    "a domain undefined by hand": (
        (*S1, "arm", "undefine s1", "lost s1", "check", "start s1", "running s1", *END),
        (*vm("running", "worked"), *vm("lost")),
    ),
    "a host that is removed": (
        (*S1, "release s1", "gone s1", "check", "arm", "unhost h1"),
        of("host", "begin", "worked"),
    ),
}
CASES = [(story, point) for story, (_, points) in STORIES.items() for point in points]
IN_MOODS = ("vm.carving.worked", "vm.building.worked", "vm.booting.worked", "vm.releasing.worked")
BAD = {Mood.cardless: "failed", Mood.mute: "failed"}
MOODY = [(mood.value, point) for mood in Mood if mood is not Mood.cheerful for point in IN_MOODS]


class Zygote:
    """The program, started once; it forks for each life."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lived = folder, dict[tuple[str, ...], Path]()
        first = folder / "first"
        first.mkdir()
        template(first)
        env = {name: value for name, value in os.environ.items() if not name.startswith("VMGPU_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash_story", str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=Path(__file__).parent.parent,
        )

    def life(self, folder: Path, acts: tuple[str, ...], *, point: str = "", mood: str = "cheerful") -> int:
        """Live until the story ends or the point is met; gives the exit code."""
        assert self.process.stdin and self.process.stdout
        told = {"folder": str(folder), "acts": acts, "point": point, "mood": mood}
        self.process.stdin.write(json.dumps(told) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def begun(self, folder: Path, acts: tuple[str, ...]) -> None:
        """Bring a folder to where the story is armed; many stories begin alike, and that is lived only once."""
        before = acts[: acts.index("arm")]
        if not before:
            return
        if before not in self.lived:
            self.lived[before] = self.folder / f"begun-{len(self.lived)}"
            code = self.life(self.lived[before], before)
            assert code == 0, f"it did not begin: {code}: {told(self.lived[before])}"
        shutil.copytree(self.lived[before], folder)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


def dies_and_lives(zygote: Zygote, folder: Path, acts: tuple[str, ...], *, point: str, mood: str) -> None:
    zygote.begun(folder, acts)
    code = zygote.life(folder, acts, point=point, mood=mood)
    assert code == -signal.SIGKILL, f"it did not die at {point}, but with {code}: {told(folder)}"
    code = zygote.life(folder, acts, mood=mood)
    assert code == 0, f"it did not go on: {code}: {told(folder)}"


def told(folder: Path) -> str:
    """What a life that went wrong has to say."""
    files = [folder / name for name in ("why", "done", "log")]
    return "\n".join(f"--- {file.name}\n{file.read_text()[-4000:]}" for file in files if file.exists())


@pytest.mark.parametrize(("story", "point"), CASES)
def test_it_goes_on(zygote: Zygote, tmp_path: Path, story: str, point: str) -> None:
    dies_and_lives(zygote, tmp_path / "data", STORIES[story][0], point=point, mood="cheerful")


@pytest.mark.parametrize(("mood", "point"), MOODY)
def test_it_goes_on_in_every_mood(zygote: Zygote, tmp_path: Path, mood: str, point: str) -> None:
    arrives = BAD.get(Mood(mood), "arrives")
    better = ("feel cheerful",) if mood == "unreachable" else ()
    if point.startswith("vm.releasing"):
        acts: tuple[str, ...] = (*S1, "arm", f"feel {mood}", "release s1", *better, "gone s1", "check")
    else:
        acts = ("host h1 A100-40GB", "arm", f"feel {mood}", "request s1 3g.20gb", *better, f"{arrives} s1", *END)
    dies_and_lives(zygote, tmp_path / "data", acts, point=point, mood=mood)


def test_every_point_of_the_code_is_played() -> None:
    """A new crash point without a story fails here."""
    points: set[str] = set()
    for path in Path(vmgpu.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "crash.point":
                points.add(ast.unparse(node.args[0]).lstrip("f").strip("'"))
    states = [state.value for state in VMState if state is not VMState.gone]
    expanded = {point.replace("{view.state}", state) for point in points for state in states}
    assert {f"vm.{state}.{moment}" for state in states for moment in STEP} <= expanded
    assert expanded == {point for _, point in CASES}


def test_every_mood_is_played() -> None:
    assert {mood for mood, _ in MOODY} == {mood.value for mood in Mood} - {"cheerful"}
    assert set(MOODS) <= set(Mood)

"""What takes minutes is made once, whole or not at all."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from vmgpu.errors import SetupError
from vmgpu.lab import cache


def test_two_builders_at_once_build_once(tmp_path: Path) -> None:
    target, built = tmp_path / "shelf" / "image", []

    def build(made: Path) -> None:
        built.append(1)
        time.sleep(0.2)
        made.write_text("whole")

    builders = [threading.Thread(target=cache.ensure, args=(target, build)) for _ in range(4)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert (target.read_text(), len(built)) == ("whole", 1)


def test_a_build_that_fails_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    target = tmp_path / "image"

    def half(made: Path) -> None:
        made.write_text("half")
        raise SetupError("the disk is full")

    with pytest.raises(SetupError):
        cache.ensure(target, half)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []
    assert cache.ensure(target, lambda made: made.mkdir()).is_dir()


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    (tmp_path / "image").touch()
    cache.ensure(tmp_path / "image", lambda _: pytest.fail("built again"))


def test_what_qemu_must_read_is_not_hidden_by_the_folder_it_was_made_in(tmp_path: Path) -> None:
    folder = cache.ensure(tmp_path / "kernel", lambda made: made.mkdir())
    assert folder.stat().st_mode & 0o055 == 0o055


def test_every_part_of_a_recipe_counts_and_so_do_its_borders() -> None:
    names = {cache.recipe_hash(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("ab", "d"))}
    assert len(names) == 4


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "shelf").write_text("a file where the folder should be")
    with pytest.raises(SetupError, match="cannot be written") as refusal:
        cache.ensure(tmp_path / "shelf" / "image", lambda made: made.touch())
    assert "VMGPU_CACHE_DIR" in refusal.value.hint


def test_a_program_prints_the_path_or_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(progress: cache.Progress) -> Path:
        progress("half way")
        return tmp_path

    def broken(progress: cache.Progress) -> Path:
        raise SetupError("the disk is full", hint="Free some.")

    assert cache.show("an image", build) == 0
    assert capsys.readouterr() == (f"{tmp_path}\n", "an image: half way\n")
    assert cache.show("an image", broken) == 1
    assert capsys.readouterr() == ("", "error: the disk is full\nFree some.\n")

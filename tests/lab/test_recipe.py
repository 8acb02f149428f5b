"""The guest's recipe: this machine's distribution, its own archives only, modules in an order that loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from vmgpu.errors import SetupError
from vmgpu.lab import guestimage, recipe, tiny

TRIXIE = recipe.Distribution("debian", "trixie", "linux-image-cloud-amd64")


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        (
            'ID=debian\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
            "linux-image-cloud-amd64",
        ),
        ("ID=debian\nVERSION_CODENAME=trixie\n", "linux-image-cloud-amd64"),
        ('ID=ubuntu\nVERSION_CODENAME="noble"\n', "linux-image-virtual"),
    ],
)
def test_the_three_distributions_are_known(tmp_path: Path, text: str, kernel: str) -> None:
    (tmp_path / "os-release").write_text(text)
    assert guestimage.this_distribution(tmp_path / "os-release").kernel == kernel


def test_another_system_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=fedora\nPRETTY_NAME="Fedora Linux 42"\n')
    with pytest.raises(SetupError, match="Fedora Linux 42") as refusal:
        guestimage.this_distribution(tmp_path / "os-release")
    assert "Debian 12" in refusal.value.hint


def test_only_the_distributions_own_archives_go_into_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = """\
http://a.invalid/debian/|trixie|main|/usr/share/keyrings/k.gpg|amd64|Debian
http://a.invalid/debian/|trixie|main|/usr/share/keyrings/k.gpg|i386|Debian
http://a.invalid/debian-security/|trixie-security|main|$(SIGNED_BY)|amd64|Debian
http://a.invalid/debian/|trixie-backports|main|$(SIGNED_BY)|amd64|Debian
http://b.invalid/tool/|trixie|main|/etc/apt/keyrings/b.gpg|amd64|Somebody
http://c.invalid/debian/|sid|main|$(SIGNED_BY)|amd64|Debian
"""
    monkeypatch.setattr(guestimage, "run", lambda *_, **__: lines)
    assert list(guestimage.own_sources(TRIXIE)) == [
        "deb [signed-by=/usr/share/keyrings/k.gpg] http://a.invalid/debian/ trixie main",
        "deb http://a.invalid/debian-security/ trixie-security main",
    ]


def test_a_proxy_of_the_machine_is_used_for_the_guests_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'Acquire "";\nAcquire::http::Proxy "http://p.invalid:3142";\nAcquire::https::Proxy "";\nDpkg::Options "x";\n'
    monkeypatch.setattr(guestimage, "run", lambda *_, **__: said)
    assert guestimage.apt_network_options() == ['Acquire::http::Proxy "http://p.invalid:3142";']


def test_modules_come_after_what_they_need_whatever_they_are_packed_with(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "k/virtio_net.ko.xz: k/net_failover.ko.xz k/failover.ko.xz k/virtio.ko.xz\n"
        "k/net_failover.ko.xz: k/failover.ko.xz\nk/failover.ko.xz:\nk/virtio.ko.xz:\n"
        "k/virtio-rng.ko.xz: k/virtio.ko.xz\n"
    )
    order = [path.name for path in tiny._with_needs(("virtio_net", "virtio_rng", "built_in"), tmp_path)]
    assert order == [f"{name}.ko.xz" for name in ("virtio", "failover", "net_failover", "virtio_net", "virtio-rng")]


def test_a_service_moved_behind_sshd_keeps_its_command_and_loses_its_early_order(tmp_path: Path) -> None:
    unit = tmp_path / "lib/systemd/system/r.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\nDefaultDependencies=no\nBefore=network.target\n[Service]\nExecStart=/r\n")
    wants = tmp_path / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir(parents=True)
    (wants / "r.service").symlink_to(unit)
    guestimage._start_later(tmp_path, "r.service")
    text = (tmp_path / "etc/systemd/system/r.service").read_text()
    assert "ExecStart=/r" in text
    assert "After=ssh.service" in text
    assert "network.target" not in text
    assert not (wants / "r.service").is_symlink()
    assert (tmp_path / "etc/systemd/system/multi-user.target.wants/r.service").is_symlink()


def test_no_boot_waits_for_a_resolver_that_waits_for_it() -> None:
    """Netplan 1.1 has networkd wait for name servers as well, whose program comes after sshd here."""
    (path,) = (Path(each) for each in recipe.FILES if "wait-online" in each)
    assert path.name > "10-netplan.conf" and path.parent.name == "systemd-networkd-wait-online.service.d"
    first, *runs = [line for line in recipe.FILES[str(path)].splitlines() if line.startswith("ExecStart=")]
    assert first == "ExecStart=" and len(runs) == 1 and "--dns" not in runs[0]

"""Guests as they are: a real sshd with made-up programs behind it, and servers in bad moods."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vmgpu import guest, sshkeys
from vmgpu.errors import HostUnreachable, ReasonCode
from vmgpu.guest import Card, EmulatedCard, PciCard, facts

HOST, OURS = sshkeys.make_pair("guest"), sshkeys.make_pair("ours")
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


class Guest:
    """A folder that the probe takes for a guest's root, and an sshd in front of it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.bin, self.root = folder, folder / "bin", folder / "root"
        self.door = guest.Door("127.0.0.1", port, getpass.getuser(), OURS.private, HOST.public)

    def empty(self) -> None:
        for place in (self.bin, self.root, self.folder / "lib"):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        self.program("systemctl", "exit 0")  # the machine that runs the tests may have failed units of its own

    def program(self, name: str, body: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.bin / name).chmod(0o755)

    def file(self, path: str, content: str | bytes) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        half = place.with_name("half")
        half.write_bytes(content.encode() if isinstance(content, str) else content)
        half.replace(place)  # as cloud-init does: nobody reads half a file

    def ended(self, errors: tuple[str, ...] = (), recoverable: dict[str, list[str]] | None = None) -> None:
        source = "DataSourceNoCloud [seed=/dev/vdb][dsmode=net]"
        stage = {"errors": list(errors), "recoverable_errors": recoverable or {}, "finished": 2.0, "start": 1.0}
        status = {"datasource": source, "stage": None, "init": stage, "modules-final": {"errors": []}}
        self.file("run/cloud-init/status.json", json.dumps({"v1": status}))
        self.file("run/cloud-init/result.json", json.dumps({"v1": {"datasource": source, "errors": list(errors)}}))

    def device(self, slot: str, vendor: str, device: str, *bars: str) -> None:
        lines = [*bars, *["0x0 0x0 0x0"] * (13 - len(bars))]
        for name, text in {"vendor": vendor, "device": device, "class": "0x038000"}.items():
            self.file(f"sys/bus/pci/devices/{slot}/{name}", f"{text}\n")
        self.file(f"sys/bus/pci/devices/{slot}/resource", "".join(f"{line}\n" for line in lines))

    def check(self, want: guest.CardWant | None = None, timeout: float = 25) -> guest.Checked:
        return guest.check(self.door, want, timeout=timeout, sysroot=str(self.root))

    def failure(self, want: guest.CardWant | None = None) -> Any:
        with pytest.raises(guest.CheckFailed) as failed:
            self.check(want)
        return failed.value.reason


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    if not SSHD:
        pytest.fail("no sshd here: make setup installs openssh-server")
    folder = tmp_path_factory.mktemp("guest")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "host_key").write_text(HOST.private)
    (folder / "host_key").chmod(0o600)
    (folder / "authorized_keys").write_text(OURS.public)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
        f"SetEnv PATH={folder}/bin:/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH={folder}/lib\n"
    )
    with (folder / "log").open("w") as log:
        daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=log)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert daemon.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield Guest(folder, port)
    finally:
        daemon.terminate()
        daemon.wait(10)


@pytest.fixture
def inside(sshd: Guest) -> Guest:
    sshd.empty()
    return sshd


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    threads, sockets = set(threading.enumerate()), _sockets()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(0.5)  # a cancelled timer needs a moment
    assert set(threading.enumerate()) <= threads
    assert _sockets() <= sockets


def _sockets() -> set[str]:
    links = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(str(link.readlink()))
    return {link for link in links if link.startswith("socket:")}


# --- the door


def test_a_script_runs_with_its_arguments(inside: Guest) -> None:
    ran = guest.run(inside.door, 'echo "$1 $2"; echo wrong >&2; exit 3', arguments=("a", "b/c"))
    assert (ran.code, sorted(ran.text.split("\n"))) == (3, ["", "a b/c", "wrong"])


def test_a_word_that_a_shell_would_read_is_not_sent(inside: Guest) -> None:
    with pytest.raises(ValueError, match="no plain word"):
        guest.run(inside.door, "true", arguments=("$(id)",))


def test_a_script_that_does_not_end_is_left(inside: Guest) -> None:
    began = time.monotonic()
    with pytest.raises(guest.NotYet) as late:
        guest.run(inside.door, "sleep 20", timeout=3)
    assert late.value.verdict.args["detail"] == "the script did not end in time"
    assert time.monotonic() - began < 10


def test_output_without_end_is_cut(inside: Guest) -> None:
    ran = guest.run(inside.door, "head -c 5000000 /dev/zero | tr '\\0' x", timeout=30)
    assert 2**20 <= len(ran.text) < 2**21


def test_a_script_whose_connection_dies_is_not_done(inside: Guest) -> None:
    with pytest.raises(guest.NotYet) as dropped:
        guest.run(inside.door, "kill -9 $PPID", timeout=10)
    assert dropped.value.verdict.code is ReasonCode.ssh_no_answer


def test_the_pinned_key_is_met_without_a_login(inside: Guest) -> None:
    stranger = dataclasses.replace(inside.door, private_key="", user="nobody")
    assert guest.host_key_matches(stranger)
    assert not guest.host_key_matches(dataclasses.replace(stranger, host_key=OURS.public))


def test_another_machine_is_never_entered(inside: Guest) -> None:
    inside.door = dataclasses.replace(inside.door, host_key=OURS.public)
    try:
        assert inside.failure().code is ReasonCode.ssh_wrong_host_key
    finally:
        inside.door = dataclasses.replace(inside.door, host_key=HOST.public)


def test_a_refused_key_may_be_taken_later(inside: Guest) -> None:
    stranger = dataclasses.replace(inside.door, private_key=HOST.private)
    with pytest.raises(guest.NotYet) as refused:
        guest.run(stranger, "true", timeout=10)
    assert refused.value.verdict.code is ReasonCode.ssh_key_refused


def test_a_dialled_socket_is_used_and_closed(inside: Guest) -> None:
    dialled: list[socket.socket] = []

    def dial(address: str, port: int) -> socket.socket:
        assert (address, port) == ("10.9.9.9", 22)
        dialled.append(socket.create_connection(("127.0.0.1", inside.door.port)))
        return dialled[0]

    door = dataclasses.replace(inside.door, address="10.9.9.9", port=22, dial=dial)
    assert guest.run(door, "echo in").text == "in\n"
    assert dialled[0].fileno() == -1


def test_an_unreachable_host_is_not_taken_for_a_silent_guest(inside: Guest) -> None:
    def dial(address: str, port: int) -> None:
        raise HostUnreachable("h1")

    with pytest.raises(HostUnreachable):
        guest.host_key_matches(dataclasses.replace(inside.door, dial=dial))


@contextlib.contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[guest.Door]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                caller, _ = listener.accept()
                with caller:
                    talk(caller)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield guest.Door("127.0.0.1", listener.getsockname()[1], "x", OURS.private, HOST.public)
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)


def _drip(caller: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for _ in range(100):
            caller.sendall(b"x")
            time.sleep(0.1)


def _until_closed(caller: socket.socket) -> None:
    while caller.recv(4096):
        pass


def _banner_only(caller: socket.socket) -> None:
    caller.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    _until_closed(caller)


MOODS: dict[str, Callable[[socket.socket], None]] = {
    "closes at once": lambda caller: None,
    "never speaks": _until_closed,
    "speaks HTTP": lambda caller: caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "prints for ever": lambda caller: caller.sendall(b"garbage\r\n" * 100_000),
    "drips without a line's end": _drip,
    "stops after the banner": _banner_only,
    "breaks the exchange": lambda caller: caller.sendall(b"SSH-2.0-x\r\n" + b"\xff" * 64),
    "resets": lambda caller: caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"),
}


@pytest.mark.parametrize("mood", MOODS)
def test_a_server_in_a_bad_mood_is_not_there_yet(mood: str) -> None:
    began = time.monotonic()
    with server(MOODS[mood]) as door:
        with pytest.raises(guest.NotYet) as silent:
            guest.host_key_matches(door, timeout=1)
        assert time.monotonic() - began < 8
    assert silent.value.reason.code is ReasonCode.waiting_ssh
    assert silent.value.verdict.code is ReasonCode.ssh_no_answer
    assert silent.value.verdict.args["detail"]


def test_a_closed_port_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(guest.NotYet) as closed:
        guest.host_key_matches(guest.Door("127.0.0.1", port, "x", OURS.private, HOST.public))
    assert closed.value.verdict.args == {"address": "127.0.0.1", "detail": "Connection refused"}


# --- cloud-init


def test_done_by_its_files(inside: Guest) -> None:
    inside.ended()
    inside.program("cloud-init", "exit 99")  # not asked: it would be Python, and slow
    assert inside.check() == guest.Checked(card="none", cloud_init="done")


def test_waits_inside_the_guest_until_done(inside: Guest) -> None:
    inside.file("run/cloud-init/status.json", "{}")
    threading.Timer(1.5, inside.ended).start()
    assert inside.check(timeout=45).cloud_init == "done"


def test_warnings_are_kept(inside: Guest) -> None:
    inside.ended(recoverable={"WARNING": ["could not grow /"], "DEPRECATED": ["old key"]})
    checked = inside.check()
    assert checked.cloud_init == "degraded"
    assert checked.warnings == ("warning: could not grow /", "deprecated: old key")


def test_an_error_is_told_with_its_words(inside: Guest) -> None:
    inside.ended(errors=("('ssh', OSError(28))",))
    failed = inside.failure()
    assert (failed.code, failed.args["detail"]) == (ReasonCode.cloud_init_error, "('ssh', OSError(28))")


def test_a_guest_without_its_seed_is_named(inside: Guest) -> None:
    inside.file("run/cloud-init/result.json", '{"v1": {"datasource": "DataSourceNone", "errors": ["x"]}}')
    assert inside.failure().code is ReasonCode.seed_not_found


def test_a_crashed_unit_is_an_error_though_no_file_says_so(inside: Guest) -> None:
    inside.file("run/cloud-init/status.json", "{}")
    inside.program("systemctl", "echo cloud-final.service loaded failed failed Cloud-init: Final Stage")
    assert inside.failure().args["detail"] == "cloud-final.service failed"


@pytest.mark.parametrize(
    ("program", "cloud_init", "warnings"),
    [
        ("""echo '{"status": "done", "datasource": "nocloud", "errors": []}'""", "done", ()),
        (
            """echo '{"status": "done", "recoverable_errors": {"WARNING": ["w"]}, "errors": []}'; exit 2""",
            "degraded",
            ("warning: w",),
        ),
        ("""echo '{"status": "done"}'; exit 2""", "degraded", ("cloud-init ended degraded",)),
        ('[ "$2" = --long ] || exit 2; echo status: done; echo detail:; echo DataSourceNoCloud', "done", ()),
    ],
)
def test_the_program_is_asked_where_files_do_not_tell(
    inside: Guest, program: str, cloud_init: str, warnings: tuple[str, ...]
) -> None:
    inside.program("cloud-init", program)
    checked = inside.check()
    assert (checked.cloud_init, checked.warnings) == (cloud_init, warnings)


@pytest.mark.parametrize(
    ("program", "code", "detail"),
    [
        ("""echo '{"status": "error", "errors": ["a", "b"]}'; exit 1""", ReasonCode.cloud_init_error, "a; b"),
        ("""echo '{"status": "error", "detail": "unit"}'; exit 1""", ReasonCode.cloud_init_error, "unit"),
        ('[ "$2" = --long ] || exit 2; echo status: error; echo detail:; echo why', ReasonCode.cloud_init_error, "why"),
        ("""echo '{"status": "done", "datasource": "none"}'""", ReasonCode.seed_not_found, None),
    ],
)
def test_the_program_tells_of_errors(inside: Guest, program: str, code: ReasonCode, detail: str | None) -> None:
    inside.program("cloud-init", program)
    failed = inside.failure()
    assert (failed.code, failed.args.get("detail")) == (code, detail)


@pytest.mark.parametrize("said", ['echo \'{"status": "running"}\'', "echo status: not run", "exit 1"])
def test_what_still_runs_is_waited_for(inside: Guest, said: str) -> None:
    inside.program("cloud-init", said)
    with pytest.raises(guest.NotYet) as running:
        inside.check()
    assert running.value.reason.code is ReasonCode.waiting_cloud_init


def test_what_its_files_show_running_is_not_asked(inside: Guest) -> None:
    inside.file("run/cloud-init/status.json", "{}")
    inside.program("cloud-init", """echo '{"status": "done"}'""")
    with pytest.raises(guest.NotYet):
        inside.check()


def test_a_guest_whose_user_removed_cloud_init_is_usable(inside: Guest) -> None:
    assert inside.check().warnings == ("cloud-init is not installed: nothing of the seed was applied at this boot",)
    inside.program("cloud-init", "exit 1")
    inside.file("etc/cloud/cloud-init.disabled", "")
    assert inside.check().cloud_init == "degraded"


# --- cards

EMULATED = EmulatedCard(video_mib=64, label="vmgpu emulated A100-40GB 3g.20gb 20480 MiB")
A100 = PciCard(("10de:20b0",), bars_mib=(16, 65536, 32), memory_mib=40960)
A100_BARS = (
    "0x00000000fd000000 0x00000000fdffffff 0x0000000000040200",
    "0x0000008000000000 0x0000008fffffffff 0x000000000014220c",
    "0x0000000000000000 0x0000000000000000 0x0000000000000000",
    "0x0000009000000000 0x0000009001ffffff 0x000000000014220c",
)
NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000"


def smbios(*strings: str) -> bytes:
    system = b"\x01\x06\x00\x01\x01\x02Maker\0Thing\0\0"
    oem = b"\x0b\x05\x01\x01" + bytes([len(strings)]) + b"".join(s.encode() + b"\0" for s in strings) + b"\0"
    return system + b"\x20\x04\x02\x01\0\0" + oem + b"\x7f\x04\xff\xff\0\0"


def bochs(inside: Guest, mib: int = 64, start: int = 0xC0000000) -> None:
    inside.ended()
    inside.device("0000:00:01.0", "0x1234", "0x1111", f"{start:#x} {start + mib * 2**20 - 1:#x} 0x42208")
    inside.device("0000:00:02.0", "0x1af4", "0x1041", NO_BAR, "0xfe000000 0xfe000fff 0x40200")


def test_an_emulated_card_is_known_by_its_memory_and_its_label(inside: Guest) -> None:
    bochs(inside)
    inside.file("sys/firmware/dmi/tables/DMI", smbios("other", EMULATED.label))
    checked = inside.check(EMULATED)
    assert checked.card == Card.seen
    assert checked.detail.startswith("emulated: PCI 1234:1111, 64 MiB")


def test_an_emulated_card_that_differs_is_told(inside: Guest) -> None:
    inside.ended()
    assert inside.failure(EMULATED).code is ReasonCode.card_missing
    bochs(inside)
    assert "SMBIOS" in inside.failure(EMULATED).args["wanted"]
    bochs(inside, mib=32)
    assert inside.failure(EMULATED).args == {"seen_mib": 32, "wanted_mib": 64}
    bochs(inside, start=0)
    assert inside.failure(EMULATED).code is ReasonCode.card_unassigned


def test_a_card_without_a_driver_is_seen(inside: Guest) -> None:
    inside.ended()
    inside.device("0000:07:00.0", "0x10de", "0x20b0", *A100_BARS)
    checked = inside.check(dataclasses.replace(A100, cuda=True))
    assert checked.card == Card.seen
    assert "no nvidia-smi" in checked.warnings[0]


@pytest.mark.parametrize(
    ("bars", "code", "bar"),
    [
        ((A100_BARS[0], NO_BAR, NO_BAR, A100_BARS[3]), ReasonCode.card_unassigned, "of 65536 MiB"),
        ((A100_BARS[0], "0x0 0xfffffffff 0x14220c", NO_BAR, A100_BARS[3]), ReasonCode.card_unassigned, 1),
        ((), ReasonCode.card_unassigned, "of 16 MiB"),
    ],
)
def test_a_bar_without_an_address_is_told(inside: Guest, bars: tuple[str, ...], code: ReasonCode, bar: Any) -> None:
    inside.ended()
    inside.device("0000:07:00.0", "0x10de", "0x20b0", *bars)
    failed = inside.failure(A100)
    assert (failed.code, failed.args["bar"]) == (code, bar)


def test_a_card_that_is_not_there_is_told(inside: Guest) -> None:
    inside.ended()
    inside.device("0000:07:00.0", "0x10de", "0x20b0", *A100_BARS)
    assert inside.failure(PciCard(("10DE:20b0", "10de:1aef"))).args["wanted"] == "PCI 10de:1aef"
    assert inside.failure(PciCard(())).code is ReasonCode.card_missing


def test_another_makers_card_is_seen_without_a_driver_being_asked(inside: Guest) -> None:
    inside.ended()
    inside.device("0000:07:00.0", "0x1002", "0x5159", "0xf0000000 0xf7ffffff 0x42208", "0xc000 0xc0ff 0x40101")
    inside.program("nvidia-smi", "exit 9")
    assert inside.check(PciCard(("1002:5159",), bars_mib=(128,))).card == Card.seen


def with_driver(inside: Guest, smi: str) -> None:
    inside.ended()
    inside.device("0000:07:00.0", "0x10de", "0x20b0", *A100_BARS)
    inside.program("nvidia-smi", smi)


def test_a_card_whose_driver_answers_works(inside: Guest) -> None:
    with_driver(inside, 'echo "40442 MiB, NVIDIA A100-PCIE-40GB"')
    checked = inside.check(A100)
    assert (checked.card, checked.warnings) == (Card.works, ())
    assert "40442 MiB" in checked.detail


def test_a_driver_that_tells_no_memory_proves_less(inside: Guest) -> None:
    with_driver(inside, 'echo "[Insufficient Permissions], A100"')
    checked = inside.check(A100)
    assert (checked.card, checked.warnings) == (Card.seen, ("nvidia-smi does not tell the card's memory",))


SMI_Q = """
==============NVSMI LOG==============
GPU 00000000:07:00.0
    Product Name                          : NVIDIA L40S-4Q
    vGPU Software Licensed Product
        Product Name                      : NVIDIA RTX Virtual Workstation
        License Status                    : {}
    GPU Reset Status
"""


@pytest.mark.parametrize(
    "status", ["Licensed (Expiry: 2030-3-1 10:0:0 GMT)", "Unlicensed (Unrestricted)", "Unlicensed (Restricted)"]
)
def test_the_licence_is_what_the_guests_driver_says(inside: Guest, status: str) -> None:
    inside.program("nvidia-smi", f"cat <<'TEXT'\n{SMI_Q.format(status)}TEXT")
    assert guest.licence(inside.door) == status


def test_of_two_vgpus_the_one_without_a_licence_counts() -> None:
    both = SMI_Q.format("Licensed (Expiry: 2030-3-1 10:0:0 GMT)") + SMI_Q.format("Unlicensed (Restricted)")
    assert facts.look_at_licence(both) == "Unlicensed (Restricted)"


@pytest.mark.parametrize("smi", ["exit 9", "echo License Status", f"cat <<'TEXT'\n{SMI_Q.format('')}TEXT"])
def test_a_driver_that_says_nothing_of_a_licence_is_not_unlicensed(inside: Guest, smi: str) -> None:
    inside.program("nvidia-smi", smi)
    assert guest.licence(inside.door) is None


def test_half_a_character_is_no_text(inside: Guest) -> None:
    inside.ended(recoverable={"WARNING": ["bad \ud800 end"]})
    assert inside.check().warnings == ("warning: bad ? end",)


def test_warnings_have_an_end(inside: Guest) -> None:
    inside.ended(recoverable={"WARNING": [f"no {number}" for number in range(90)]})
    warnings = inside.check().warnings
    assert (len(warnings), warnings[-1]) == (21, "and 70 more")


def test_a_card_with_too_little_memory_is_told(inside: Guest) -> None:
    with_driver(inside, 'echo "20000 MiB, GRID A100-20C"')
    assert inside.failure(A100).args == {"seen_mib": 20000, "wanted_mib": 40960}


@pytest.mark.parametrize("smi", ["echo No devices were found; exit 6", "echo No devices were found", "exit 9"])
def test_a_driver_that_fails_is_told(inside: Guest, smi: str) -> None:
    with_driver(inside, smi)
    failed = inside.failure(A100)
    assert failed.code is ReasonCode.driver_failed
    assert failed.args["detail"].startswith("nvidia-smi: ")


CUDA = """
#include <string.h>
#define OK(name, ...) int name(__VA_ARGS__) { return 0; }
static unsigned char memory[4 << 20];
OK(cuInit, unsigned flags)
OK(cuDeviceGet, int *device, int number)
OK(cuDevicePrimaryCtxRetain, void **context, int device)
OK(cuCtxSetCurrent, void *context)
OK(cuMemFree_v2, unsigned long long place)
OK(cuDevicePrimaryCtxRelease_v2, int device)
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuGetErrorName(int code, const char **text) { *text = "CUDA_ERROR_OUT_OF_MEMORY"; return 0; }
int cuMemAlloc_v2(unsigned long long *place, size_t size) { *place = (unsigned long long)memory; return ALLOC; }
int cuMemsetD32_v2(unsigned long long place, unsigned value, size_t count) {
  for (size_t i = 0; i < count; i++) ((unsigned *)place)[i] = value + FLAW;
  return 0;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) { memcpy(to, (void *)from, size); return 0; }
"""


@pytest.mark.parametrize(
    ("made", "detail"),
    [
        ("-DCOUNT=1 -DALLOC=0 -DFLAW=0", None),
        ("-DCOUNT=0 -DALLOC=0 -DFLAW=0", "no CUDA device"),
        ("-DCOUNT=1 -DALLOC=2 -DFLAW=0", "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"),
        ("-DCOUNT=1 -DALLOC=0 -DFLAW=1", "device 0 did not keep what was written to its memory"),
        ("", "libcuda.so.1: cannot open shared object file"),
    ],
)
def test_cuda_is_tried_by_using_the_memory(inside: Guest, made: str, detail: str | None) -> None:
    with_driver(inside, 'echo "40960 MiB, A100"')
    if made:
        command = ["gcc", "-shared", "-fPIC", "-xc", "-", *made.split(), "-o", inside.folder / "lib/libcuda.so.1"]
        subprocess.run(command, input=CUDA, text=True, check=True, timeout=60)
    want = dataclasses.replace(A100, cuda=True)
    if detail is None:
        assert inside.check(want).detail.endswith("CUDA works")
    else:
        assert inside.failure(want).args["detail"].startswith(detail)


# --- readings


@pytest.mark.parametrize(
    ("csv", "memory"),
    [
        ("40960 MiB, A100", (40960,)),
        ("40960, A100", (40960,)),
        ("80 GiB, H100\n81559 MiB, H100\n", (81920, 81559)),
        ("[N/A], GB10\n[Unknown Error], X\n[Insufficient Permissions], Y", (None, None, None)),
        ("No devices were found", ()),
        ("", ()),
    ],
)
def test_memory_as_nvidia_smi_tells_it(csv: str, memory: tuple[int | None, ...]) -> None:
    assert facts.read_memory(csv) == memory


@pytest.mark.parametrize("table", [b"", b"\x0b", b"\x0b\x05\x01\x01\x01abc", b"\x0b\x02\0\0\0\0", smbios()[:-9]])
def test_a_broken_table_has_no_strings(table: bytes) -> None:
    assert facts.read_oem_strings(table.hex(" ")) in ((), ("",))
    assert facts.read_oem_strings("zz") == ()


def test_an_answer_without_its_end_is_none() -> None:
    with pytest.raises(facts.Unfinished):
        facts.parts_of("=== vmgpu absent\n")


def test_a_console_shows_that_there_was_no_seed() -> None:
    assert guest.says_no_seed(b"Cloud-init v. 22.4.2 finished at Mon. Datasource DataSourceNone.  Up 30 seconds")
    assert not guest.says_no_seed(b"finished. Datasource DataSourceNoCloud [seed=/dev/vdb][dsmode=net].")

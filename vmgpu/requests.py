"""What people send us: every check of a value lives here. The same shapes are the REST bodies."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vmgpu import placement
from vmgpu.errors import VmgpuError
from vmgpu.models import OnStop
from vmgpu.units import parse_duration, parse_mib

_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_USER = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}", re.ASCII)
_IMAGE = re.compile(
    r"[a-z0-9][a-z0-9._-]{0,63}(/[a-z0-9][a-z0-9._-]{0,63})*(:[A-Za-z0-9][A-Za-z0-9._-]{0,63})?", re.ASCII
)
_LABEL = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}", re.ASCII)
_HOST_KEY = re.compile(r"([!-~]+ )?[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( [ -~]*)?", re.ASCII)
_LEAST_MIB, _MOST_MIB = 128, 16 * 1024 * 1024
_BRIDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}", re.ASCII)


def _matching(pattern: re.Pattern[str], rule: str) -> Callable[[str], str]:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(rule)
        return value

    return check


def _pattern(value: str) -> str:
    if not _HOSTNAME.fullmatch(value.replace("{n}", "1")) or value.count("{n}") > 1:
        raise ValueError("a VM name has small letters, digits and hyphens, 1 to 63 of them, and {n} at most once")
    return value


def _said(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """A parser of text whose refusal becomes pydantic's."""

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except VmgpuError as bad:
            raise ValueError(f"{bad.message}. {bad.hint}") from None

    return check


def _memory(value: Any) -> Any:
    """MiB; who writes 8 mostly means 8g, and is told so."""
    mib = _said(lambda text: parse_mib(text, bare="m"))(value)
    if not isinstance(mib, int) or isinstance(mib, bool):
        return mib
    if mib < _LEAST_MIB:
        meant = f". Did you mean {mib}g?" if str(value).strip() == str(mib) and mib > 0 else ""
        raise ValueError(f"{mib} MiB is too little, the least is {_LEAST_MIB} MiB{meant}")
    if mib > _MOST_MIB:
        raise ValueError(f"at most {_MOST_MIB // 1024**2} TiB")
    return mib


def _share(parse: Callable[[str], Fraction]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        text = str(value)
        _said(parse)(text)
        return text.strip()

    return check


def _profile(value: str) -> str:
    # NVIDIA's newer boards have blanks in their names: RTX Pro 6000 Blackwell DC-24Q
    if len(value) > 60 or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+_-]*( [A-Za-z0-9.+_-]+)*", value):
        raise ValueError("a profile is the vendor's name for a size, like 1g.10gb, or whole")
    return value


def _uri(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme == "fake" or value == "qemu:///system":
        return value
    plain = re.fullmatch(r"[A-Za-z0-9._@:\[\]][A-Za-z0-9._@:\[\]-]*", parts.netloc) and not parts.password
    if parts.scheme == "qemu+ssh" and parts.hostname and parts.path == "/system" and not parts.query and plain:
        return value
    raise ValueError("a host is qemu:///system, qemu+ssh://USER@HOST/system or fake://8xA100-80GB")


def _not_setup(value: str) -> str:
    if value == "setup":
        raise ValueError("no host is called setup: that address is the setup script's")
    return value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("control characters are not allowed")
    return value


HostName = Annotated[
    str,
    AfterValidator(_matching(_HOSTNAME, "a host name has small letters, digits and hyphens")),
    AfterValidator(_not_setup),
]
UserName = Annotated[
    str, AfterValidator(_matching(_USER, "a user name has small letters, digits and . _ @ + -, at most 64 of them"))
]
FlavorName = Annotated[
    str, AfterValidator(_matching(_LABEL, "a flavor name has small letters, digits, dots and hyphens"))
]
ImageName = Annotated[str, AfterValidator(_matching(_IMAGE, "an image name is like team/name:tag, in small letters"))]
HostKey = Annotated[
    str,
    Field(max_length=4000),
    AfterValidator(
        _matching(_HOST_KEY, "a host key is one line: TYPE BASE64, as ssh-keyscan prints it behind the name")
    ),
]
DeviceId = Annotated[
    str, AfterValidator(_matching(re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}"), "a PCI id is VENDOR:DEVICE, like 1234:1111"))
]
ParentName = Annotated[
    str,
    AfterValidator(_matching(re.compile(r"[A-Za-z0-9_-]{1,64}"), "a parent is a name in /sys/class/mdev_bus")),
]
LicenceServer = Annotated[
    str,
    AfterValidator(
        _matching(re.compile(r"([A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?)?"), "a licence server is NAME or NAME:PORT")
    ),
]
LicenceToken = Annotated[
    str,
    Field(max_length=32768),
    AfterValidator(str.strip),
    AfterValidator(
        _matching(
            re.compile(r"[A-Za-z0-9._=+/-]*"),
            "a client configuration token is one word, as the licence server's page gives it in a .tok file",
        )
    ),
]
NamePattern = Annotated[str, Field(max_length=63), AfterValidator(_pattern)]
Memory = Annotated[int, BeforeValidator(_memory), Field(ge=_LEAST_MIB, le=_MOST_MIB)]
Disk = Annotated[int, BeforeValidator(_said(lambda text: -(-parse_mib(text, bare="g") // 1024))), Field(ge=1, le=65536)]
Vcpus = Annotated[int, Field(ge=1, le=1024)]
Fgpu = Annotated[str, BeforeValidator(_share(placement.parse_fgpu))]
Unit = Annotated[str, BeforeValidator(_share(placement.parse_unit))]
Profile = Annotated[str, AfterValidator(_profile)]
Span = Annotated[timedelta, BeforeValidator(_said(parse_duration)), Field(gt=timedelta(0), le=timedelta(days=36500))]
Word = Annotated[str, Field(max_length=200), AfterValidator(_printable)]


_SPAN = "like 30m, 8h or 7d, or seconds as a number"


class Body(BaseModel):
    """A REST body: frozen, and unknown fields are refused rather than ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class VMRequest(Body):
    """1..N virtual machines in one call."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "s{n}", "count": 3, "flavor": "half-a100", "image": "base", "lease": "8h", "members": ["anna"]}
            ]
        }
    )
    name: NamePattern = Field(description="A name, or a pattern with {n} for the number")
    count: int = Field(default=1, ge=1, le=10_000, description="How many; each has its own row")
    flavor: FlavorName
    image: Word = Field(description="An image's name or id")
    owner: UserName | None = Field(default=None, description="Whose it is; you, unless an admin says otherwise")
    members: tuple[UserName, ...] = Field(default=(), max_length=200, description="Who uses each VM, beside the owner")
    lease: Span | None = Field(default=None, description=f"How long, from the moment it has its place; {_SPAN}")
    on_stop: OnStop | None = Field(default=None, description="What a stop does with the slices; else the flavor's way")

    @model_validator(mode="after")
    def _short_enough(self) -> VMRequest:
        if not _HOSTNAME.fullmatch(longest := self._name(self.count)):
            raise ValueError(f"a VM name has at most 63 characters, and {longest} is {len(longest)} long")
        return self

    def names(self) -> list[str]:
        """The name of each VM; numbers are added where the pattern has none."""
        return [self._name(number) for number in range(1, self.count + 1)]

    def _name(self, number: int) -> str:
        pattern = self.name if "{n}" in self.name or self.count == 1 else f"{self.name}-{{n}}"
        return pattern.replace("{n}", str(number))


class StopRequest(Body):
    """How to stop: keep the slices, or give them back; None: as the VM's `on_stop` says."""

    slices: OnStop | None = None


class ExtendRequest(Body):
    """How much longer, from the lease's end (or from now, where it has ended)."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"by": "4h"}]})
    by: Span = Field(description=f"How much longer; {_SPAN}")


class CaptureRequest(Body):
    """The name of the private image that a VM becomes."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"image": "team/prepared:v1"}]})
    image: ImageName


class FlavorRequest(Body):
    """A size of VM. `memory` and `disk` as 4g, 512m, or numbers (MiB for memory, GiB for disk)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "half-a100", "vcpus": 4, "memory": "16g", "disk": "40g", "fgpu": "0.5"}]
        }
    )
    name: FlavorName
    vcpus: Vcpus = 2
    memory: Memory = 4096
    disk: Disk = 10
    profile: Profile | None = None
    fgpu: Fgpu | None = None
    cuda: bool = Field(default=False, description="Only where CUDA runs: not every vGPU type can")
    on_stop: OnStop | None = None

    @model_validator(mode="after")
    def _one_wish(self) -> FlavorRequest:
        if self.profile and self.fgpu:
            raise ValueError("a flavor asks for a profile or for fGPU, not both")
        return self


class UnitRequest(Body):
    """The share of a card that 1 fGPU is, as a decimal."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"share": "0.5"}]})
    share: Unit


class HostRequest(Body):
    """A host to take in. `emulate`: MODEL or MODEL,N, cards that stand in for real ones."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "gpu1", "uri": "qemu+ssh://vmgpu@gpu1.example.org/system"}]}
    )
    name: HostName
    uri: Annotated[str, Field(max_length=300), AfterValidator(_uri)]
    emulate: tuple[Word, ...] = Field(default=(), max_length=16)
    bridge: Annotated[str, AfterValidator(_matching(_BRIDGE, "a bridge is an interface name like br0"))] | None = None
    overcommit: float = Field(default=4.0, ge=1, le=64, description="vCPUs per thread")
    host_key: HostKey | None = Field(
        default=None, description="The SSH host key of a remote host: TYPE BASE64, as in known_hosts"
    )

    @model_validator(mode="after")
    def _key_where_remote(self) -> HostRequest:
        if self.uri.startswith("qemu+ssh") and not self.host_key:
            raise ValueError(
                "a remote host needs its SSH host key: vmgpu host setup prints it, ssh-keyscan asks for it"
            )
        if self.emulate and self.uri.startswith("fake:"):
            raise ValueError("a simulated host names its cards in the URI")
        for one in self.emulated():
            _said(lambda text: placement.model(text))(one)
        return self

    def emulated(self) -> list[str]:
        """One model name for each emulated card."""
        cards: list[str] = []
        for one in self.emulate:
            model, _, count = one.partition(",")
            if count and not re.fullmatch(r"[1-9][0-9]?", count, re.ASCII):
                raise ValueError(f"{one!r}: write MODEL or MODEL,N with N up to 99")
            cards += [model] * int(count or 1)
        return cards


class LicenceChange(Body):
    """How guests with a vGPU of this host get their licence; what is left out stays, an empty text takes it away."""

    feature: Literal[0, 1, 2, 4] | None = Field(default=None, description="FeatureType in gridd.conf; 1 fits vGPUs")
    server: LicenceServer | None = Field(default=None, description="A licence server of the old kind: NAME[:PORT]")
    token: LicenceToken | None = Field(default=None, description="The client configuration token; never shown again")


class HostChange(Body):
    """Settings of a host that may change."""

    draining: bool | None = None
    overcommit: float | None = Field(default=None, ge=1, le=64)
    device_ids: list[DeviceId] | None = Field(
        default=None, max_length=64, description="PCI ids that are cards on this host too, like 1234:1111"
    )
    mdev_parents: list[ParentName] | None = Field(
        default=None, max_length=64, description="Parents in /sys/class/mdev_bus that are no PCI device"
    )
    licence: LicenceChange | None = None


class UserRequest(Body):
    """A person."""

    name: UserName
    admin: bool = False


class KeyRequest(Body):
    """One or several public SSH keys, as pasted."""

    keys: Annotated[str, Field(min_length=1, max_length=100_000)]


class TokenRequest(Body):
    """An API token for a person; shown once."""

    name: Word = ""
    valid: Span | None = Field(default=None, description=f"How long, else until it is removed; {_SPAN}")

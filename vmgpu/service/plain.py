"""What people who do not run the hosts read of a Reason: what it means for their VM, without a host's insides."""

from __future__ import annotations

from collections.abc import Mapping

from vmgpu.errors import Reason, ReasonCode
from vmgpu.service.access import Actor

_ASK = "Ask an admin, who sees the details."
_ITS_CARD = ("The card that was meant for it cannot be given out", _ASK)

# codes whose arguments are a host's own words: addresses, processes, other people's guests, what else is on its bus
_PLAIN: Mapping[ReasonCode, tuple[str, str]] = {
    ReasonCode.host_unreachable: (
        "Host {host} does not answer",
        "Its VMs keep their state and slices until it answers; an admin looks after it.",
    ),
    ReasonCode.host_error: ("Host {host} refused what this needs", _ASK),
    ReasonCode.survey_failed: ("Host {host} cannot be used now", _ASK),
    ReasonCode.call_hangs: ("Host {host} does not get on with its work", _ASK),
    ReasonCode.disk_elsewhere: (
        "Its disk lies on host {host}, where there is no room now",
        "Wait until there is room on that host.",
    ),
    ReasonCode.card_quarantined: ("The card that would serve it is kept back until it was looked at", _ASK),
    ReasonCode.card_held_open: _ITS_CARD,
    ReasonCode.card_is_console: _ITS_CARD,
    ReasonCode.card_unhealthy: _ITS_CARD,
    ReasonCode.card_other_mode: _ITS_CARD,
    ReasonCode.group_not_viable: _ITS_CARD,
    ReasonCode.retried_elsewhere: ("It failed where it was and is tried once more elsewhere", ""),
}


def words(reason: Reason, to: Actor | None) -> tuple[str, str]:
    """Sentence and cure for this person; None: for somebody who may read all."""
    if to is None or to.admin or reason.code not in _PLAIN:
        return reason.sentence(), reason.cure()
    sentence, cure = _PLAIN[reason.code]
    return sentence.format(host=reason.args.get("host", "?")), cure

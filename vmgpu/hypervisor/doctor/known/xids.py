"""The NVIDIA driver's event numbers (Xid): in a host's log those of its guests' vGPUs as well."""

from __future__ import annotations

from vmgpu.hypervisor.doctor.patterns import CULPRIT, SYMPTOM, USUAL, Known, xid

KNOWN = (
    Known(
        "card-off-the-bus",
        "The card left the PCI bus while it was running",
        "Power, heat, a loose card or riser, or a defect: the driver can no longer talk to it.",
        "Do not hand the card out. Power-cycle the host, seat the card and its power cables again, look at "
        "temperatures "
        "and at AER errors; return the card if it happens again.",
        (xid(79), r"gpu has fallen off the bus", r"(\b|error_)gpu(_| )is(_| )lost", r"nvmlerror_gpuislost"),
        CULPRIT,
    ),
    Known(
        "card-memory-errors",
        "The card's memory has errors",
        "A page was retired, a row remapped, or an error was not correctable; the program that met it was ended.",
        "nvidia-smi -q -d ECC,ROW_REMAPPER (or PAGE_RETIREMENT). Reset the card so that pending repairs take effect; "
        "run DCGM diagnostics; replace the card when no spare rows are left.",
        (xid(48, 63, 64, 92, 94, 95),),
        CULPRIT,
    ),
    Known(
        "nvlink-errors",
        "A link between cards has errors",
        "NVLink or NVSwitch; peer traffic fails until the card is reset.",
        "nvidia-smi nvlink -e; restart the fabric manager; reset all cards of the partition; look at the bridges.",
        (xid(74),),
        CULPRIT,
    ),
    Known(
        "gsp-hangs",
        "The card's own firmware processor stopped answering",
        "The driver waited for an answer of GSP and got none.",
        "Reset the card (nvidia-smi --gpu-reset) or power-cycle the host; update driver and VBIOS. To go without: "
        "'options nvidia NVreg_EnableGpuFirmware=0' (not with open modules).",
        (xid(61, 62, 119, 120), r"timeout (after \d+\s?s(econds)? of )?waiting for rpc (response )?from gsp"),
        CULPRIT,
    ),
    Known(
        "program-fault",
        "A program on the card did something wrong",
        "Bad memory access or an endless kernel; with vGPUs it happened inside a guest. The card itself is usually "
        "fine.",
        "Look at the program (compute-sanitizer). If it happens with every program, suspect driver or memory: "
        "nvidia-smi -q -d ECC.",
        (xid(13, 31, 43, 45, 68, 69),),
        USUAL,
    ),
    Known(
        "xid-other",
        "The NVIDIA driver reported an event",
        "Its number is in NVIDIA's Xid catalogue; one alone may be harmless, repeated ones are not.",
        "Look the number up (docs.nvidia.com/deploy/xid-errors); reset the card; keep it from guests if it repeats.",
        (xid(r"(?!(13|31|43|45|48|61|62|63|64|68|69|74|79|92|94|95|119|120)\b)\d+"),),
        SYMPTOM,
    ),
)

/* libnvidia-ml.so.1 of the fake GPU host: each call of NVML becomes one line to the host, and its answer is put where
 * the caller wants it. It knows layouts, never a fact about a GPU. A function that is in none of these files is a
 * symbol that is missing, which pynvml tells as FunctionNotFound.
 */
#include "nvml_line.h"

#include <stdio.h>
#include <string.h>

/* the library itself */

code nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    if (!line_open())
        return DRIVER_NOT_LOADED;
    ASK("init");
    return SUCCESS;
}

code nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

code nvmlShutdown(void)
{
    line_close();
    return SUCCESS;
}

const char *nvmlErrorString(code result)
{
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 15: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 19: return "In use by another client";
    case 23: return "Insufficient Resources";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

code nvmlSystemGetDriverVersion(char *to, u32 room)
{
    ASK("driver_version");
    return text(&a, to, room);
}

/* devices */

code nvmlDeviceGetCount_v2(u32 *count)
{
    ASK("count");
    *count = (u32)number(&a);
    return SUCCESS;
}

code nvmlDeviceGetHandleByIndex_v2(u32 index, void **device)
{
    ASK("by_index\t%u", index);
    *device = (void *)(size_t)number(&a);
    return SUCCESS;
}

code nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device)
{
    ASK("by_bus_id\t%s", bus_id);
    *device = (void *)(size_t)number(&a);
    return SUCCESS;
}

DEVICE_NUMBER(nvmlDeviceGetIndex, "index", u32)
DEVICE_NUMBER(nvmlDeviceGetMinorNumber, "minor", u32)
DEVICE_TEXT(nvmlDeviceGetName, "name")
DEVICE_TEXT(nvmlDeviceGetUUID, "uuid")
DEVICE_TEXT(nvmlDeviceGetSerial, "serial")
DEVICE_NUMBER(nvmlDeviceGetModuleId, "module", u32)
DEVICE_NUMBER(nvmlDeviceGetDisplayActive, "display_active", u32)
DEVICE_NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization", u32)
DEVICE_NUMBER(nvmlDeviceGetHostVgpuMode, "host_vgpu_mode", u32)
DEVICE_PAIR(nvmlDeviceGetEccMode, "ecc")

struct pci {
    char bus_id_legacy[16];
    u32 domain, bus, device, ids, subsystem;
    char bus_id[32];
};

code nvmlDeviceGetPciInfo_v3(void *device, struct pci *to)
{
    ASK("pci\t%llu", HANDLE(device));
    to->domain = (u32)number(&a);
    to->bus = (u32)number(&a);
    to->device = (u32)number(&a);
    to->ids = (u32)number(&a);
    to->subsystem = (u32)number(&a);
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.0", to->domain, to->bus & 255, to->device & 255);
    snprintf(to->bus_id_legacy, sizeof to->bus_id_legacy, "%04X:%02X:%02X.0", to->domain & 65535, to->bus & 255,
             to->device & 255);
    return SUCCESS;
}

struct memory {
    u64 total, free, used;
};

code nvmlDeviceGetMemoryInfo(void *device, struct memory *to)
{
    ASK("memory\t%llu", HANDLE(device));
    to->total = number(&a);
    to->free = number(&a);
    to->used = number(&a);
    return SUCCESS;
}

struct process {
    u32 pid;
    u64 memory;
    u32 gpu_instance, compute_instance;
};

code nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *count, struct process *to)
{
    ASK("processes\t%llu", HANDLE(device));
    u32 have = (u32)number(&a), room = *count;
    *count = have;
    if (have && (!to || room < have))
        return INSUFFICIENT_SIZE;
    for (u32 n = 0; n < have; n++)
        to[n] = (struct process){.pid = (u32)number(&a), .memory = 512ULL << 20, .gpu_instance = 0xFFFFFFFF,
                                 .compute_instance = 0xFFFFFFFF};
    return SUCCESS;
}

struct fabric {
    u32 version;
    unsigned char cluster[16];
    u32 status, clique, state, health;
    unsigned char summary;
};

/* Versions 2 and 3 differ in the last byte only. */
code nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric *to)
{
    if (to->version != 0x02000024 && to->version != 0x03000028)
        return VERSION_MISMATCH;
    ASK("fabric\t%llu", HANDLE(device));
    to->state = (u32)number(&a);
    to->status = (u32)number(&a);
    to->clique = to->health = 0;
    memset(to->cluster, 0, sizeof to->cluster);
    if (to->version == 0x03000028)
        to->summary = to->state == 3;
    return SUCCESS;
}

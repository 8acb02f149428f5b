/* NVML: vGPU types, vGPUs whose VM runs, mixed-size mode. */
#include "nvml_line.h"

#include <string.h>

DEVICE_LIST(nvmlDeviceGetSupportedVgpus, "supported")
DEVICE_LIST(nvmlDeviceGetCreatableVgpus, "creatable")
ID_NUMBER(nvmlVgpuTypeGetFramebufferSize, "type_framebuffer", u64)
ID_NUMBER(nvmlVgpuTypeGetNumDisplayHeads, "type_heads", u32)
ID_NUMBER(nvmlVgpuTypeGetFrameRateLimit, "type_frame_rate", u32)
ID_NUMBER(nvmlVgpuTypeGetMaxInstancesPerVm, "type_most_per_vm", u32)
ID_NUMBER(nvmlVgpuTypeGetGpuInstanceProfileId, "type_profile", u32)
ID_TEXT(nvmlVgpuTypeGetLicense, "type_license")

/* Name and class want the room by reference, unlike all their neighbours. */
code nvmlVgpuTypeGetName(u32 id, char *to, u32 *room)
{
    ASK("type_name\t%u", id);
    return text(&a, to, *room);
}

code nvmlVgpuTypeGetClass(u32 id, char *to, u32 *room)
{
    ASK("type_class\t%u", id);
    return text(&a, to, *room);
}

code nvmlVgpuTypeGetResolution(u32 id, u32 display, u32 *wide, u32 *high)
{
    (void)display;
    ASK("type_resolution\t%u", id);
    *wide = (u32)number(&a);
    *high = (u32)number(&a);
    return SUCCESS;
}

code nvmlVgpuTypeGetMaxInstances(void *device, u32 id, u32 *most)
{
    ASK("type_most\t%llu\t%u", HANDLE(device), id);
    *most = (u32)number(&a);
    return SUCCESS;
}

struct per_instance {
    u32 version, id, most;
};

code nvmlVgpuTypeGetMaxInstancesPerGpuInstance(struct per_instance *to)
{
    if (to->version != 0x0100000C)
        return VERSION_MISMATCH;
    ASK("type_most_per_instance\t%u", to->id);
    to->most = (u32)number(&a);
    return SUCCESS;
}

struct placement_list {
    u32 version, size, count;
    u32 *ids;
    u32 mode;
};

/* Version 1 has neither a capacity in `count` nor a mode; its array holds as many as the type's most instances. */
static code placement_list(const char *which, void *device, u32 id, struct placement_list *to)
{
    if (to->version != 0x01000018 && to->version != 0x02000020)
        return VERSION_MISMATCH;
    ASK("%s\t%llu\t%u", which, HANDLE(device), id);
    to->size = (u32)number(&a);
    u32 have = (u32)number(&a), room = to->count;
    to->count = have;
    if (to->version == 0x02000020 && room < have)
        return INSUFFICIENT_SIZE;
    for (u32 n = 0; n < have; n++)
        to->ids[n] = (u32)number(&a);
    return SUCCESS;
}

code nvmlDeviceGetVgpuTypeSupportedPlacements(void *device, u32 id, struct placement_list *to)
{
    return placement_list("supported_placements", device, id, to);
}

code nvmlDeviceGetVgpuTypeCreatablePlacements(void *device, u32 id, struct placement_list *to)
{
    return placement_list("creatable_placements", device, id, to);
}

/* vGPUs whose VM runs */

DEVICE_LIST(nvmlDeviceGetActiveVgpus, "active")
ID_TEXT(nvmlVgpuInstanceGetUUID, "vgpu_uuid")
ID_TEXT(nvmlVgpuInstanceGetMdevUUID, "vgpu_mdev")
ID_TEXT(nvmlVgpuInstanceGetVmDriverVersion, "vgpu_driver")
ID_NUMBER(nvmlVgpuInstanceGetType, "vgpu_type", u32)
ID_NUMBER(nvmlVgpuInstanceGetGpuInstanceId, "vgpu_instance", u32)
ID_NUMBER(nvmlVgpuInstanceGetLicenseStatus, "vgpu_license", u32)

code nvmlVgpuInstanceGetVmID(u32 id, char *to, u32 room, u32 *kind)
{
    ASK("vgpu_vm\t%u", id);
    *kind = 1; /* a UUID, as on KVM */
    return text(&a, to, room);
}

struct vgpu_placement {
    u32 version, id;
};

code nvmlVgpuInstanceGetPlacementId(u32 id, struct vgpu_placement *to)
{
    if (to->version != 0x01000008)
        return VERSION_MISMATCH;
    ASK("vgpu_placement\t%u", id);
    to->id = (u32)number(&a);
    return SUCCESS;
}

struct license {
    unsigned char licensed;
    struct {
        u32 year;
        unsigned short month, day, hour, minute, second;
        unsigned char status;
    } expiry;
    u32 state;
};

code nvmlVgpuInstanceGetLicenseInfo_v2(u32 id, struct license *to)
{
    ASK("vgpu_license\t%u", id);
    memset(to, 0, sizeof *to);
    to->licensed = (unsigned char)number(&a);
    to->state = (u32)number(&a);
    if (to->licensed) {
        to->expiry.year = 2031;
        to->expiry.month = to->expiry.day = 1;
        to->expiry.status = 2;
    }
    return SUCCESS;
}

/* modes of vGPU */

struct mixed {
    u32 version, mode;
};

code nvmlDeviceGetVgpuHeterogeneousMode(void *device, struct mixed *to)
{
    if (to->version != 0x01000008)
        return VERSION_MISMATCH;
    ASK("mixed\t%llu", HANDLE(device));
    to->mode = (u32)number(&a);
    return SUCCESS;
}

code nvmlDeviceSetVgpuHeterogeneousMode(void *device, const struct mixed *to)
{
    if (to->version != 0x01000008)
        return VERSION_MISMATCH;
    ASK("set_mixed\t%llu\t%u", HANDLE(device), to->mode);
    return SUCCESS;
}

code nvmlDeviceGetVgpuCapabilities(void *device, u32 capability, u32 *to)
{
    ASK("capability\t%llu\t%u", HANDLE(device), capability);
    *to = (u32)number(&a);
    return SUCCESS;
}

/* NVML: MIG mode, GPU instances, compute instances. */
#include "nvml_line.h"

DEVICE_PAIR(nvmlDeviceGetMigMode, "mig_mode")

code nvmlDeviceSetMigMode(void *device, u32 mode, u32 *activation)
{
    ASK("set_mig_mode\t%llu\t%u", HANDLE(device), mode);
    *activation = (u32)number(&a);
    return SUCCESS;
}

struct profile {
    u32 version, id, p2p, slices, most, sms, copy, decoders, encoders, jpeg, ofa;
    u64 memory_mib;
    char name[96];
};

static code profile_info(void *device, const char *by, u32 which, struct profile *to)
{
    if (to->version != 0x02000098)
        return VERSION_MISMATCH;
    ASK("%s\t%llu\t%u", by, HANDLE(device), which);
    u32 *fields[] = {&to->id, &to->slices, &to->most, &to->sms, &to->copy, &to->decoders, &to->encoders, &to->jpeg, &to->ofa};
    for (size_t n = 0; n < sizeof fields / sizeof *fields; n++)
        *fields[n] = (u32)number(&a);
    to->p2p = 0;
    to->memory_mib = number(&a);
    return text(&a, to->name, sizeof to->name);
}

code nvmlDeviceGetGpuInstanceProfileInfoV(void *device, u32 profile, struct profile *to)
{
    return profile_info(device, "profile_by_enum", profile, to);
}

code nvmlDeviceGetGpuInstanceProfileInfoByIdV(void *device, u32 profile, struct profile *to)
{
    return profile_info(device, "profile_by_id", profile, to);
}

struct placement {
    u32 start, size;
};

code nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, u32 profile, struct placement *to, u32 *count)
{
    ASK("placements\t%llu\t%u", HANDLE(device), profile);
    u32 have = (u32)number(&a), size = (u32)number(&a), room = *count;
    *count = have;
    if (!to)
        return SUCCESS;
    if (room < have)
        return INSUFFICIENT_SIZE;
    for (u32 n = 0; n < have; n++)
        to[n] = (struct placement){(u32)number(&a), size};
    return SUCCESS;
}

code nvmlDeviceGetGpuInstanceRemainingCapacity(void *device, u32 profile, u32 *count)
{
    ASK("remaining\t%llu\t%u", HANDLE(device), profile);
    *count = (u32)number(&a);
    return SUCCESS;
}

static code create_instance(void *device, u32 profile, int start, u32 size, void **instance)
{
    ASK("create_instance\t%llu\t%u\t%d\t%u", HANDLE(device), profile, start, size);
    *instance = (void *)(size_t)number(&a);
    return SUCCESS;
}

code nvmlDeviceCreateGpuInstance(void *device, u32 profile, void **instance)
{
    return create_instance(device, profile, -1, 0, instance);
}

code nvmlDeviceCreateGpuInstanceWithPlacement(void *device, u32 profile, const struct placement *at, void **instance)
{
    return create_instance(device, profile, (int)at->start, at->size, instance);
}

code nvmlGpuInstanceDestroy(void *instance)
{
    ASK("destroy_instance\t%llu", HANDLE(instance));
    return SUCCESS;
}

static code handles(answer *from, void **to, u32 *count)
{
    *count = (u32)number(from);
    for (u32 n = 0; to && n < *count; n++)
        to[n] = (void *)(size_t)number(from);
    return SUCCESS;
}

code nvmlDeviceGetGpuInstances(void *device, u32 profile, void **to, u32 *count)
{
    ASK("instances\t%llu\t%u", HANDLE(device), profile);
    return handles(&a, to, count);
}

code nvmlDeviceGetGpuInstanceById(void *device, u32 id, void **instance)
{
    ASK("instance_by_id\t%llu\t%u", HANDLE(device), id);
    *instance = (void *)(size_t)number(&a);
    return SUCCESS;
}

struct instance {
    void *device;
    u32 id, profile;
    struct placement placement;
};

code nvmlGpuInstanceGetInfo(void *instance, struct instance *to)
{
    ASK("instance_info\t%llu", HANDLE(instance));
    to->device = (void *)(size_t)number(&a);
    to->id = (u32)number(&a);
    to->profile = (u32)number(&a);
    to->placement.start = (u32)number(&a);
    to->placement.size = (u32)number(&a);
    return SUCCESS;
}

struct compute_profile {
    u32 version, id, slices, most, sms, copy, decoders, encoders, jpeg, ofa;
    char name[96];
};

code nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *instance, u32 profile, u32 engine, struct compute_profile *to)
{
    (void)engine;
    ASK("compute_profile\t%llu\t%u", HANDLE(instance), profile);
    to->id = (u32)number(&a);
    to->slices = (u32)number(&a);
    to->most = (u32)number(&a);
    to->sms = (u32)number(&a);
    to->copy = to->decoders = to->encoders = to->jpeg = to->ofa = 0;
    return text(&a, to->name, sizeof to->name);
}

code nvmlGpuInstanceCreateComputeInstance(void *instance, u32 profile, void **compute)
{
    ASK("create_compute\t%llu\t%u", HANDLE(instance), profile);
    *compute = (void *)(size_t)number(&a);
    return SUCCESS;
}

code nvmlGpuInstanceGetComputeInstances(void *instance, u32 profile, void **to, u32 *count)
{
    ASK("computes\t%llu\t%u", HANDLE(instance), profile);
    return handles(&a, to, count);
}

code nvmlComputeInstanceDestroy(void *compute)
{
    ASK("destroy_compute\t%llu", HANDLE(compute));
    return SUCCESS;
}

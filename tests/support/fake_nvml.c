/* SPDX-License-Identifier: Apache-2.0
 * A libnvidia-ml.so.1 of GPUs that are made up. FAKE_NVML has the state of each, such as "idle busy thermal", or two of
 * one GPU, "ecc+narrow"; it is read at each call. With -DOLD_DRIVER functions that older drivers lack are missing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct {
    unsigned field, scope; long long timestamp, latency; unsigned type, result;
    union { double d; unsigned long long ull; } value;
} field_value;
typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } event_data;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, LOST = 15 };

static char devices[16];

static int index_of(void *device) { return (int)((char *)device - devices); }

static int state_at(int index, char *state) {
    char all[512];
    const char *text = getenv("FAKE_NVML");
    snprintf(all, sizeof all, "%s", text ? text : "");
    int at = 0;
    for (char *word = strtok(all, " "); word; word = strtok(NULL, " "), at++)
        if (at == index) { snprintf(state, 32, "%s", word); return 1; }
    return index < 0 ? at : 0;
}

static int is(void *device, const char *name) {
    char state[32] = "", *rest;
    if (!state_at(index_of(device), state)) return 0;
    for (char *part = strtok_r(state, "+", &rest); part; part = strtok_r(NULL, "+", &rest))
        if (strcmp(part, name) == 0) return 1;
    return 0;
}

static int idle(void *d) { return !(is(d, "busy") || is(d, "thermal") || is(d, "power-cap") || is(d, "slow-bus")); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.65.06"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { char state[32]; *count = (unsigned)state_at(-1, state); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = devices + index;
    return is(*device, "fallen") ? LOST : OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    int index = atoi(uuid + 4); /* GPU-3 */
    *device = devices + index;
    return strncmp(uuid, "GPU-", 4) ? INVALID : OK;
}
int nvmlDeviceGetName(void *d, char *text, unsigned size) { (void)d; snprintf(text, size, "NVIDIA H200"); return OK; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned size) { snprintf(text, size, "GPU-%d", index_of(d)); return OK; }
int nvmlDeviceGetPciInfo_v3(void *d, pci_info *info) {
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 0x1b + index_of(d));
    return OK;
}
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *value) {
    (void)sensor;
    *value = is(d, "thermal") ? 93 : idle(d) ? 31 : 62;
    return is(d, "lost") ? LOST : OK;
}
int nvmlDeviceGetTemperatureThreshold(void *d, int kind, unsigned *value) { (void)d; (void)kind; *value = 95; return OK; }
int nvmlDeviceGetClockInfo(void *d, int kind, unsigned *value) {
    *value = kind == 2 ? 3201 : is(d, "thermal") ? 750 : is(d, "power-cap") ? 1200 : idle(d) ? 345 : 1980;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(void *d, int kind, unsigned *value) { (void)d; *value = kind == 2 ? 3201 : 1980; return OK; }
static int reasons(void *d, unsigned long long *bits) {
    *bits = is(d, "thermal") ? 0x68 : is(d, "brake") ? 0x88 : is(d, "power-cap") ? 0x4 : idle(d) ? 0x1 : 0x0;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *bits) { return reasons(d, bits); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *value) { *value = idle(d) ? 71000 : is(d, "power-cap") ? 350000 : 640000; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *value) { *value = is(d, "power-cap") ? 350000 : 700000; return OK; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *d, unsigned *value) { (void)d; *value = 700000; return OK; }
int nvmlDeviceGetUtilizationRates(void *d, utilization *rates) { rates->gpu = idle(d) ? 0 : 98; rates->memory = 50; return OK; }
int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *value) { *value = is(d, "narrow") ? 4 : 16; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *value) { (void)d; *value = 16; return OK; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *value) { *value = idle(d) || is(d, "slow-bus") ? 1 : 5; return OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *value) { (void)d; *value = 5; return OK; }
int nvmlDeviceGetTotalEccErrors(void *d, int kind, int counter, unsigned long long *value) {
    *value = kind == 1 && counter == 0 && is(d, "ecc") ? 2 : 0;
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(void *d, unsigned *pending) { (void)d; (void)pending; return NOT_SUPPORTED; }
#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(void *d, unsigned long long *bits) { return reasons(d, bits); }
int nvmlDeviceGetNvLinkState(void *d, unsigned link, unsigned *up) {
    *up = !(is(d, "nvlink") && link == 7);
    return link < 18 ? OK : INVALID;
}
int nvmlDeviceGetFieldValues(void *d, int count, field_value *values) {
    for (int i = 0; i < count; i++) { values[i].result = OK; values[i].value.ull = is(d, "nvlink") && values[i].field == 52 ? 9 : 0; }
    return OK;
}
int nvmlDeviceGetRemappedRows(void *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = 0; *uncorrected = is(d, "remap"); *pending = is(d, "remap"); *failed = is(d, "remap-failed");
    return OK;
}
int nvmlEventSetCreate(void **set) { *set = devices; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long kinds, void *set) { (void)d; (void)kinds; (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, event_data *data, unsigned timeout) {
    static int told; /* one event, of the first GPU that is in this state */
    (void)set; (void)timeout;
    for (int i = 0; i < 16; i++)
        if (!told && is(devices + i, "xid")) { told = 1; data->device = devices + i; data->type = 8; data->data = 94; return OK; }
    return TIMEOUT;
}
#endif

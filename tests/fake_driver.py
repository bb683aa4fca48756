"""A driver of NVIDIA GPUs in C: the functions of NVML and CUDA that the hook calls, with answers that a test sets."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned field, scope; long long at, took; int kind, code; unsigned long long value; } Field;
enum { SM, MEMORY_CLOCK, POWER, LIMIT, HOT, REASONS, BUSY, USED, CORRECTED, UNCORRECTED, REPLAYS, NVLINK, SM_MAX, MEMORY_MAX,
       DEFAULT_LIMIT, TOTAL, MIG, COUNT };
unsigned long long value[8][COUNT];
int code[COUNT], init_code, lost, visible[8], opened, closed, calls;
static int say(void *device, int which, unsigned long long *out) {
    ++calls;
    *out = value[(long)device - 1][which];
    return lost ? 15 : code[which];
}
#define NUMBER(name, which) int name(void *d, unsigned *out) { \
    unsigned long long found; int code = say(d, which, &found); if (!code) *out = found; return code; }
int nvmlInit_v2(void) { ++opened; return init_code; }
int nvmlShutdown(void) { ++closed; return 0; }
const char *nvmlErrorString(int code) {
    return code == 3 ? "Not Supported" : code == 4 ? "Insufficient Permissions"
         : code == 15 ? "GPU is lost" : "Unknown Error";
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **out) {
    unsigned bus; if (sscanf(id, "0000:%x:00.0", &bus) != 1) return 2;
    *out = (void *)(long)(bus - 0x10 + 1); return 0; }
int nvmlDeviceGetUUID(void *d, char *out, unsigned size) { snprintf(out, size, "GPU-%ld", (long)d - 1); return 0; }
int nvmlDeviceGetName(void *d, char *out, unsigned size) { snprintf(out, size, "Fake H100"); return 0; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *later) {
    unsigned long long found; int code = say(d, MIG, &found); *now = *later = found; return code; }
int nvmlDeviceGetClockInfo(void *d, unsigned type, unsigned *out) {
    unsigned long long found;
    int code = say(d, type == 1 ? SM : MEMORY_CLOCK, &found); if (!code) *out = found; return code; }
int nvmlDeviceGetMaxClockInfo(void *d, unsigned type, unsigned *out) {
    unsigned long long found;
    int code = say(d, type == 1 ? SM_MAX : MEMORY_MAX, &found); if (!code) *out = found; return code; }
NUMBER(nvmlDeviceGetPowerUsage, POWER)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, LIMIT)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, DEFAULT_LIMIT)
NUMBER(nvmlDeviceGetPcieReplayCounter, REPLAYS)
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *out) {
    unsigned long long found; int code = say(d, HOT, &found); if (!code) *out = found; return code; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *out) { return say(d, REASONS, out); }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *out) {
    unsigned long long found; int code = say(d, BUSY, &found); out[0] = found; out[1] = 0; return code; }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *out) {
    int code = say(d, TOTAL, &out[0]); if (!code) code = say(d, USED, &out[2]); out[1] = out[0] - out[2]; return code; }
int nvmlDeviceGetTotalEccErrors(void *d, unsigned kind, unsigned counter, unsigned long long *out) {
    return counter == 0 ? say(d, kind ? UNCORRECTED : CORRECTED, out) : 2; }
int nvmlDeviceGetFieldValues(void *d, int count, Field *fields) {
    for (int i = 0; i < count; ++i) {
        fields[i].code = say(d, NVLINK, &fields[i].value); fields[i].kind = 3;
        if (fields[i].field != 38) fields[i].value = 0; }
    return 0; }
int cuDeviceGet(int *out, int ordinal) { *out = visible[ordinal]; return 0; }
int cuDeviceGetPCIBusId(char *out, int size, int device) { snprintf(out, size, "0000:%02x:00.0", 0x10 + device); return 0; }
"""
NAMES = (
    "sm", "memory_clock", "power", "limit", "hot", "reasons", "busy", "used", "corrected", "uncorrected", "replays",
    "nvlink", "sm_max", "memory_max", "default_limit", "total", "mig",
)  # fmt: skip
HEALTHY = {
    "sm": 1700, "memory_clock": 2600, "power": 650_000, "limit": 700_000, "hot": 60, "reasons": 0, "busy": 99,
    "used": 61 << 30, "corrected": 5, "replays": 2, "sm_max": 1980, "memory_max": 2619, "default_limit": 700_000,
    "total": 80 << 30,
}  # fmt: skip


class FakeDriver:
    """path: of the library, for NVML and for CUDA. Eight GPUs, all healthy; in units of NVML (MHz, mW, percent)."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler, "no C compiler: the tests of the driver's facts need one"
        (folder / "driver.c").write_text(SOURCE)
        self.path = folder / "libfake.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", self.path, folder / "driver.c"], check=True, timeout=60)
        self._library = ctypes.CDLL(str(self.path))
        for device in range(8):
            for name, value in HEALTHY.items():
                self.set(device, name, value)
        for ordinal in range(8):
            self.see(ordinal, ordinal)

    def set(self, device: int, name: str, value: int) -> None:
        (((ctypes.c_ulonglong * len(NAMES)) * 8).in_dll(self._library, "value"))[device][NAMES.index(name)] = value

    def refuse(self, name: str, code: int) -> None:
        """0: it answers again."""
        (ctypes.c_int * len(NAMES)).in_dll(self._library, "code")[NAMES.index(name)] = code

    def see(self, ordinal: int, device: int) -> None:
        """As CUDA_VISIBLE_DEVICES does."""
        (ctypes.c_int * 8).in_dll(self._library, "visible")[ordinal] = device

    def number(self, name: str, value: int | None = None) -> int:
        """Of ``init_code``, ``lost``, ``opened``, ``closed``, ``calls``; set where a value is given."""
        found = ctypes.c_int.in_dll(self._library, name)
        if value is not None:
            found.value = value
        return found.value

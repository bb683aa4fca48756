"""What the NVIDIA driver tells of a GPU while it computes: NVML through ctypes, without a package.

Nothing here goes through a stream of the job or waits for its kernels: NVML asks the driver, and of CUDA's driver only the
PCI address of a device is taken, which it knows without a context.
"""

import ctypes
from ctypes import byref, c_char_p, c_int, c_longlong, c_uint, c_ulonglong, c_void_p

from stepscope_hook.record import NAN

NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
SUCCESS, NO_LIBRARY = 0, "no NVIDIA driver library (libnvidia-ml.so.1) in this process's reach"
ONE, LONG = c_uint * 1, c_ulonglong * 1

REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The function that gives the reasons of a lower clock: its name since driver 535, and the one before."""

ASKED = (
    ("sm_clock_hz", ("nvmlDeviceGetClockInfo",), (1,), ONE, 0, 1e6),
    ("memory_clock_hz", ("nvmlDeviceGetClockInfo",), (2,), ONE, 0, 1e6),
    ("power_w", ("nvmlDeviceGetPowerUsage",), (), ONE, 0, 1e-3),
    ("power_limit_w", ("nvmlDeviceGetEnforcedPowerLimit",), (), ONE, 0, 1e-3),
    ("temperature_c", ("nvmlDeviceGetTemperature",), (0,), ONE, 0, 1),
    ("throttle_reasons", REASONS, (), LONG, 0, 1),
    ("busy_fraction", ("nvmlDeviceGetUtilizationRates",), (), c_uint * 2, 0, 1e-2),
    ("memory_used_bytes", ("nvmlDeviceGetMemoryInfo",), (), c_ulonglong * 3, 2, 1),
)
"""Column, functions that answer it (the first that the library has), their arguments, the answer, which of it, its unit."""
COUNTED = (
    ("ecc_corrected", ("nvmlDeviceGetTotalEccErrors",), (0, 0), LONG, 0, 1),
    ("ecc_uncorrected", ("nvmlDeviceGetTotalEccErrors",), (1, 0), LONG, 0, 1),
    ("pcie_replays", ("nvmlDeviceGetPcieReplayCounter",), (), ONE, 0, 1),
    ("nvlink_errors", ("nvmlDeviceGetFieldValues",), (), None, 0, 1),
)
"""The same of what only counts upwards: its growth since the first sample is written."""
COLUMNS = tuple(row[0] for row in ASKED + COUNTED)
ONCE = (
    ("sm_clock_max_hz", ("nvmlDeviceGetMaxClockInfo",), (1,), ONE, 0, 1e6),
    ("memory_clock_max_hz", ("nvmlDeviceGetMaxClockInfo",), (2,), ONE, 0, 1e6),
    ("power_limit_default_w", ("nvmlDeviceGetPowerManagementDefaultLimit",), (), ONE, 0, 1e-3),
    ("memory_bytes", ("nvmlDeviceGetMemoryInfo",), (), c_ulonglong * 3, 0, 1),
)
NVLINK_TOTALS = (38, 45, 52, 59)
"""Numbers of the fields: CRC errors of flits and of data, replays, recoveries, each of all links of the device."""


class FieldValue(ctypes.Structure):
    _fields_ = [("field", c_uint), ("scope", c_uint), ("at", c_longlong), ("took", c_longlong), ("kind", c_int),
                ("code", c_int), ("value", c_ulonglong)]  # fmt: skip


class NotToldError(Exception):
    """The driver does not answer; the message says why."""


class Driver:
    """NVML, initialised. Raises NotToldError."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL(NVML)
        except OSError:
            raise NotToldError(NO_LIBRARY) from None
        self.call(("nvmlInit_v2",))

    def call(self, names, *arguments):
        """Call the first of the functions that is there. Raises NotToldError."""
        function = next((symbol for symbol in (getattr(self.library, name, None) for name in names) if symbol), None)
        if function is None:
            raise NotToldError("the driver's library has no {}".format(names[0]))
        code = function(*arguments)
        if code != SUCCESS:
            raise NotToldError("{}: {}".format(names[0], self.words(code)))

    def words(self, code):
        tell = getattr(self.library, "nvmlErrorString", None)
        if tell is None:
            return "error {}".format(code)
        tell.restype = c_char_p
        return (tell(code) or b"").decode(errors="replace") or "error {}".format(code)

    def text(self, name, handle):
        """Return the driver's text, or None where it does not say."""
        buffer = ctypes.create_string_buffer(96)
        try:
            self.call((name,), handle, buffer, c_uint(96))
        except NotToldError:
            return None
        return buffer.value.decode(errors="replace")

    def close(self):
        try:
            self.call(("nvmlShutdown",))
        except NotToldError:
            pass  # the driver is gone


def bus_id(ordinal):
    """Return the PCI address of a CUDA device as this process numbers them, whatever CUDA_VISIBLE_DEVICES says. Raises
    NotToldError."""
    try:
        cuda = ctypes.CDLL(CUDA)
    except OSError:
        raise NotToldError("no CUDA driver library (libcuda.so.1)") from None
    device, address = c_int(), ctypes.create_string_buffer(32)
    if cuda.cuDeviceGet(byref(device), c_int(ordinal)) or cuda.cuDeviceGetPCIBusId(address, c_int(32), device):
        raise NotToldError("CUDA does not say which GPU its device {} is".format(ordinal))
    return address.value.decode()


class Device:
    """A GPU. Raises NotToldError where it cannot be found."""

    columns = COLUMNS

    def __init__(self, driver, ordinal):
        self.driver = driver
        self.bus_id = bus_id(ordinal)
        self.handle = c_void_p()
        driver.call(("nvmlDeviceGetHandleByPciBusId_v2",), c_char_p(self.bus_id.encode()), byref(self.handle))
        self.uuid = driver.text("nvmlDeviceGetUUID", self.handle)
        self.name = driver.text("nvmlDeviceGetName", self.handle)
        self.missing = {}
        """Column -> why it is not known, or was not once."""
        self.never = set()
        """Columns that are not asked for again: the first time there was no answer."""
        self.counted = [Increase() for _ in COUNTED]
        current, pending = c_uint(), c_uint()
        try:
            driver.call(("nvmlDeviceGetMigMode",), self.handle, byref(current), byref(pending))
        except NotToldError:
            pass  # a GPU that cannot be divided
        if current.value:  # what is told of a divided GPU is of the whole of it
            self.missing["memory_used_bytes"] = "the GPU is divided (MIG): the job has a part of its memory"
        self.never = set(self.missing)
        self.once = {asked[0]: self.ask(asked) for asked in ONCE}
        self.read()
        self.never = set(self.missing)

    def facts(self):
        """Return the header's facts: what does not change, and what is not known."""
        values = {name: value for name, value in self.once.items() if value == value}
        return dict(values, name=self.name or "", uuid=self.uuid, bus_id=self.bus_id, missing=self.missing)

    def read(self):
        """Return a number for each column; NaN where it is not known, and ``missing`` says why."""
        gauges = [self.ask(asked) for asked in ASKED]
        return gauges + [counter.since_first(self.ask(asked)) for counter, asked in zip(self.counted, COUNTED)]

    def ask(self, asked):
        name, functions, arguments, answer, which, unit = asked
        if name in self.never:
            return NAN
        try:
            if answer is None:
                return self.nvlink_errors(functions)
            reply = answer()
            self.driver.call(functions, self.handle, *[c_uint(argument) for argument in arguments], byref(reply))
            return reply[which] * unit
        except NotToldError as error:
            self.missing.setdefault(name, str(error))
            return NAN

    def nvlink_errors(self, functions):
        """Return the sum over the links. Raises NotToldError where the device has none."""
        fields = (FieldValue * len(NVLINK_TOTALS))(*[FieldValue(field=number) for number in NVLINK_TOTALS])
        self.driver.call(functions, self.handle, c_int(len(fields)), fields)
        counters = [field for field in fields if field.code == SUCCESS]
        if not counters:
            raise NotToldError("{}: {}".format(functions[0], self.driver.words(fields[0].code)))
        return sum(field.value if field.kind in (2, 3) else field.value & 0xFFFFFFFF for field in counters)


class Increase:
    """A counter's growth since the first value; one that begins again at 0 has not lost what it had counted."""

    def __init__(self):
        self.last = None
        self.total = 0.0

    def since_first(self, value):
        if value != value:
            return NAN
        if self.last is not None:
            self.total += value - self.last if value >= self.last else value
        self.last = value
        return self.total

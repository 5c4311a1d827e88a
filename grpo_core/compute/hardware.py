"""Operations by hardware time: device-seconds × the device's highest rate × how far it was used (the Commission's
guidelines, C(2025) 7719 final, Annex A.2.1: C = N · L · H · U).

How far the products of a run use a device cannot be read from outside it: NVML's utilisation is the share of time in
which anything ran, which is above it. So what comes out is a bound: the run took no more than this.
"""

import re
from dataclasses import dataclass
from typing import Literal

from grpo_core.config.kinds import AnyConfig

Dtype = Literal["float32", "bfloat16"]
READ = "2026-11-28"
"""Day on which the table was compared with public copies of its sources."""


@dataclass(frozen=True)
class Peak:
    """Highest rate of dense matrix products, without sparsity, in FLOP/s. float32 without TF32, which the trainer does
    not switch on; None where the data sheet has none."""

    pattern: str
    """Of the whole name that the driver gives, without its maker: a part of a device (MIG), a laptop's and any other
    variant is not in the table."""
    float32: float
    bfloat16: float | None
    source: str

    def rate(self, dtype: Dtype) -> float | None:
        return self.float32 if dtype == "float32" else self.bfloat16


_MAKER = r"(?:NVIDIA |Tesla |AMD )?"
PEAKS = (
    Peak(r"B200", 75e12, 2.25e15, "NVIDIA Blackwell data sheet, column HGX B200, without sparsity"),
    Peak(r"H200", 67e12, 989e12, "NVIDIA H200 data sheet, column SXM, without sparsity"),
    Peak(r"H200 NVL", 60e12, 835.5e12, "NVIDIA H200 data sheet, column NVL, without sparsity"),
    Peak(r"H100 80GB HBM3", 67e12, 989e12, "NVIDIA H100 data sheet, column SXM, without sparsity"),
    Peak(r"H100 PCIe", 51e12, 756e12, "NVIDIA H100 data sheet, column PCIe, without sparsity"),
    Peak(r"H100 NVL", 60e12, 835.5e12, "NVIDIA H100 data sheet, column NVL, without sparsity"),
    Peak(r"A100[ -](SXM4|PCIE|80GB PCIe)(-[48]0GB)?", 19.5e12, 312e12, "NVIDIA A100 data sheet, without sparsity"),
    Peak(r"A10", 31.2e12, 125e12, "NVIDIA A10 data sheet, without sparsity"),
    Peak(r"A40", 37.4e12, 149.7e12, "NVIDIA A40 data sheet, without sparsity"),
    Peak(r"L4", 30.3e12, 121e12, "NVIDIA L4 data sheet, without sparsity"),
    Peak(r"L40S", 91.6e12, 362.05e12, "NVIDIA L40S data sheet, without sparsity"),
    Peak(r"GeForce RTX 5090", 104.8e12, 209.5e12, "NVIDIA RTX Blackwell architecture white paper, without sparsity"),
    Peak(
        r"GeForce RTX 4090",
        82.6e12,
        165.2e12,
        "NVIDIA Ada architecture white paper 2.1, appendix A, without sparsity",
    ),
    Peak(
        r"GeForce RTX 3090",
        35.6e12,
        71e12,
        "NVIDIA GA102 architecture white paper 2.1, appendix A, without sparsity",
    ),
    Peak(r"V100-SXM2-(16|32)GB", 15.7e12, None, "NVIDIA V100 data sheet, January 2020"),
    Peak(r"V100-PCIE-(16|32)GB", 14e12, None, "NVIDIA V100 data sheet, January 2020"),
    Peak(r"T4", 8.1e12, None, "NVIDIA T4 data sheet"),
    Peak(r"Instinct MI300X", 163.4e12, 1307.4e12, "AMD Instinct MI300X data sheet, matrix products, without sparsity"),
    Peak(r"Instinct MI250X", 47.85e12, 191.5e12, "AMD Instinct MI250X data sheet, one of its two devices"),
)


@dataclass(frozen=True)
class Hardware:
    """Device-seconds as operations, at most."""

    device: str
    device_seconds: float
    dtype: Dtype
    peak: float | None
    """FLOP/s of one device; None where it is not known here."""
    source: str
    """Where the rate is from; where there is none, why."""
    utilisation: float | None = None
    """Mean share of the time in which the device ran anything, 0 to 1; None where it was not measured. What share of
    its rate the products reach is below it."""

    @property
    def flop(self) -> float | None:
        if self.peak is None:
            return None
        return self.device_seconds * self.peak * (1.0 if self.utilisation is None else self.utilisation)


def dtype_of(config: AnyConfig) -> Dtype:
    """Number format of the matrix products, the faster of the two where sampling and update differ."""
    return "bfloat16" if "bfloat16" in (config.model.dtype, config.engine.autocast) else "float32"


def hardware(
    device: str, *, device_seconds: float, dtype: Dtype, utilisation: float | None = None, measured: float | None = None
) -> Hardware:
    """`measured`: the rate of products that a calibration reached on the device, where no data sheet has one."""
    row = next((row for row in PEAKS if re.fullmatch(_MAKER + row.pattern, device)), None)
    peak = row.rate(dtype) if row is not None else measured
    if row is not None:
        source = f"{row.source}, as read on {READ}" if peak is not None else f"{row.source} has no rate of {dtype}"
    elif peak is not None:
        source = "matrix products as fast as a calibration reached on the same device"
    else:
        source = "the rate of this device is not known here"
    return Hardware(device, device_seconds, dtype, peak, source, utilisation)

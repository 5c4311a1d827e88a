"""Rated power of devices, for an estimate of energy where no meter was read. From the makers' data sheets; a device
that is not listed gives no estimate."""

import re

_WATTS = (
    (r"H200 NVL", 600.0),
    (r"H200", 700.0),
    (r"H100 PCIe", 350.0),
    (r"H100 NVL", 400.0),
    (r"H100 80GB HBM3|H100 SXM", 700.0),
    (r"A100-PCIE-40GB", 250.0),
    (r"A100 80GB PCIe", 300.0),
    (r"A100-SXM4", 400.0),
    (r"\bL40S\b", 350.0),
    (r"\bL4\b", 72.0),
    (r"RTX A6000", 300.0),
    (r"V100-PCIE", 250.0),
    (r"V100-SXM2", 300.0),
    (r"Tesla T4\b", 70.0),
    (r"RTX 4090\b", 450.0),
    (r"RTX 3090\b", 350.0),
)
"""(pattern of the device's name, thermal design power in watts); the first that fits counts."""


def rated_watts(device: str) -> float | None:
    """Of one device by the name that its driver gives; None where it is not known."""
    return next((watts for pattern, watts in _WATTS if re.search(pattern, device)), None)

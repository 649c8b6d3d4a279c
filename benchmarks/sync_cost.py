"""A model of the time of a sync on 8 to 65,536 devices, for states of several sizes.

    python benchmarks/sync_cost.py [--latency MICROSECONDS] [--bandwidth GIGABYTES_PER_SECOND]

A message takes the latency, plus its bytes over the bandwidth at which one device sends. An
all-reduce of `b` bytes takes `2 * log2(n)` messages one after the other, and a device sends
`2 * b`. An all-to-all in a group of `g` devices takes `g - 1` messages, and a device sends its
bytes once.

A sync that gathers is one all-reduce of the copies of all devices. A sync in parts has up to three
all-reduces, of two thirds of the bytes, and an all-to-all for each stage, of all of them. What a
device sends in a compiled program is checked by `tests/statistics/test_sync_programs.py`.
"""

import argparse
import math
from typing import NamedTuple

from datarax.algebra.devices import AT_ONCE, SMALL_BYTES

DEVICES = (8, 64, 256, 1024, 8192, 65536)
STATES = {"1 KB": 1000, "16 KB": 16_000, "120 KB": 120_000, "12 MB": 12_000_000}


class Cost(NamedTuple):
    """The messages that follow one another, and the bytes that one device sends."""

    messages: float
    sent: float

    def seconds(self, latency: float, bandwidth: float) -> float:
        return self.messages * latency + self.sent / bandwidth


def gathered(size: int, devices: int) -> Cost:
    """The cost of a state of `size` bytes that is gathered."""
    return Cost(2 * math.log2(devices), 2 * devices * size)


def in_parts(size: int, devices: int) -> Cost:
    """The cost of a state of `size` bytes that is merged in parts."""
    section = max(n for n in range(1, math.isqrt(devices) + 1) if devices % n == 0)
    stages = [devices] if devices <= AT_ONCE or section == 1 else [section, devices // section]
    messages = 3 * 2 * math.log2(devices) + sum(g - 1 for g in stages)
    return Cost(messages, 3 * size)


def switch(devices: int, latency: float, bandwidth: float) -> float:
    """The bytes of all copies together from which merging in parts is faster."""
    more = in_parts(0, devices).messages - gathered(0, devices).messages
    return more * latency * bandwidth / (2 - 3 / devices)


def main() -> None:
    parser = argparse.ArgumentParser(description="A model of the time of a sync.")
    parser.add_argument("--latency", type=float, default=5, help="of a message, in microseconds")
    parser.add_argument("--bandwidth", type=float, default=50, help="of a device, in GB/s")
    given = parser.parse_args()
    latency, bandwidth = given.latency * 1e-6, given.bandwidth * 1e9
    print(f"Milliseconds, gathered / in parts; {given.latency:g} us, {given.bandwidth:g} GB/s\n")
    print("| devices |", " | ".join(STATES), "| in parts is faster from |")
    print("| ---: |" + " ---: |" * (len(STATES) + 1))
    for devices in DEVICES:
        cells = []
        for size in STATES.values():
            both = [
                f"{1e3 * way(size, devices).seconds(latency, bandwidth):.2g}"
                for way in (gathered, in_parts)
            ]
            chosen = int(size * devices > SMALL_BYTES)
            both[chosen] = f"**{both[chosen]}**"
            cells.append(" / ".join(both))
        megabytes = switch(devices, latency, bandwidth) / 1e6
        print(f"| {devices:,} |", " | ".join(cells), f"| {megabytes:.1f} MB in all |")


if __name__ == "__main__":
    main()

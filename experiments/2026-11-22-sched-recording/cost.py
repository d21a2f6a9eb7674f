#!/usr/bin/env python3
"""Interleaved rounds of hackbench alone, under `perf sched record` and under `amdahl sched record --system`;
then the size of a recording of each. Usage: cost.py AMDAHL SECONDS"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

BENCH = ["perf", "bench", "sched", "messaging", "-g", "4", "-l", "700"]
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def bench():
    out = subprocess.run(BENCH, capture_output=True, text=True).stdout
    return float(re.search(r"Total time:\s*([\d.]+)", out).group(1))


def beside(command):
    process = subprocess.Popen(command, **QUIET)
    time.sleep(0.6)  # until it records; the median of rounds forgives a late one
    seconds = bench()
    process.send_signal(2)
    process.wait()
    return seconds


def size(path):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(path) for name in names)


def main(amdahl, seconds):
    with tempfile.TemporaryDirectory() as folder:
        data, ours = f"{folder}/perf.data", f"{folder}/amdahl"
        perf = ["perf", "sched", "record", "-o", data, "--", "sleep", "1000"]
        tool = [amdahl, "sched", "record", "--system", "--for", "1h", "--quiet", "-o", ours]
        ways = {"alone": bench, "perf": lambda: beside(perf), "amdahl": lambda: beside(tool)}
        rounds = {name: [] for name in ways}
        end = time.time() + seconds
        while time.time() < end:
            for name, run in ways.items():
                rounds[name].append(run())
        for name, times in rounds.items():
            print(name, f"median {statistics.median(times):.3f} s", [round(t, 2) for t in times])
        for name in ("perf", "amdahl"):
            ratios = [a / b for a, b in zip(rounds[name], rounds["alone"])]
            print(f"{name} / alone: median {statistics.median(ratios):.3f}")
        print(f"perf.data {os.path.getsize(data)} bytes, events {size(ours + '/events')} bytes")


main(sys.argv[1], float(sys.argv[2]))

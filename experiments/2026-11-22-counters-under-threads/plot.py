#!/usr/bin/env python3
"""plot.py memory.json plot.svg: times of an operation on one thread and on two, as bars on a logarithmic scale."""
import html
import json
import math
import sys

GROUPS = [
    ("an addition to a counter", [
        "thread-local Cell", "thread-local Cell as one inc", "Counter per CPU", "Counter per CPU in a static", "Counter per LLC",
        "padded shard of the thread", "contatori", "padded shard of the LLC", "shared AtomicU64"]),
    ("an addition amid 7 ns of other work, that work included", [
        "work alone", "work and a thread-local Cell", "work and a Counter per CPU",
        "work and a Counter per LLC", "work and a shared AtomicU64"]),
    ("a value recorded in a histogram", [
        "array of the thread record", "Histogram per CPU record", "Histogram per LLC record",
        "hdrhistogram in a Mutex of the thread record", "shared atomic buckets record",
        "hdrhistogram in a Mutex record"]),
    ("setting and clearing a bit of a mask", [
        "SparseMask set and clear", "CpuMask set and clear"]),
    ("taking and releasing a lock", [
        "HashedMutexes lock", "hashed std::sync::Mutex lock", "HashedRwLocks read", "hashed std::sync::RwLock read",
        "one std::sync::Mutex lock"]),
]
OURS = ("Counter per", "Histogram per", "SparseMask", "Hashed", "work and a Counter")
LABEL, WIDTH, BAR, LEAST, MOST = 330, 520, 9, 0.3, 200.0


def place(ns):
    share = math.log(max(ns, LEAST) / LEAST) / math.log(MOST / LEAST)
    return LABEL + WIDTH * min(share, 1.0)


def main(source, target):
    with open(source, encoding="utf-8") as file:
        values = {row["name"]: row["value"] for row in json.load(file)["figures"]}
    y, parts = 46, []
    text = lambda x, y, what, more="": parts.append(f'<text x="{x}" y="{y}" {more}>{html.escape(what)}</text>')
    text(10, 18, "ns an operation: one thread (upper bar), two threads (lower bar); logarithmic; bold: amdahl-spread")
    for title, names in GROUPS:
        text(10, y, title, 'font-style="italic"')
        y += 8
        for name in names:
            weight = 'font-weight="bold"' if name.startswith(OURS) else ""
            text(LABEL - 8, y + BAR + 3, name, f'text-anchor="end" {weight}')
            for threads, colour in (("1 thread", "#7a9cc6"), ("2 threads", "#c6707a")):
                ns = values.get(f"spread: {name}, {threads}")
                if ns is not None:
                    parts.append(f'<rect x="{LABEL}" y="{y}" width="{place(ns) - LABEL:.1f}" height="{BAR}" fill="{colour}"/>')
                    text(f"{place(ns) + 4:.1f}", y + BAR - 1, f"{ns:.2f}", 'font-size="9"')
                y += BAR
            y += 6
        y += 18
    lines = []
    for ns in (0.5, 1, 2, 5, 10, 20, 50, 100, 200):
        x = f"{place(ns):.1f}"
        lines.append(f'<line x1="{x}" y1="26" x2="{x}" y2="{y}" stroke="#ddd"/><text x="{x}" y="{y + 12}" text-anchor="middle">{ns}</text>')
    with open(target, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL + WIDTH + 60}" height="{y + 20}" font-family="sans-serif" font-size="11">'
                   f'<rect width="100%" height="100%" fill="white"/>{"".join(lines)}{"".join(parts)}</svg>\n')


main(*sys.argv[1:])

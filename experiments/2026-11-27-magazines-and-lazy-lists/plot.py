#!/usr/bin/env python3
"""plot.py memory.json plot.svg: what magazines gain, and what a list with its own lock would, as bars."""
import html
import json
import sys

LOADS = ["pairs of 1 to 16 units, nothing else live", "pairs of 1 to 16 units, 10,000 live", "1 to 16 units, 10,000 live",
         "1 to 16 units, alignments to 256, a fifth in a zone, 10,000 live",
         "1 to 64 units, alignments to 256, a fifth in a zone, 10,000 live", "1 to 16 units, 200,000 live"]
LISTS = [("alloc and free_lazy", "alloc and free_lazy"), ("purge", "purge of 256 blocks"), ("both", "both together")]
GROUPS = [
    ("speed with magazines / without: 1 thread (upper bar), 2 threads",
     [(load, [f"with magazines / without, {threads} threads: {load}" for threads in (1, 2)]) for load in LOADS]),
    ("time with marks in the tree / with a list: the thread purges itself (upper bar), another one purges",
     [(name, [f"marks / a list with its own lock, {who}: {row}" for who in ("purges itself", "another purges")]) for row, name in LISTS]),
]
LABEL, WIDTH, BAR, MOST = 400, 360, 9, 2.5
COLOURS = ("#1f6feb", "#2da44e")


def main(source, target):
    with open(source, encoding="utf-8") as file:
        values = {row["name"]: row["value"] for row in json.load(file)["figures"]}
    place = lambda ratio: LABEL + WIDTH * ratio / MOST
    parts, y = [], 0
    text = lambda x, y, what, more="": parts.append(f'<text x="{x:.0f}" y="{y}" {more}>{html.escape(what)}</text>')
    for title, rows in GROUPS:
        y += 30
        text(10, y, title, 'font-weight="bold"')
        top = y + 6
        for name, bars in rows:
            y += 14
            text(LABEL - 6, y + 8, name, 'text-anchor="end"')
            for bar, colour in zip(bars, COLOURS):
                parts.append(f'<rect x="{LABEL}" y="{y}" width="{place(values[bar]) - LABEL:.1f}" height="{BAR - 1}" fill="{colour}"/>')
                text(place(values[bar]) + 4, y + 8, f"{values[bar]:.2f}")
                y += BAR
        parts.append(f'<line x1="{place(1):.1f}" x2="{place(1):.1f}" y1="{top}" y2="{y + 4}" stroke="black" stroke-dasharray="3"/>')
    size = f'width="{LABEL + WIDTH + 40}" height="{y + 20}"'
    with open(target, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n<rect {size} fill="white"/>\n')
        file.write("\n".join(parts) + "\n</svg>\n")


main(*sys.argv[1:])

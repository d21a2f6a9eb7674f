#!/usr/bin/env python3
"""plot.py memory.json: draws locks.svg and map.svg from what the benchmark wrote."""
import json
import re
import sys

COLOURS = ["#1b6ca8", "#6fb1dc", "#444444", "#999999", "#c98a3b", "#e0b97d", "#8a5a9e"]


def bars(title, unit, groups, names):
    """Groups of bars: [(label, {name: value})]."""
    width, height, left, bottom = 60 + 110 * len(groups), 330, 60, 60
    most = max(value for _, values in groups for value in values.values()) * 1.1
    tall = height - bottom - 60
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="18" font-size="14">{title}</text>']
    for number, name in enumerate(names):
        x = left + 115 * number
        out.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{COLOURS[number]}"/><text x="{x + 14}" y="37">{name}</text>')
    for step in range(5):
        value = most * step / 4
        y = height - bottom - tall * step / 4
        out.append(f'<line x1="{left}" x2="{width}" y1="{y:.0f}" y2="{y:.0f}" stroke="#dddddd"/>'
                   f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{value:.0f}</text>')
    out.append(f'<text x="6" y="52">{unit}</text>')
    bar = 96 / len(names)
    for at, (label, values) in enumerate(groups):
        x0 = left + 6 + 110 * at
        for number, name in enumerate(names):
            high = tall * values[name] / most
            out.append(f'<rect x="{x0 + bar * number:.1f}" y="{height - bottom - high:.1f}" width="{bar - 1:.1f}" '
                       f'height="{high:.1f}" fill="{COLOURS[number]}"><title>{name}: {values[name]:.1f}</title></rect>')
        for line, part in enumerate(label.split(", ")):
            out.append(f'<text x="{x0 + 48}" y="{height - bottom + 16 + 13 * line}" text-anchor="middle">{part}</text>')
    out.append("</svg>\n")
    return "\n".join(out)


def main():
    figures = json.load(open(sys.argv[1]))["figures"]
    locks, names = {}, []
    look_ups = {}
    for figure in figures:
        found = re.match(r"ordered: (.*), against", figure["name"])
        if found and "pauses" not in found[1]:
            pairs = re.findall(r"(\S.*?) (\d+)(?:, |$)", figure["versus"].split(": ")[1])
            values = {name: float(rate) for name, rate in pairs}
            locks[found[1]], names = values, list(values)
        found = re.match(r"SeqRangeMap: look-up among (\d+) ranges", figure["name"])
        if found:
            ns = [float(n) for n in re.findall(r"([\d.]+) ns", figure["versus"])]
            look_ups[f"{int(found[1]):,} ranges".replace(",", "'")] = {
                "rangemap": ns[0], "one reader": ns[1], "a pin each": ns[2]}
    with open("locks.svg", "w") as file:
        file.write(bars("Two threads lock ranges of an array", "sections/ms", list(locks.items()), names))
    with open("map.svg", "w") as file:
        file.write(bars("A look-up in a map of ranges", "ns", list(look_ups.items()),
                        ["one reader", "a pin each", "rangemap"]))


main()

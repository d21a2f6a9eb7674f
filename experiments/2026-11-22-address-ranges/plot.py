#!/usr/bin/env python3
"""plot.py FOLDER: draws ratio.svg from memory.json."""
import json, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from curves import svg

FOLDER = sys.argv[1] if len(sys.argv) > 1 else '.'
FIGURES = {row['name']: row['value'] for row in json.load(open(f'{FOLDER}/memory.json'))['figures']}

def ratios():
    sizes = [1000, 10000, 100000, 1000000]
    kinds = [('kernel rule, alloc p50', "red-black tree, kernel's rule / ours: alloc p50"),
             ('kernel rule, alloc p99', "red-black tree, kernel's rule / ours: alloc p99"),
             ('kernel rule, free p50', "red-black tree, kernel's rule / ours: free p50"),
             ('exact red-black, alloc p50', 'red-black tree, exact / ours: alloc p50'),
             ('vmem, alloc and free p50', 'crate vmem / ours: alloc and free p50')]
    series = [(name, [FIGURES.get(f'{row}, {size} live') for size in sizes]) for name, row in kinds]
    svg(f'{FOLDER}/ratio.svg', 'Time of others / ours (above 1: ours is faster)', [f'{s:,}' for s in sizes], series, 'live blocks', 'ratio', True)


ratios()

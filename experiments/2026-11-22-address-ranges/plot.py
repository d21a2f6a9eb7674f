#!/usr/bin/env python3
"""plot.py FOLDER: draws ratio.svg from memory.json, and scaling.svg and scaling.txt from the model."""
import json, re, sys

FOLDER = sys.argv[1] if len(sys.argv) > 1 else '.'
FIGURES = {row['name']: row['value'] for row in json.load(open(f'{FOLDER}/memory.json'))['figures']}

# ---- the model: cycles of CPUs through their own work and two places of contention
#
# A turn (one allocation, one free) takes `own` ns of work under the CPU's own lock. A share `shared` of turns takes the
# global lock for `hold` ns, within which `lines` lines come from another CPU, `transfer` ns each. A share `remote` of the frees takes another
# CPU's lock. The lines of a lock that nobody else has had stay where they are. Mean value analysis (Reiser and Lavenberg, 1980)
# of a closed network with one customer a CPU: the global lock is a queue, the locks of slots are n queues, own work is a delay.

OWN, HOLD, LINES = 250.0, 150.0, 12


def transfer(cpus):
    """One line from another CPU: within an LLC of 8, a socket of 64, or another socket."""
    within = min(cpus, 8) / cpus
    socket = min(cpus, 64) / cpus - within
    return 40 * within + 120 * socket + 250 * (1 - within - socket)


def throughput(cpus, shared, remote):
    """Turns a microsecond."""
    line = transfer(cpus) if cpus > 1 else 0
    glob = HOLD + LINES * line
    far = (OWN / 2 + 6 * line) * (cpus > 1)
    queue_g = queue_f = 0.0
    for n in range(1, cpus + 1):
        wait_g = shared * glob * (1 + queue_g)
        wait_f = remote * far * (1 + queue_f)
        x = n / (OWN + wait_g + wait_f)
        queue_g, queue_f = x * wait_g, x * wait_f / cpus
    return x * 1000


CPUS = [1, 2, 4, 8, 16, 32, 64, 96, 128, 160]
CASES = [
    ('a mutex around one tree', 1.0, 0.0),
    ('shared, one turn in 100 takes a span', 0.01, 0.0),
    ('shared, one in 1000', 0.001, 0.0),
    ('shared, one in 10,000', 0.0001, 0.0),
    ('shared, one in 10,000, half of the frees remote', 0.0001, 0.5),
]


def table():
    lines = ['speed-up over one CPU, by the model', 'CPUs  ' + '  '.join(f'{name}' for name, _, _ in CASES)]
    for cpus in CPUS:
        row = [throughput(cpus, s, r) / throughput(1, s, r) for _, s, r in CASES]
        lines.append(f'{cpus:4}  ' + '  '.join(f'{v:{len(name)}.1f}' for v, (name, _, _) in zip(row, CASES)))
    for name, s, r in CASES[:4]:
        line = transfer(160)
        lines.append(f'{name}: the global lock is busy all the time from {(OWN + s * 1) / (s * (HOLD + LINES * line)):.0f} CPUs on')
    return '\n'.join(lines) + '\n'


# ---- drawing

COLOURS = ['#1f6feb', '#d1242f', '#2da44e', '#bf8700', '#8250df']


def svg(path, title, xs, series, x_name, y_name, log_y):
    import math
    width, height, left, bottom, top = 760, 440, 60, 60, 40
    ys = [y for _, values in series for y in values if y]
    lo, hi = (min(ys), max(ys)) if log_y else (0, max(ys))
    place_x = lambda i: left + i * (width - left - 200) / (len(xs) - 1)
    scale = (lambda y: math.log(y)) if log_y else (lambda y: y)
    place_y = lambda y: height - bottom - (scale(y) - scale(lo or 1e-9) if log_y else y - lo) / ((scale(hi) - scale(lo)) if log_y else (hi - lo)) * (height - bottom - top)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height}" fill="white"/>', f'<text x="{left}" y="20" font-size="14">{title}</text>']
    for i, x in enumerate(xs):
        out.append(f'<text x="{place_x(i):.0f}" y="{height - bottom + 18}" text-anchor="middle">{x}</text>')
    ticks = [10 ** e for e in range(-1, 5) if lo <= 10 ** e <= hi] if log_y else [hi * i / 4 for i in range(5)]
    for tick in ticks + ([1, 2] if log_y else []):
        y = place_y(tick)
        out.append(f'<line x1="{left}" x2="{width - 200}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    out.append(f'<text x="{(width - 140) / 2}" y="{height - 14}" text-anchor="middle">{x_name}</text>')
    out.append(f'<text transform="translate(14 {height / 2}) rotate(-90)" text-anchor="middle">{y_name}</text>')
    for at, (name, values) in enumerate(series):
        colour = COLOURS[at % len(COLOURS)]
        points = ' '.join(f'{place_x(i):.1f},{place_y(y):.1f}' for i, y in enumerate(values) if y)
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{width - 192}" y="{60 + 18 * at}" fill="{colour}">{name}</text>')
    open(f'{FOLDER}/{path}', 'w').write('\n'.join(out + ['</svg>']) + '\n')


def ratios():
    sizes = [1000, 10000, 100000, 1000000]
    kinds = [('kernel rule, alloc p50', "red-black tree, kernel's rule / ours: alloc p50"),
             ('kernel rule, alloc p99', "red-black tree, kernel's rule / ours: alloc p99"),
             ('kernel rule, free p50', "red-black tree, kernel's rule / ours: free p50"),
             ('exact red-black, alloc p50', 'red-black tree, exact / ours: alloc p50'),
             ('vmem, alloc and free p50', 'crate vmem / ours: alloc and free p50')]
    series = [(name, [FIGURES.get(f'{row}, {size} live') for size in sizes]) for name, row in kinds]
    svg('ratio.svg', 'Time of others / ours (above 1: ours is faster)', [f'{s:,}' for s in sizes], series, 'live blocks', 'ratio', True)


ratios()
series = [(name.replace('shared, ', ''), [throughput(c, s, r) / throughput(1, s, r) for c in CPUS]) for name, s, r in CASES]
svg('scaling.svg', 'Speed-up by the model', CPUS, series, 'CPUs', 'speed-up', False)
open(f'{FOLDER}/scaling.txt', 'w').write(table())
print(table(), end='')

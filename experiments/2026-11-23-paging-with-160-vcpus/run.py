#!/usr/bin/env python3
"""run.py AMDAHL: the curves of demand paging on machines with 160 and 256 CPUs, by `amdahl sim run paging`."""
import csv, json, statistics, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from curves import svg

AMDAHL = sys.argv[1]
SEEDS = 3
PAGE = 4096

# The talk's machine is not named; this one has its number of CPUs. The second is what "256 cores" of its kind were.
TALK = '2 node x 40 core x 2 thread'
SERIES = '2 node x 8 llc x 8 core x 2 thread'
# Fitted to the series' first row; its memory is there already, so pages have no content to bring.
MINOR = dict(enter=800, leave=400, receive=350, install=650, content=0)

VCPUS = [1, 2, 4, 8, 16, 32, 64, 128, 160]
MODES = [
    ('plain', lambda n: dict(descriptors=1)),
    ('many readers', lambda n: dict(readers=n)),
    ('sharded, own pages', lambda n: dict(descriptors=160)),
    ('sharded, random pages', lambda n: dict(descriptors=160, anywhere=1)),
    ('inline', lambda n: dict(alone=1)),
]
READERS = [1, 2, 4, 8, 16, 32, 64, 96, 128, 160]
# vCPUs, thousands of pages a second as published: one descriptor with as many readers as vCPUs.
PUBLISHED = [(1, 150), (2, 191), (4, 210), (8, 155), (16, 130), (32, 108), (64, 86), (128, 62), (256, 36)]


def simulate(job):
    name, machine, vcpus, settings = job
    faults = max(40, 8000 // vcpus)
    command = [AMDAHL, 'sim', 'run', 'paging', '--machine', machine, '--costs', 'userfaultfd-2018', '--runs', str(SEEDS), '--json', '-q']
    for key, value in dict(settings, vcpus=vcpus, pages=faults).items():
        command += ['--set', f'{key}={value}']
    runs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)['runs']
    assert len(runs) == SEEDS and all(run['end'] == 'done' for run in runs), command
    middle = lambda value: statistics.median(map(value, runs))
    busy = lambda run: sum(ns for use, ns in run['used_ns'].items() if use != 'idle')
    return dict(
        what=name, vcpus=vcpus,
        kpages_s=middle(lambda run: run['counters']['pages'] / run['makespan_ns'] * 1e6),
        p50_us=middle(lambda run: run['histograms']['fault']['p50'] / 1e3),
        p99_us=middle(lambda run: run['histograms']['fault']['p99'] / 1e3),
        spinning=middle(lambda run: run['used_ns'].get('spin', 0) / busy(run)),
    )


jobs = [(name, TALK, n, settings(n)) for name, settings in MODES for n in VCPUS]
jobs += [(f'{readers} readers', TALK, 160, dict(readers=readers)) for readers in READERS]
jobs += [('series', SERIES, n, dict(MINOR, readers=n)) for n, _ in PUBLISHED]
with ThreadPoolExecutor(2) as pool:
    rows = list(pool.map(simulate, jobs))

with open(HERE / 'results.csv', 'w', newline='') as file:
    table = csv.DictWriter(file, rows[0])
    table.writeheader()
    for row in rows:
        table.writerow({key: f'{value:.4g}' if isinstance(value, float) else value for key, value in row.items()})

of = lambda name: {row['vcpus']: row for row in rows if row['what'] == name}
mb = lambda row: row['kpages_s'] * PAGE / 1e3
lines = ['# Results', '', 'MB/s of 4 KiB pages; in brackets the 99th percentile of a fault in us.', '',
         '| vCPUs | ' + ' | '.join(name for name, _ in MODES) + ' |', '|---|' + '---|' * len(MODES)]
for n in VCPUS:
    cells = [of(name)[n] for name, _ in MODES]
    lines.append(f'| {n} | ' + ' | '.join(f'{mb(row):,.0f} ({row["p99_us"]:,.0f})' for row in cells) + ' |')
lines += ['', '160 vCPUs, one descriptor, more readers:', '', '| readers | MB/s | p50 us | spinning, of busy CPU time |', '|---|---|---|---|']
for readers in READERS:
    row = of(f'{readers} readers')[160]
    lines.append(f'| {readers} | {mb(row):,.0f} | {row["p50_us"]:,.0f} | {row["spinning"]:.0%} |')
lines += ['', 'One descriptor, as many readers as vCPUs, 256 CPUs, minor faults; thousands of pages a second:', '',
          '| vCPUs | published | simulated | ratio |', '|---|---|---|---|']
for n, published in PUBLISHED:
    found = of('series')[n]['kpages_s']
    note = ', fitted' if n == 1 else ''
    lines.append(f'| {n} | {published} | {found:.0f} | {found / published:.2f}{note} |')
(HERE / 'results.md').write_text('\n'.join(lines) + '\n')

svg(HERE / 'rate.svg', 'Demand paging on 160 CPUs, simulated: MB/s of 4 KiB pages', [str(n) for n in VCPUS],
    [(name, [mb(of(name)[n]) for n in VCPUS]) for name, _ in MODES], 'vCPUs', 'MB/s', True)

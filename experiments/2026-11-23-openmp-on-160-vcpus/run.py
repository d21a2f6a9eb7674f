#!/usr/bin/env python3
"""run.py AMDAHL: a team of OpenMP threads beside a neighbour whose demand steps, by `amdahl sim run openmp`."""
import csv, json, math, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
AMDAHL = sys.argv[1]
BARRIERS = 1200
SEQUENCES = 2

MACHINES = {96: '2 node x 24 core x 2 thread', 160: '2 node x 40 core x 2 thread'}
# libgomp spins 300,000 turns unless it is told otherwise, each with a pause, which takes 12 to 140 cycles by the CPU.
# How long that may last, in ms.
SPINS = [1, 2, 4, 6, 10]
# Barriers of a region.
SHAPES = {'many regions': 10, 'few regions': 300}
SLOTS = ['100ms', '1s']
# The most CPUs that the neighbour wants: with all of them the host has twice as many virtual CPUs as CPUs.
LOADS = lambda vcpus: [vcpus // 2, vcpus]
POLICIES = {
    'libgomp active': dict(spin='1000s'),
    'libgomp, 10 ms': dict(spin='10ms'),
    'libgomp, 2 ms': dict(spin='2ms'),
    'libgomp passive': dict(spin=0),
    'ours': dict(adaptive=1),
    'ours, guest': dict(adaptive=1, shrinks=1),
    'ours, steal': dict(adaptive=1, shrinks=3),
    'ours, host': dict(adaptive=1, shrinks=2),
}


def simulate(job):
    vcpus, shape, slot, policy, steps, load = job
    settings = dict(POLICIES.get(policy) or dict(spin=policy.removeprefix('spin ')), vcpus=vcpus, load=load, slot=slot, steps=steps, work=f'{vcpus}ms',
                    barriers=SHAPES[shape], regions=BARRIERS // SHAPES[shape])
    command = [AMDAHL, 'sim', 'run', 'openmp', '--machine', MACHINES[vcpus], '--policy', 'linux', '--runs', '1', '--json', '-q']
    for key, value in settings.items():
        command += ['--set', f'{key}={value}']
    [run] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)['runs']
    assert run['end'] == 'done' and run['counters']['barriers'] == BARRIERS, command
    return dict(vcpus=vcpus, shape=shape, slot=slot, policy=policy, steps=steps, load=load, s=run['makespan_ns'] / 1e9,
                spinning=run['used_ns'].get('spin', 0) / sum(run['used_ns'].values()),
                neighbour=run['counters'].get('neighbour', 0) / run['makespan_ns'] * 1e6 / vcpus)


jobs = [(vcpus, shape, '1s', policy, 1, 0) for vcpus in MACHINES for shape in SHAPES for policy in POLICIES]
jobs += [(vcpus, shape, slot, policy, steps, load)
         for vcpus in MACHINES for shape in SHAPES for slot in SLOTS for load in LOADS(vcpus) for policy in POLICIES for steps in range(1, SEQUENCES + 1)]
jobs += [(96, 'many regions', '1s', f'spin {ms}ms', steps, load) for load in LOADS(96) for ms in SPINS for steps in range(1, SEQUENCES + 1)]
with ThreadPoolExecutor(2) as pool:
    rows = list(pool.map(simulate, jobs))

with open(HERE / 'results.csv', 'w', newline='') as file:
    table = csv.DictWriter(file, rows[0])
    table.writeheader()
    for row in rows:
        table.writerow({key: f'{value:.4g}' if isinstance(value, float) else value for key, value in row.items()})

of = lambda **wanted: [row for row in rows if all(row[key] == value for key, value in wanted.items())]
mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
seconds = lambda **wanted: mean([row['s'] for row in of(**wanted)])
names = list(POLICIES)
heading = ['| vCPUs | regions | neighbour | ' + ' | '.join(names) + ' | libgomp, 10 and 2 ms / ours, guest |', '|---' * (len(names) + 4) + '|']
lines = ['# Results', '', f'Seconds for {BARRIERS} barriers; beside the neighbour the geometric mean of {SEQUENCES} sequences of steps.', '', *heading]
cases = [(vcpus, shape, slot, load) for vcpus in MACHINES for shape in SHAPES for slot, load in [('1s', 0), *((slot, load) for slot in SLOTS for load in LOADS(vcpus))]]
for vcpus, shape, slot, load in cases:
    at = lambda policy: seconds(vcpus=vcpus, shape=shape, slot=slot, load=load, policy=policy)
    told = f'0 to {load}, each {slot}' if load else 'none'
    lines.append(f'| {vcpus} | {shape} | {told} | ' + ' | '.join(f'{at(name):.2f}' for name in names) + f' | {at("libgomp, 10 ms") / at("ours, guest"):.1f}, {at("libgomp, 2 ms") / at("ours, guest"):.1f} |')
for title, key in [('Share of all CPU time that is spun away', 'spinning'), ("The neighbour's work, in CPUs of the machine's", 'neighbour')]:
    lines += ['', f'{title}:', '', heading[0].replace(' | libgomp, 10 and 2 ms / ours, guest', ''), '|---' * (len(names) + 3) + '|']
    for vcpus, shape, slot, load in cases:
        if load:
            at = lambda policy: [row[key] for row in of(vcpus=vcpus, shape=shape, slot=slot, load=load, policy=policy)]
            cells = [f'{sum(at(name)) / SEQUENCES:.0%}' for name in names]
            lines.append(f'| {vcpus} | {shape} | 0 to {load}, each {slot} | ' + ' | '.join(cells) + ' |')
lines += ['', 'What libgomp takes / ours, by how long libgomp spins; 96 vCPUs, many regions, steps each 1s:', '',
          '| neighbour | | ' + ' | '.join(f'{ms} ms' for ms in SPINS) + ' |', '|---' * (len(SPINS) + 2) + '|']
for load in LOADS(96):
    at = lambda policy: seconds(vcpus=96, shape='many regions', slot='1s', load=load, policy=policy)
    for ours in ['ours, guest', 'ours, steal', 'ours, host']:
        lines.append(f'| 0 to {load} | {ours} | ' + ' | '.join(f'{at(f"spin {ms}ms") / at(ours):.1f}' for ms in SPINS) + ' |')
(HERE / 'results.md').write_text('\n'.join(lines) + '\n')

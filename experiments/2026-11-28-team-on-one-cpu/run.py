"""Two threads beside two busy processes, by who is on which CPU; see README.md. Usage: run.py PROGRAMS OUT"""
import csv
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

programs, out = Path(sys.argv[1]), Path(sys.argv[2])
rounds = int(os.environ.get('ROUNDS', '6'))
page = programs / 'page'
KERNELS = ['lu', 'cg', 'ua', 'mg', 'ft', 'ep', 'tasks']
# `free`: where the kernel puts them. The last two are held: the team on one CPU, or a thread and a busy process on each.
MODES = ['alone', 'free', 'together', 'spread']
# Of others than these programs, in CPUs: more is another experiment.
FOREIGN_MOST = 0.1
FIRST, SECOND = sorted(os.sched_getaffinity(0))
BOTH = {FIRST, SECOND}
HZ = os.sysconf('SC_CLK_TCK')


def fields(descriptor):
    text = os.pread(descriptor, 1000, 0).decode()
    return text[text.rindex(')') + 2:].split()


def cpu_of(descriptor):
    return int(fields(descriptor)[36])


def seconds_of(descriptor):
    return sum(int(word) for word in fields(descriptor)[11:13]) / HZ


def busy_seconds():
    user, nice, system, _, _, hard, soft, *_ = (int(word) for word in open('/proc/stat').readline().split()[1:])
    return (user + nice + system + hard + soft) / HZ


def state(team, loads):
    """`together`: the team on one CPU and the loads on the other; `spread`: one of each on each CPU."""
    team, loads = {cpu_of(each) for each in team}, {cpu_of(each) for each in loads}
    if len(team) == 2:
        return 'spread' if len(loads) == 2 else 'other'
    return 'together' if len(loads) == 1 and team != loads else 'other'


def hold(mode, threads, loads):
    """Holds them there. The masks of the team's threads stay different from each other: the runtime takes it for the CPUs of the process
    if all are the same, and would have a thread too many."""
    if mode == 'together':
        for thread in reversed(threads):
            os.sched_setaffinity(thread, {FIRST})
        os.sched_setaffinity(threads[1], BOTH)
        for load in loads:
            os.sched_setaffinity(load, {SECOND})
    if mode == 'spread':
        for thread, load, cpu in zip(threads, loads, (FIRST, SECOND)):
            os.sched_setaffinity(thread, {cpu})
            os.sched_setaffinity(load, {cpu})


def run(kernel, mode, seconds=1.0):
    count = 0 if mode == 'alone' else 2
    page.write_bytes(bytes(64 * (count + 2)))
    environment = {name: value for name, value in os.environ.items() if not re.match('OMP_|GOMP_|AMDAHL_|LD_', name)}
    environment |= {'LD_LIBRARY_PATH': programs / 'lib', 'OMP_NUM_THREADS': '2'}
    loads = [subprocess.Popen([programs / 'load', page, str(i), '0', '1']) for i in range(count)]
    try:
        while any(page.read_bytes()[64 * (1 + i)] == 0 for i in range(count)):
            time.sleep(0.001)
        load_files = [os.open(f'/proc/{load.pid}/stat', os.O_RDONLY) for load in loads]
        before, spent_before, times_before = busy_seconds(), sum(map(seconds_of, load_files)), os.times()
        command = [programs / 'kernels', kernel, str(seconds), '2', page, str(count), '1', '0']
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        threads, files, states = [], [], []
        while process.poll() is None:
            time.sleep(0.004)
            try:
                if len(threads) < 2:
                    threads = sorted(int(name) for name in os.listdir(f'/proc/{process.pid}/task'))
                    if len(threads) == 2:
                        hold(mode, threads, [load.pid for load in loads])
                        files = [os.open(f'/proc/{process.pid}/task/{thread}/stat', os.O_RDONLY) for thread in threads]
                    continue
                if count:
                    states.append((time.monotonic(), state(files, load_files)))
            except (FileNotFoundError, ProcessLookupError, ValueError):
                break
        told = json.loads(process.communicate()[0])
        after, spent_after, times_after = busy_seconds(), sum(map(seconds_of, load_files)), os.times()
    finally:
        for load in loads:
            load.send_signal(signal.SIGKILL)
            load.wait()
    wall = times_after.elapsed - times_before.elapsed
    own = times_after.children_user + times_after.children_system - times_before.children_user - times_before.children_system
    ours = times_after.user + times_after.system - times_before.user - times_before.system
    for descriptor in [*load_files, *files]:
        os.close(descriptor)
    episodes, begun = [], None
    for at, now in [*states, (states[-1][0], '')] if states else []:
        if now == 'together':
            begun = begun or at
        elif begun:
            episodes.append(at - begun)
            begun = None
    share = {name: sum(now == name for _, now in states) / max(1, len(states)) for name in ('together', 'spread')}
    return {
        'kernel': kernel, 'mode': mode, 'unit_ms': told['wall_ns'] / told['units'] / 1e6, 'cpus': own / wall,
        'foreign': (after - before - (spent_after - spent_before) - own - ours) / wall,
        'together': share['together'], 'spread': share['spread'], 'longest_s': max(episodes, default=0.0),
    }


rows = []


def median(kept, kernel, mode, what):
    found = [row[what] for row in kept if row['mode'] == mode and (kernel is None or row['kernel'] == kernel)]
    return statistics.median(found) if found else float('nan')


def write():
    with open(out / 'results.csv', 'w', newline='') as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()} for row in rows)
    kept = [row for row in rows if row['foreign'] <= FOREIGN_MOST]
    text = [
        f'{len(kept)} of {len(rows)} runs; in the others more than {FOREIGN_MOST} CPUs went to programs that are not part of this.\n\n',
        '## Wall time over that alone, and CPUs that the team ran on: medians\n\n',
        '| | ' + ' | '.join(MODES[1:]) + ' |\n', '|---' * len(MODES) + '|\n',
    ]
    ratios = {mode: [] for mode in MODES[1:]}
    for kernel in KERNELS:
        alone = median(kept, kernel, 'alone', 'unit_ms')
        cells = []
        for mode in MODES[1:]:
            ratios[mode].append(median(kept, kernel, mode, 'unit_ms') / alone)
            cells.append(f"{ratios[mode][-1]:.2f} ({median(kept, kernel, mode, 'cpus'):.2f})")
        text.append(f'| {kernel} | ' + ' | '.join(cells) + ' |\n')
    means = [math.exp(statistics.fmean(map(math.log, ratios[mode]))) for mode in MODES[1:]]
    text.append('| geometric mean | ' + ' | '.join(f'{mean:.2f}' for mean in means) + ' |\n')
    text.append('\n## Where they were, over all kernels\n\n| | runs | share of the time together, mean | spread, mean | runs with 0.1 s together or more |\n')
    text.append('|---|---|---|---|---|\n')
    for mode in MODES[1:]:
        found = [row for row in kept if row['mode'] == mode]
        mean = {what: statistics.fmean(row[what] for row in found) if found else float('nan') for what in ('together', 'spread')}
        long = sum(row['longest_s'] >= 0.1 for row in found)
        text.append(f"| {mode} | {len(found)} | {mean['together']:.2f} | {mean['spread']:.2f} | {long} |\n")
    (out / 'results.md').write_text(''.join(text))


for number in range(rounds):
    for kernel in KERNELS:
        for mode in MODES:
            rows.append({'round': number} | run(kernel, mode))
            print(' '.join(f'{value:.3f}' if isinstance(value, float) else str(value) for value in rows[-1].values()), file=sys.stderr, flush=True)
write()

"""Libraries beside two busy processes, in turn; see README.md. Usage: run.py PROGRAMS OUT NAME=FOLDER..."""
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
from collections import Counter
from pathlib import Path

programs, out = Path(sys.argv[1]), Path(sys.argv[2])
libraries = [word.split('=', 1) for word in sys.argv[3:]]
rounds = int(os.environ.get('ROUNDS', '8'))
cpus = os.cpu_count()
page = programs / 'page'
KERNELS = ['lu', 'cg', 'ua', 'mg', 'ft', 'ep', 'tasks']
PHASES = [(us, differ, mode, 0) for us in (50, 300, 1000) for differ, mode in ((0, 'static'), (20, 'random'), (50, 'random'), (50, 'static'))]
REGIONS = [(us, 0, 'regions', serial) for us in (300, 1000) for serial in (0, 100, 700, 2000)]


class Loads:
    """A busy process for each CPU, or none; in a session of their own, which is a group of the scheduler's, if `apart`."""

    def __init__(self, count, apart=False):
        page.write_bytes(bytes(64 * (count + 2)))
        self.count = count
        self.all = [subprocess.Popen([programs / 'load', page, str(i), '0', '1'], start_new_session=apart) for i in range(count)]
        while any(page.read_bytes()[64 * (1 + i)] == 0 for i in range(count)):
            time.sleep(0.001)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for load in self.all:
            load.send_signal(signal.SIGKILL)
            load.wait()


def environment(folder, threads, dynamic=False):
    keep = {name: value for name, value in os.environ.items() if not re.match('OMP_|GOMP_|AMDAHL_|LD_', name)}
    more = {'OMP_DYNAMIC': 'true'} if dynamic else {}
    return keep | more | {'LD_LIBRARY_PATH': folder, 'OMP_NUM_THREADS': str(threads)}


def kernel_command(name, seconds, loads):
    return [programs / 'kernels', name, str(seconds), str(cpus), page, str(loads), '1', '0']


def kernel(name, seconds, loads, env):
    told = json.loads(subprocess.run(kernel_command(name, seconds, loads), env=env, check=True, capture_output=True, text=True).stdout)
    return told['wall_ns'] / told['units']


def phases(what, seconds, env):
    us, differ, mode, serial = what
    command = [programs / 'phases', str(us), str(differ), mode, str(serial), str(seconds)]
    return float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)


def states(name, folder):
    """Shares of the time in which of two threads so many Run, are Queued and Sleep; from the scheduler's events."""
    data = programs / 'perf.data'
    with Loads(cpus) as loads:
        command = ['perf', 'record', '-q', '-a', '-e', 'sched:sched_switch,sched:sched_waking', '-o', data, *kernel_command(name, 0.5, loads.count)]
        if subprocess.run(command, env=environment(folder, 2), capture_output=True).returncode:
            return None
    text = subprocess.run(['perf', 'script', '-i', data, '-F', 'time,event,trace'], capture_output=True, text=True).stdout
    switch = re.compile(r'prev_comm=(.*) prev_pid=(\d+) .*prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+)')
    events = [(float(at), what, rest) for at, what, rest in re.findall(r'([\d.]+):\s+sched:sched_(switch|waking):\s*(.*)', text)]
    now, last, spent = {}, None, Counter()
    begin = events[-1][0] - 0.4
    for at, what, rest in events:
        if last is not None and last >= begin:
            spent[''.join(sorted(now.values()))] += at - last
        last = at
        if what == 'switch' and (found := switch.search(rest)):
            before, before_id, left, after, after_id = found.groups()
            if before == 'kernels':
                now[before_id] = 'Q' if left.startswith('R') else 'S'
            if after == 'kernels':
                now[after_id] = 'R'
        elif what == 'waking' and (found := re.search(r' pid=(\d+)', rest)) and now.get(found[1]) == 'S':
            now[found[1]] = 'Q'
    whole = sum(spent.values())
    return {key: value / whole for key, value in spent.items() if value > whole / 200}


rows = []


def compare(what, alone, run):
    """`run(library's folder)` beside loads, over `alone`, for each library in each round."""
    found = {name: [] for name, _ in libraries}
    for number in range(rounds):
        for name, folder in libraries[number % len(libraries):] + libraries[:number % len(libraries)]:
            found[name].append(run(folder) / alone)
            rows.append([what, name, number, f'{found[name][-1]:.4f}'])
    line = {name: statistics.median(values) for name, values in found.items()}
    print(what, ' '.join(f'{name} {value:.2f}' for name, value in line.items()), file=sys.stderr, flush=True)
    return line


def table(title, lines):
    names = [name for name, _ in libraries]
    text = [f'\n## {title}\n', '| | ' + ' | '.join(names) + ' |', '|---' * (len(names) + 1) + '|']
    for what, line in lines.items():
        text.append(f'| {what} | ' + ' | '.join(f'{line[name]:.2f}' for name in names) + ' |')
    mean = {name: math.exp(statistics.fmean(math.log(line[name]) for line in lines.values())) for name in names}
    text.append('| geometric mean | ' + ' | '.join(f'{mean[name]:.2f}' for name in names) + ' |')
    return '\n'.join(text) + '\n'


def beside(run, apart=False):
    def once(folder):
        with Loads(cpus, apart) as loads:
            return run(folder, loads.count)
    return once


first = libraries[0][1]


def alone_ns(name):
    with Loads(0) as loads:
        return kernel(name, 0.3, loads.count, environment(first, cpus))


alone = {name: min(alone_ns(name) for _ in range(3)) for name in KERNELS}
report = ['# Wall time beside a busy process for each CPU, over that of the same alone\n']
for title, apart, dynamic in [
    ('Kernels, a thread for each CPU', False, False),
    ('The same with OMP_DYNAMIC=true and twice as many threads asked for', False, True),
    ('As the first, with the busy processes in a group of their own', True, False),
]:
    threads = 2 * cpus if dynamic else cpus
    lines = {
        name: compare(f'{title}: {name}', alone[name], beside(
            lambda folder, loads, name=name: kernel(name, 0.4, loads, environment(folder, threads, dynamic)), apart))
        for name in KERNELS
    }
    report.append(table(title, lines))
for title, cases in [('Phases with a barrier each', PHASES), ('Regions with serial work between them', REGIONS)]:
    lines = {}
    for case in cases:
        us, differ, mode, serial = case
        what = f'{us} us, {serial} us between' if mode == 'regions' else f'{us} us, {mode}, differ by {differ} %'
        base = min(phases(case, 0.2, environment(first, cpus)) for _ in range(3))
        lines[what] = compare(f'{title}: {what}', base, beside(lambda folder, _, case=case: phases(case, 0.4, environment(folder, cpus))))
    report.append(table(title, lines))
if cpus == 2:
    report.append('\n## What the two threads of a kernel do, in percent of the time\n\nR: runs, Q: waits for a CPU, S: sleeps; `QS`: one waits and the other one sleeps.\n\n')
    for name in ['lu', 'mg']:
        for library, folder in libraries[:2]:
            shares = states(name, folder)
            told = 'not told: perf cannot record' if shares is None else ', '.join(
                f'{key} {100 * value:.0f}' for key, value in sorted(shares.items(), key=lambda pair: -pair[1]))
            report.append(f'- {name}, {library}: {told}\n')
(out / 'results.md').write_text(''.join(report))
with open(out / 'results.csv', 'w', newline='') as file:
    csv.writer(file).writerows([['what', 'library', 'round', 'over alone'], *rows])

#!/usr/bin/env python3
"""model.py AMDAHL: simulates the shared parts on 8 to 160 CPUs with `AMDAHL sim run`; writes results.csv, table.txt and scaling.svg.

Times of steps and the lines that move are from memory.json (`amdahl-bench-memory --only lines`), costs of this machine's
lines, system calls and switches from costs-measured.json (`amdahl sim calibrate`). Lines from further away than this machine
reaches are assumed, in two sets."""
import csv, json, subprocess, sys, tempfile, os
from concurrent.futures import ThreadPoolExecutor

AMDAHL = sys.argv[1] if len(sys.argv) > 1 else 'amdahl'
FIGURES = {row['name']: row['value'] for row in json.load(open('memory.json'))['figures']}
MEASURED = json.load(open('costs-measured.json'))
# 8 CPUs to a last-level cache, up to 10 of these to a socket.
MACHINES = {1: '1 core', 2: '2 core', 8: '8 core', 16: '2 llc x 8 core', 32: '4 llc x 8 core', 64: '8 llc x 8 core',
            96: '2 node x 6 llc x 8 core', 128: '2 node x 8 llc x 8 core', 160: '2 node x 10 llc x 8 core'}
# Another cache of the socket, another socket: assumed. Within a cache: measured here.
FAR = {'near': (110, 160), 'far': (200, 400)}


def costs(far):
    line = dict(MEASURED['line'], node=FAR[far][0], remote=FAR[far][1])
    kept = {key: MEASURED[key] for key in ('context_switch', 'wake', 'syscall', 'idle_exit')}
    # A virtual CPU that idles is gone for a millisecond here; a server's core is back sooner.
    kept['idle_exit'] = min(kept['idle_exit'], 1500)
    return dict(kept, line=line, deep_idle_exit=1500, source=f'line.same, line.llc and system calls measured; node and remote assumed ({far})')


def of(name):
    """A pair on one CPU, and how many lines each step of a pair moves between two."""
    alone, more = FIGURES[name + ': on one CPU'], FIGURES[name + ': more on two CPUs in turn']
    return alone, more / MEASURED['line']['llc'] / 2


SLOT, SLOT_LINES = of('shared form, allocation and free in one slot')
GLOBAL, GLOBAL_LINES = of('shared form, two pairs of the global allocator')
ORDERED, ORDERED_LINES = of('ordered lock, two sections of the same addresses')
SEGMENTED, SEGMENTED_LINES = of('segmented lock, two sections of the same addresses')
SAME = MEASURED['line']['same']


def lines_in(lines):
    """Lines besides that of the lock, which the simulator counts itself."""
    return max(0, round(lines) - 1)


def work(ns, lines):
    """Of a step, what is not the lines and the lock, which cost something on their own CPU as well."""
    return max(1, round(ns - (lines_in(lines) + 1) * SAME))


def locked(lock, lines, first, count, ns):
    touches = '; '.join(f'touch {lines}[({first}) * {count} + {i}]' for i in range(count))
    return f'lock {lock}[{first}]; {touches + "; " if touches else ""}compute {ns}; unlock {lock}[{first}]'


def alloc(cpus, spans, remote):
    """Turns of an allocation and a free: `spans` of a million take a span and give one back, `remote` of a thousand free what another
    CPU has."""
    count, step = lines_in(SLOT_LINES), work(SLOT / 2, SLOT_LINES)
    more = lines_in(GLOBAL_LINES)
    take = locked('all', 'alls', '0', more, work(GLOBAL / 2, GLOBAL_LINES))

    def program(cpu):
        own = locked('slot', 'slots', str(cpu), count, step)
        there = locked('slot', 'slots', 'other', count, step)
        free = f'if random(1000) < {remote} {{ set other random({cpus}); {there} }} else {{ {own} }}' if remote else own
        span = f'if random(1000000) < {spans} {{ {take} }}' if spans else ''
        return f'{own}\n{free}\n{span}\ntally turns'

    return objects(slot=cpus, all=1), objects_of_lines(slots=cpus * count, alls=more), program


def one_mutex(cpus):
    """What it replaces: every step under one lock."""
    count, step = lines_in(SLOT_LINES), work(SLOT / 2, SLOT_LINES)
    once = locked('all', 'alls', '0', count, step)
    return objects(all=1), objects_of_lines(alls=count), lambda cpu: f'{once}\n{once}\ntally turns'


def ordered(cpus, across, whole):
    """Sections: `across` of a thousand in another CPU's part as well, `whole` of a million over everything."""
    count, step = lines_in(ORDERED_LINES), work(ORDERED / 2, ORDERED_LINES)

    def program(cpu):
        own = locked('leaf', 'leaves', str(cpu), count, step)
        text = own
        if across:
            # In the order of addresses; both gates are held until both entries are in.
            other = locked('leaf', 'leaves', 'other', count, step)
            text = f'if random(1000) < {across} {{ set other random({cpus}); {other} }}\n{own}'
        if whole:
            enter = f'loop {cpus} as i {{ lock leaf[i] }}'
            leave = f'loop {cpus} as i {{ unlock leaf[i] }}'
            text = f'if random(1000000) < {whole} {{ {enter}; compute {step}; {leave} }}\n{text}'
        return text + '\ntally turns'

    return objects(leaf=cpus), objects_of_lines(leaves=cpus * count), program


def segmented(cpus, segments):
    """Sections at random addresses of one short range, in so many segments."""
    count, step = lines_in(SEGMENTED_LINES), work(SEGMENTED / 2, SEGMENTED_LINES)
    once = locked('segment', 'words', 'at', count, step)
    return objects(segment=segments), objects_of_lines(words=segments * count), \
        lambda cpu: f'set at random({segments}); {once}\ntally turns'


def reader_writer(cpus):
    """Readers of one reader-writer lock: two changes of its word."""
    return '', objects_of_lines(word=1), lambda cpu: f'touch word[0]; compute {work(ORDERED / 2, 1)}; touch word[0]; tally turns'


def counter(cpus, parts, reads):
    """Additions to so many parts: `reads` of a million turns read all of them. An addition is made amid 100 ns of other work."""
    each = -(-cpus // parts)

    def program(cpu):
        read = f'if random(1000000) < {reads} {{ loop {parts} as i {{ touch part[i] }} }}' if reads else ''
        return f'compute 100; touch part[{cpu // each}]\n{read}\ntally turns'

    return '', objects_of_lines(part=parts), program


def objects(**counts):
    # The standard library's mutex spins for some microseconds, then sleeps.
    return '\n'.join(f'[locks.{name}]\ncount = {count}\nkind = "mutex"\nspin = "5us"' for name, count in counts.items())


def objects_of_lines(**counts):
    return '\n'.join(f'[lines.{name}]\ncount = {count}' for name, count in counts.items() if count)


CASES = [
    ('range-alloc', 'one mutex around a tree', one_mutex),
    ('range-alloc', 'shared, 1 turn in 100 takes a span', lambda n: alloc(n, 10_000, 0)),
    ('range-alloc', 'shared, 1 in 1,000', lambda n: alloc(n, 1_000, 0)),
    ('range-alloc', 'shared, 1 in 10,000', lambda n: alloc(n, 100, 0)),
    ('range-alloc', 'shared, half of the frees elsewhere', lambda n: alloc(n, 100, 500)),
    ('range-lock', 'readers of one reader-writer lock', reader_writer),
    ('range-lock', 'ordered, parts of their own', lambda n: ordered(n, 0, 0)),
    ('range-lock', 'ordered, 1 in 100 elsewhere', lambda n: ordered(n, 10, 0)),
    ('range-lock', 'ordered, 1 in 10,000 over all', lambda n: ordered(n, 0, 100)),
    ('range-lock', 'segmented, 16 segments', lambda n: segmented(n, 16)),
    ('range-lock', 'segmented, 16 for each CPU', lambda n: segmented(n, 16 * n)),
    ('spread', 'one shared atomic', lambda n: counter(n, 1, 0)),
    ('spread', 'Counter per LLC', lambda n: counter(n, -(-n // 8), 0)),
    ('spread', 'Counter per CPU', lambda n: counter(n, n, 0)),
    ('spread', 'Counter per CPU, 1 read in 10,000', lambda n: counter(n, n, 100)),
]


def simulate(job):
    far, part, name, make, cpus = job
    locks, lines, program = make(cpus)
    turns = 3000
    tasks = '\n'.join(f'[[tasks]]\nname = "cpu{cpu}"\ncpus = "{cpu}"\nthreads = true\nprogram = """\nbarrier begin\nloop {turns} {{\n{program(cpu)}\n}}\nbarrier end\n"""' for cpu in range(cpus))
    begin = f'[barriers.begin]\nparties = {cpus}\nspin = "1s"\n[barriers.end]\nparties = {cpus}\nspin = "1s"'
    with tempfile.TemporaryDirectory() as folder:
        path, cost = os.path.join(folder, 'case.toml'), os.path.join(folder, 'costs.json')
        open(path, 'w').write(f'name = "case"\n{locks}\n{lines}\n{begin}\n{tasks}\n')
        json.dump(costs(far), open(cost, 'w'))
        run = subprocess.run([AMDAHL, 'sim', 'run', path, '--machine', MACHINES[cpus], '--costs', cost, '--json', '-q'], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f'{name}, {cpus}: {run.stderr}')
    result = json.loads(run.stdout)['runs'][0]
    assert result['end'] == 'done', (name, cpus, result['end'])
    return result['counters']['turns'] / result['makespan_ns'] * 1000, result['used_ns']


jobs = [(far, part, name, make, cpus) for far in FAR for part, name, make in CASES for cpus in MACHINES]
with ThreadPoolExecutor(os.cpu_count()) as pool:
    found = list(pool.map(simulate, jobs))
RATE = {(far, name, cpus): rate for (far, _, name, _, cpus), (rate, _) in zip(jobs, found)}
with open('results.csv', 'w', newline='') as out:
    rows = csv.writer(out, lineterminator='\n')
    rows.writerow(['lines', 'part', 'case', 'cpus', 'turns_per_us', 'speedup', 'user_share', 'stall_share', 'spin_share', 'idle_share'])
    for (far, part, name, _, cpus), (rate, used) in zip(jobs, found):
        all_ns = sum(used.values())
        shares = [round(used.get(use, 0) / all_ns, 4) for use in ('user', 'stall', 'spin', 'idle')]
        rows.writerow([far, part, name, cpus, round(rate, 3), round(rate / RATE[far, name, 1], 2), *shares])

with open('table.txt', 'w') as out:
    for far, (node, remote) in FAR.items():
        out.write(f'speed-up over one CPU; a line from another cache of the socket {node} ns, from another socket {remote} ns\n')
        out.write(f'{"":48}' + ''.join(f'{cpus:>8}' for cpus in MACHINES) + '\n')
        for part, name, _ in CASES:
            row = ''.join(f'{RATE[far, name, cpus] / RATE[far, name, 1]:8.1f}' for cpus in MACHINES)
            out.write(f'{part + ": " + name:48}' + row + '\n')
        out.write('\n')
print(open('table.txt').read())

# ---- drawing: a panel for each part

COLOURS = ['#d1242f', '#bf8700', '#2da44e', '#1f6feb', '#8250df']
width, height, left, top = 300, 300, 46, 34
parts = list(dict.fromkeys(part for part, _, _ in CASES))
out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(parts) * (width + 40)}" height="{height + 190}" font-family="sans-serif" font-size="11">',
       '<rect width="100%" height="100%" fill="white"/>']
xs = list(MACHINES)
for number, part in enumerate(parts):
    base = number * (width + 40)
    x = lambda cpus: base + left + cpus / 160 * (width - left)
    y = lambda speedup: top + height * (1 - speedup / 160)
    out.append(f'<text x="{base + left}" y="20" font-size="14">{part}: speed-up by CPUs</text>')
    for tick in (0, 40, 80, 120, 160):
        out.append(f'<line x1="{x(0)}" x2="{x(160)}" y1="{y(tick)}" y2="{y(tick)}" stroke="#ddd"/><text x="{x(0) - 6}" y="{y(tick) + 4}" text-anchor="end">{tick}</text><text x="{x(tick)}" y="{y(0) + 16}" text-anchor="middle">{tick}</text>')
    for colour, (_, name, _) in zip(COLOURS, [case for case in CASES if case[0] == part]):
        for far, dash in (('near', ''), ('far', ' stroke-dasharray="4 3"')):
            points = ' '.join(f'{x(cpus):.1f},{y(RATE[far, name, cpus] / RATE[far, name, 1]):.1f}' for cpus in xs)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
    for row, (colour, (_, name, _)) in enumerate(zip(COLOURS, [case for case in CASES if case[0] == part])):
        out.append(f'<text x="{base + left}" y="{top + height + 40 + 18 * row}" fill="{colour}">{name}</text>')
out.append(f'<text x="{left}" y="{height + 175}">dashed: lines from other caches and sockets cost about twice as much</text></svg>')
open('scaling.svg', 'w').write('\n'.join(out) + '\n')

#!/usr/bin/env python3
"""load.py CASE COUNTERS: what is recorded for the tests of the estimator, on CPUs 0 and 1, for three seconds, as root, of which the first is calm.

beside: four threads of ours that compute and sleep, beside two that are busy most of the time
quota:  the same four under half a CPU; what their group's files say goes into COUNTERS
taken:  the same four, two for each CPU, while a thread of high priority takes CPU 0 now and then, as a hypervisor does
"""
import ctypes, os, random, signal, sys, time

SECONDS, CALM = 3, 1
# What else runs on the machine gets a hundredth of a CPU beside it.
os.nice(-20)
CASE, COUNTERS = sys.argv[1:]
prctl = ctypes.CDLL(None).prctl
PR_SET_NAME, PR_SET_PDEATHSIG = 15, 1


def start(name, seed, loop, cpus=(0, 1), priority=0):
    pid = os.fork()
    if pid:
        return pid
    prctl(PR_SET_NAME, name.encode())
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, cpus)
    if priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    dice = random.Random(seed)
    begin = time.monotonic()
    while (now := time.monotonic()) < begin + SECONDS:
        loop(dice, now < begin + CALM)
    os._exit(0)


def compute(seconds):
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def ours(dice, is_calm):
    compute(dice.uniform(0.002, 0.04))
    time.sleep(dice.uniform(0.02, 0.12) if is_calm else dice.uniform(0.001, 0.03))


def other(dice, is_calm):
    compute(dice.uniform(0.01, 0.03) if is_calm else dice.uniform(0.1, 0.4))
    time.sleep(dice.uniform(0.05, 0.2))


def taker(dice, _):
    begin, length = time.monotonic(), dice.uniform(0.005, 0.05)
    while time.monotonic() - begin < length:
        pass
    time.sleep(dice.uniform(0.01, 0.1))


def group():
    """A group of half a CPU, whose files say what is used; version 1 or 2."""
    old, new = '/sys/fs/cgroup/cpu', '/sys/fs/cgroup'
    is_old = os.path.exists(f'{old}/cpu.cfs_quota_us')
    path = f'{old if is_old else new}/phantom-trace-{os.getpid()}'
    os.mkdir(path)
    write = lambda file, text: open(f'{path}/{file}', 'w').write(text)
    if is_old:
        write('cpu.cfs_quota_us', '50000')
    else:
        write('cpu.max', '50000 100000')
    return path, write


path = None
if CASE == 'quota':
    path, write = group()
pin = CASE == 'taken'
pids = [start('ours', n, ours, (n % 2,) if pin else (0, 1)) for n in range(4)]
if path:
    for pid in pids:
        write('cgroup.procs', str(pid))
if CASE == 'beside':
    pids += [start('other', 10 + n, other) for n in range(2)]
if CASE == 'taken':
    pids.append(start('taker', 20, taker, (0,), 10))
if path:
    # By when, and for how long the group had been held back until then.
    with open(COUNTERS, 'w') as file:
        file.write('at_ns,throttled_ns\n')
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            said = dict(line.split() for line in open(f'{path}/cpu.stat'))
            throttled = int(said['throttled_time']) if 'throttled_time' in said else int(said['throttled_usec']) * 1000
            file.write(f'{time.monotonic_ns()},{throttled}\n')
            time.sleep(0.02)
for pid in pids:
    os.waitpid(pid, 0)
if path:
    os.rmdir(path)

#!/usr/bin/env python3
"""Records what real programs and this kernel ask of an allocator of addresses.

    record.py vmalloc > vmalloc.trace          # as root; the kernel's tracepoints
    record.py process NAME -- CMD... > NAME.trace   # any user; needs strace

A trace is lines of words; numbers are decimal, units are pages of 4 KiB:

    # whatever explains it
    arena START END        a new, empty arena follows (one for each process)
    b START SIZE           there before the recording: allocated at START
    a SIZE ALIGN [LO HI]   allocated, within a zone if there is one; the n-th `b` or `a` of the arena is block n
    f N                    block n is freed
    l N                    block n is freed lazily
    c N OFFSET SIZE        a part of block n, as it was allocated, is freed
    g                      everything freed lazily may be used again
"""
import ctypes, os, re, socket, struct, subprocess, sys, tempfile, threading, time

PAGE = 4096
MOST = 12000  # events of an arena or of a trace


def main():
    if sys.argv[1:2] == ['vmalloc']:
        vmalloc()
    elif sys.argv[1:2] == ['process'] and '--' in sys.argv:
        process(sys.argv[2], sys.argv[sys.argv.index('--') + 1:])
    else:
        sys.exit(__doc__)


# ---- the kernel

TRACING = '/sys/kernel/tracing'


def vmalloc():
    instance = f'{TRACING}/instances/amdahl-{os.getpid()}'
    os.mkdir(instance)
    try:
        put(f'{instance}/buffer_size_kb', '16384')
        before = vmallocinfo()
        put(f'{instance}/events/vmalloc/enable', '1')
        boot_like_load()
        time.sleep(1)  # what is freed lazily is purged by a work queue
        put(f'{instance}/events/vmalloc/enable', '0')
        with open(f'{instance}/trace') as lines:
            write_vmalloc(before, lines)
    finally:
        os.rmdir(instance)


def put(path, text):
    with open(path, 'w') as file:
        file.write(text)


def vmallocinfo():
    """Areas as (start, end). Root sees addresses where kptr_restrict is 1, hashes where it is 0."""
    areas, setting = [], '/proc/sys/kernel/kptr_restrict'
    with open(setting) as file:
        was = file.read()
    try:
        put(setting, '1')
        with open('/proc/vmallocinfo') as lines:
            for line in lines:
                start, end = line.split()[0].split('-')
                areas.append((int(start, 16), int(end, 16)))
    finally:
        put(setting, was)
    return sorted(areas)


def boot_like_load():
    """Mounts, network namespaces, many processes and threads at once, BPF programs and maps."""
    for _ in range(150):
        subprocess.run(['unshare', '-n', '-m', '-i', 'true'], stderr=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        for at in range(60):
            script = f'mount -t tmpfs none {folder}; echo {at} > {folder}/x'
            subprocess.run(['unshare', '-m', 'sh', '-c', script], stderr=subprocess.DEVNULL)
    for _ in range(12):
        storm = [subprocess.Popen(['sleep', '0.3']) for _ in range(120)]
        for one in storm:
            one.wait()
    for _ in range(6):
        threads = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    bpf()


def bpf():
    libc = ctypes.CDLL(None, use_errno=True)
    held = []
    for at in range(1200):
        # BPF_MAP_CREATE: arrays of 4 KiB to 4 MiB.
        entries = 1 << (at * 7 % 11)
        attributes = struct.pack('IIIII', 2, 4, 4096, entries, 0) + bytes(100)
        fd = libc.syscall(321, 0, attributes, len(attributes))
        if fd >= 0:
            held.append(fd)
        # A classic filter becomes a program of the kernel.
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0) * (1 + at % 40))
        filter = struct.pack('HxxxxxxP', 1 + at % 40, ctypes.addressof(code))
        try:
            probe.setsockopt(socket.SOL_SOCKET, 26, filter)
        except OSError:
            pass
        held.append(probe.detach())
        if len(held) > 300:
            os.close(held.pop(at * 13 % len(held)))
            os.close(held.pop(at * 7 % len(held)))
    for fd in held:
        os.close(fd)


FIELD = re.compile(r'(\w+)[=:] ?(0x[0-9a-f]+|\d+)')


def write_vmalloc(before, lines):
    events = []
    for line in lines:
        if 'alloc_vmap_area:' in line:
            kind = 'alloc'
        elif 'free_vmap_area_noflush:' in line:
            kind = 'free'
        elif 'purge_vmap_area_lazy:' in line:
            kind = 'purge'
        else:
            continue
        fields = {name: int(text, 0) for name, text in FIELD.findall(line.split('vmap_area', 1)[1])}
        events.append((kind, fields))
    starts = [e['vstart'] for kind, e in events if kind == 'alloc'] + [a for a, _ in before]
    ends = [e['vend'] for kind, e in events if kind == 'alloc' and e['vend'] < 2**64 - PAGE]
    lo, hi = min(starts) // PAGE, max(ends + [b for _, b in before]) // PAGE
    print('# vmalloc tracepoints of Linux', os.uname().release, 'during', boot_like_load.__doc__)
    print('arena', lo, hi)
    live, count = {}, 0
    for start, end in before:
        print('b', start // PAGE, (end - start) // PAGE)
        live[start] = count
        count += 1
    for kind, e in events[:MOST]:
        if kind == 'purge':
            print('g')
        elif kind == 'free':
            block = live.pop(e['va_start'], None)
            if block is not None:
                print('l', block)
        elif not e.get('failed'):
            zone = f" {max(e['vstart'] // PAGE, lo)} {min(e['vend'] // PAGE, hi)}"
            print(f"a {e['size'] // PAGE} {max(e['align'] // PAGE, 1)}{zone}")
            live[e['va_start']] = count
            count += 1


# ---- processes

CLONES = ('clone', 'clone3', 'vfork', 'fork')
CALL = re.compile(r'^(\d+) +(\w+)\((.*)\) += (0x[0-9a-f]+|-?\d+)')


def process(name, command):
    with tempfile.NamedTemporaryFile('r') as log:
        calls = 'trace=mmap,munmap,mremap,execve,clone,clone3,vfork,fork'
        strace = ['strace', '-f', '-qq', '-o', log.name, '-e', calls, '--'] + command
        subprocess.run(strace, stdout=sys.stderr, check=False)
        spaces = parse(join_resumed(log))
    print(f'# mmap, munmap and mremap of {name}')
    left = MOST
    # The busiest ones.
    for space in sorted(spaces, key=lambda space: -len(space.lines)):
        if left <= 0:
            break
        # Addresses that the kernel chooses are of 47 bits.
        print('arena 16', (1 << 47) // PAGE)
        for line in space.lines[:left]:
            print(line)
        left -= len(space.lines)


def join_resumed(log):
    begun = {}
    for line in log:
        pid = line.split(' ', 1)[0]
        if line.rstrip().endswith('<unfinished ...>'):
            begun[pid] = line.split('<unfinished')[0].rstrip()
        elif 'resumed>' in line:
            rest = line.split('resumed>', 1)[1]
            yield begun.pop(pid, '') + rest
        else:
            yield line


class Space:
    def __init__(self):
        self.lines = []
        self.live = {}  # start of what is left of a block -> (end, block, start of the block)
        self.count = 0

    def map(self, start, size):
        self.unmap(start, size)
        self.lines.append(f'a {size // PAGE} 1')
        self.live[start] = (start + size, self.count, start)
        self.count += 1

    def covered(self, start, size):
        return any(a <= start and start + size <= end for a, (end, _, _) in self.live.items())

    def unmap(self, start, size):
        end = start + size
        for a in [a for a, (b, _, _) in self.live.items() if a < end and b > start]:
            b, block, origin = self.live.pop(a)
            lo, hi = max(a, start), min(b, end)
            if a < lo:
                self.live[a] = (lo, block, origin)
            if hi < b:
                self.live[hi] = (b, block, origin)
            self.lines.append(f'c {block} {(lo - origin) // PAGE} {(hi - lo) // PAGE}')


def parse(lines):
    calls = [found.groups() for found in map(CALL.match, lines) if found]
    # A thread may be seen before the call that made it returns.
    made_by = {result: pid for pid, call, arguments, result in calls
               if call in CLONES and 'CLONE_VM' in arguments and 'CLONE_VFORK' not in arguments}
    space_of, spaces = {}, []

    def fresh(pid):
        space_of[pid] = Space()
        spaces.append(space_of[pid])

    for pid, call, arguments, result in calls:
        if pid not in space_of:
            maker = pid
            while maker in made_by and maker not in space_of:
                maker = made_by[maker]
            if maker not in space_of:
                fresh(maker)
            space_of[pid] = space_of[maker]
        if result.startswith('-'):
            continue
        space, words = space_of[pid], [word.strip() for word in arguments.split(',')]
        whole = lambda text: -(-int(text, 0) // PAGE) * PAGE
        if call == 'execve':
            fresh(pid)
        elif call == 'mmap':
            start, size = int(result, 0), whole(words[1])
            # What is mapped over a part of a mapping takes no new addresses.
            if not ('MAP_FIXED' in arguments and space.covered(start, size)):
                space.map(start, size)
        elif call == 'munmap':
            space.unmap(int(words[0], 0), whole(words[1]))
        elif call == 'mremap':
            old, old_size, size = int(words[0], 0), whole(words[1]), whole(words[2])
            start = int(result, 0)
            if start == old and size < old_size:
                space.unmap(old + size, old_size - size)
            elif start != old or size > old_size:
                space.unmap(old, old_size)
                space.map(start, size)
    return spaces


main()

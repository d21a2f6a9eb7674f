"""Curves for the experiments, as SVG."""
import math

COLOURS = ['#1f6feb', '#d1242f', '#2da44e', '#bf8700', '#8250df']


def svg(path, title, xs, series, x_name, y_name, log_y):
    """A line for each (name, values) of `series`, one value for each of `xs`; None leaves a gap."""
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
    open(path, 'w').write('\n'.join(out + ['</svg>']) + '\n')

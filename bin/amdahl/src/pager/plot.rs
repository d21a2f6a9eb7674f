//! What `amdahl pager bench` measured, as curves over the number of threads.

use amdahl_pager::measure::{Cell, Findings, median};
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (960, 1260);
/// Of the curves, in turn; told apart without red against green.
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 111, 235),
    RGBColor(209, 100, 0),
    RGBColor(45, 150, 78),
    RGBColor(130, 80, 223),
    RGBColor(191, 35, 120),
    RGBColor(0, 140, 150),
    RGBColor(120, 120, 120),
    RGBColor(160, 120, 0),
    RGBColor(0, 60, 130),
    RGBColor(90, 50, 20),
];

/// Draws three charts: memory for a second, memory for a CPU-second, and the slowest hundredth of the random faults.
///
/// # Errors
/// That nothing was measured, in words.
pub fn svg(findings: &Findings, faulters: &[usize]) -> Result<String, String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| error.to_string())?;
        let charts: [(&str, Value); 3] = [
            ("Sequential touch: MB/s", |cell| median(&cell.mb_per_s)),
            ("Sequential touch: MB for a CPU-second", |cell| {
                median(&cell.mb_per_cpu_s)
            }),
            ("Random touch: 99th percentile of a fault, us", |cell| {
                median(&cell.p99_ns).map(|ns| ns / 1e3)
            }),
        ];
        let mut drawn = 0;
        for (area, (title, value)) in root.split_evenly((3, 1)).iter().zip(charts) {
            let curves = curves(findings, faulters, value);
            if !curves.is_empty() {
                chart(area, title, faulters, &curves).map_err(|error| error.to_string())?;
                drawn += 1;
            }
        }
        root.present().map_err(|error| error.to_string())?;
        if drawn == 0 {
            return Err("nothing was measured that could be drawn".to_owned());
        }
    }
    Ok(text)
}

type Value = fn(&Cell) -> Option<f64>;

/// The power of ten above or below.
fn decade(value: f64, round: fn(f64) -> f64) -> f64 {
    10f64.powf(round(value.log10()))
}

/// A mode's values by the place of their number of threads.
struct Curve {
    name: &'static str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

fn curves(findings: &Findings, faulters: &[usize], value: Value) -> Vec<Curve> {
    let mut curves: Vec<Curve> = vec![];
    for cell in &findings.cells {
        let (Some(at), Some(y)) = (
            faulters.iter().position(|&n| n == cell.faulters),
            value(cell).filter(|y| y.is_finite() && *y > 0.0),
        ) else {
            continue;
        };
        let name = cell.mode.name();
        let known = curves.iter().position(|curve| curve.name == name);
        let curve = known.unwrap_or_else(|| {
            curves.push(Curve {
                name,
                colour: COLOURS[curves.len() % COLOURS.len()],
                points: vec![],
            });
            curves.len() - 1
        });
        curves[curve].points.push((at as f64, y));
    }
    curves
}

fn chart(
    area: &DrawingArea<SVGBackend, Shift>,
    title: &str,
    faulters: &[usize],
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let lowest = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
    // A single power of ten is no range.
    let highest = all().map(|point| point.1).fold(lowest * 1.01, f64::max);
    let last = faulters.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(76)
        // The curves end where their names begin.
        .build_cartesian_2d(
            -0.1..last + 0.22 * last.max(1.0),
            (decade(lowest, f64::floor)..decade(highest, f64::ceil)).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_labels(faulters.len() * 2 + 2)
        .x_label_formatter(&|at| {
            let place = at.round();
            let is_label = (at - place).abs() < 1e-6 && place >= 0.0;
            is_label
                .then(|| faulters.get(place as usize))
                .flatten()
                .map_or(String::new(), ToString::to_string)
        })
        .disable_x_mesh()
        .max_light_lines(0)
        .y_labels(5)
        .x_desc("threads that touch memory")
        .y_label_formatter(&|y| format!("{}", (y * 100.0).round() / 100.0))
        .draw()?;
    for curve in curves {
        let style = curve.colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        chart.draw_series(
            curve
                .points
                .iter()
                .map(|&at| Circle::new(at, 3, curve.colour.filled())),
        )?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use amdahl_pager::measure::Mode;

    use super::*;

    fn cell(mode: Mode, faulters: usize, value: f64) -> Cell {
        Cell {
            mode,
            faulters,
            mb_per_s: vec![value],
            mb_per_cpu_s: vec![value / 2.0],
            p50_ns: vec![],
            p99_ns: vec![],
            skipped: None,
        }
    }

    #[test]
    fn what_was_measured_is_drawn_and_nothing_else() {
        let findings = Findings {
            cells: vec![
                cell(Mode::Plain, 1, 300.0),
                cell(Mode::Plain, 16, 310.0),
                cell(Mode::Inline, 1, 4000.0),
                cell(Mode::Inline, 16, f64::NAN),
                cell(Mode::HugeTlb, 16, 0.0),
            ],
            is_complete: true,
        };
        let text = svg(&findings, &[1, 16]).unwrap();
        assert!(
            text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
            "{text}"
        );
        for word in ["MB/s", "plain", "inline", "threads that touch memory"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        for word in ["hugetlb", "NaN", "percentile"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
        let curves = curves(&findings, &[1, 16], |cell| median(&cell.mb_per_s));
        let points: Vec<_> = curves
            .iter()
            .map(|curve| (curve.name, curve.points.clone()))
            .collect();
        assert_eq!(
            points,
            [
                ("plain", vec![(0.0, 300.0), (1.0, 310.0)]),
                ("inline", vec![(0.0, 4000.0)])
            ]
        );
    }

    #[test]
    fn one_number_of_threads_is_a_picture_too_and_nothing_is_none() {
        let findings = |cells| Findings {
            cells,
            is_complete: false,
        };
        assert!(svg(&findings(vec![cell(Mode::Plain, 4, 300.0)]), &[4]).is_ok());
        assert!(svg(&findings(vec![]), &[4]).is_err());
    }
}

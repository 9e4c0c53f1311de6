//! One clock from two: offset and drift that satisfy every "this came before that".
//!
//! With guest time `t`, the device's time of the same moment is `t + offset + drift * (t - origin)`. Each pair of events
//! whose order is certain bounds that line on one side at one `t`. What all pairs leave is a convex polygon of (offset,
//! drift); it is what the inputs show, no more and no less.

/// No two clocks of one host run further apart than this; a larger drift means another run.
pub const MAX_DRIFT: f64 = 500e-6;

/// One bound on `device - guest`, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Guest time at which it holds.
    pub guest: u64,
    /// The difference.
    pub difference: i64,
    /// The true one is at least this; otherwise at most.
    pub lower: bool,
    /// Which pair of events it comes from.
    pub batch: usize,
}

/// The line chosen, and how far any other that satisfies all bounds is from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Guest time at which `offset` holds.
    pub origin: u64,
    /// `device - guest` at `origin`, nanoseconds.
    pub offset: i64,
    /// Change of the offset per nanosecond of guest time.
    pub drift: f64,
    /// Smallest and largest drift possible.
    pub drift_range: (f64, f64),
    /// Largest error at any time between the first bound and the last, nanoseconds.
    pub uncertainty: u64,
}

impl Fit {
    /// Device time of a guest time; saturating.
    #[must_use]
    pub fn device(&self, guest: u64) -> u64 {
        let along = signed_difference(guest, self.origin);
        let moved = round(self.drift * to_f64(along));
        let time = i128::from(guest) + i128::from(self.offset) + i128::from(moved);
        u64::try_from(time.max(0)).unwrap_or(u64::MAX)
    }
}

/// Why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFit {
    /// Nothing bounds it from this side.
    Unbounded {
        /// No lower bound; otherwise no upper one.
        lower: bool,
    },
    /// Two bounds that no clock satisfies: the lower and the upper one.
    Contradiction(Bound, Bound),
}

/// Solves.
///
/// # Errors
/// See [`NoFit`].
pub fn solve(bounds: &[Bound]) -> Result<Fit, NoFit> {
    let (Some(first_lower), Some(first_upper)) = (
        bounds.iter().find(|bound| bound.lower),
        bounds.iter().find(|bound| !bound.lower),
    ) else {
        let lower = !bounds.iter().any(|bound| bound.lower);
        return Err(NoFit::Unbounded { lower });
    };
    let times = || bounds.iter().map(|bound| bound.guest);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let origin = first + (last - first) / 2;
    // Small numbers, so that doubles hold nanoseconds exactly.
    let base = first_upper.difference;
    let relative = |difference: i64| to_f64(difference.saturating_sub(base));
    let span = to_f64(signed_difference(last, first)).max(1.0);
    let width = relative(first_lower.difference).abs() + 4.0 * MAX_DRIFT * span + 1.0;
    let mut polygon = vec![
        [-width, -MAX_DRIFT],
        [width, -MAX_DRIFT],
        [width, MAX_DRIFT],
        [-width, MAX_DRIFT],
    ];
    let mut taken: Vec<Bound> = Vec::new();
    for bound in bounds {
        let slope = to_f64(signed_difference(bound.guest, origin));
        let limit = relative(bound.difference);
        let sign = if bound.lower { 1.0 } else { -1.0 };
        // Not negative where the bound is satisfied.
        let slack = |[offset, drift]: [f64; 2]| sign * (offset + slope * drift - limit);
        if polygon.iter().all(|corner| slack(*corner) >= 0.0) {
            continue;
        }
        polygon = clip(&polygon, slack);
        if polygon.is_empty() {
            return Err(contradiction(&taken, *bound));
        }
        taken.push(*bound);
    }
    Ok(choose(&polygon, origin, base, (first, last)))
}

/// The part of a convex polygon where `slack` is not negative.
fn clip(polygon: &[[f64; 2]], slack: impl Fn([f64; 2]) -> f64) -> Vec<[f64; 2]> {
    let mut kept = Vec::with_capacity(polygon.len() + 1);
    for (at, corner) in polygon.iter().enumerate() {
        let next = polygon[(at + 1) % polygon.len()];
        let (here, there) = (slack(*corner), slack(next));
        if here >= 0.0 {
            kept.push(*corner);
        }
        if (here > 0.0 && there < 0.0) || (here < 0.0 && there > 0.0) {
            let part = here / (here - there);
            kept.push([
                corner[0] + part * (next[0] - corner[0]),
                corner[1] + part * (next[1] - corner[1]),
            ]);
        }
    }
    kept
}

/// The bound before `last` that is furthest from agreeing with it.
fn contradiction(taken: &[Bound], last: Bound) -> NoFit {
    let worst = taken
        .iter()
        .filter(|bound| bound.lower != last.lower)
        .max_by_key(|bound| {
            let (lower, upper) = if last.lower {
                (&last, *bound)
            } else {
                (*bound, &last)
            };
            lower.difference.saturating_sub(upper.difference)
        })
        .copied()
        .unwrap_or(last);
    if last.lower {
        NoFit::Contradiction(last, worst)
    } else {
        NoFit::Contradiction(worst, last)
    }
}

/// No drift if the bounds allow that, for they do not show one; else the middle.
fn choose(polygon: &[[f64; 2]], origin: u64, base: i64, (first, last): (u64, u64)) -> Fit {
    let drifts = polygon.iter().map(|corner| corner[1]);
    let lowest = drifts.clone().fold(f64::INFINITY, f64::min);
    let highest = drifts.fold(f64::NEG_INFINITY, f64::max);
    let drift = if lowest <= 0.0 && highest >= 0.0 {
        0.0
    } else {
        f64::midpoint(lowest, highest)
    };
    let (low, high) = offsets_at(polygon, drift);
    let offset = f64::midpoint(low, high);
    // The distance is convex in time, so the ends have the largest.
    let uncertainty = [first, last]
        .into_iter()
        .flat_map(|at| {
            let slope = to_f64(signed_difference(at, origin));
            let chosen = offset + slope * drift;
            polygon
                .iter()
                .map(move |corner| (corner[0] + slope * corner[1] - chosen).abs())
        })
        .fold(0.0, f64::max);
    Fit {
        origin,
        offset: base.saturating_add(round(offset)),
        drift,
        drift_range: (lowest, highest),
        uncertainty: u64::try_from(round(uncertainty.ceil())).unwrap_or(u64::MAX),
    }
}

/// The offsets that the polygon has at a drift.
fn offsets_at(polygon: &[[f64; 2]], drift: f64) -> (f64, f64) {
    let mut range = (f64::INFINITY, f64::NEG_INFINITY);
    let mut take = |offset: f64| range = (range.0.min(offset), range.1.max(offset));
    for (at, [offset, here]) in polygon.iter().copied().enumerate() {
        let [other, there] = polygon[(at + 1) % polygon.len()];
        if (here - there).abs() < 1e-18 {
            if (here - drift).abs() < 1e-15 {
                take(offset);
                take(other);
            }
        } else if (here.min(there)..=here.max(there)).contains(&drift) {
            take(offset + (drift - here) / (there - here) * (other - offset));
        }
    }
    if range.0 > range.1 {
        // A polygon of one point.
        let offset = polygon.first().map_or(0.0, |corner| corner[0]);
        range = (offset, offset);
    }
    range
}

fn signed_difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(if a > b { i64::MAX } else { i64::MIN })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "differences within one trace: far below 2^53 ns, which is 104 days"
)]
const fn to_f64(n: i64) -> f64 {
    n as f64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates, as casts of floats do"
)]
fn round(n: f64) -> i64 {
    n.round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches of a guest whose clock is behind by `offset` and slow by `drift`: started, seen, marked, done.
    fn bounds(offset: i64, drift: f64, batches: u64, delays: [i64; 2]) -> Vec<Bound> {
        (0..batches)
            .flat_map(|n| {
                let guest = 1_000_000_000 + n * 10_000_000;
                let true_difference = |at: u64| offset + round(drift * to_f64(at.cast_signed()));
                let jitter = i64::try_from(n * 7919 % 1000).unwrap();
                let batch = usize::try_from(n).unwrap();
                let done = guest + 100_000;
                [
                    Bound {
                        guest,
                        difference: true_difference(guest) + delays[0] + jitter,
                        lower: false,
                        batch,
                    },
                    Bound {
                        guest: done,
                        difference: true_difference(done) - delays[1] - jitter,
                        lower: true,
                        batch,
                    },
                ]
            })
            .collect()
    }

    #[test]
    fn the_offset_is_found_within_the_stated_uncertainty() {
        for offset in [0, 5_000_000_000_123, -77_000_000_000] {
            let fit = solve(&bounds(offset, 0.0, 100, [20_000, 30_000])).unwrap();
            assert!(fit.drift.abs() < f64::EPSILON);
            assert!((fit.offset - offset).unsigned_abs() <= fit.uncertainty);
            // Half of what start and done leave open, and the drift that 1 s cannot exclude.
            assert!((25_000..80_000).contains(&fit.uncertainty), "{fit:?}");
            let at = 1_400_000_000;
            let device = i128::from(fit.device(at)) - i128::from(at) - i128::from(offset);
            assert!(offset < 0 || device.unsigned_abs() <= u128::from(fit.uncertainty));
        }
    }

    #[test]
    fn a_drift_is_found_when_no_constant_offset_will_do() {
        let drift = 40e-6;
        let fit = solve(&bounds(1_000, drift, 1000, [10_000, 10_000])).unwrap();
        assert!((fit.drift - drift).abs() < 5e-6, "{fit:?}");
        assert!(fit.drift_range.0 <= drift && drift <= fit.drift_range.1);
        for at in [1_000_000_000_u64, 6_000_000_000, 11_000_000_000] {
            let truth = to_f64(at.cast_signed()) * (1.0 + drift) + 1_000.0;
            let error = (to_f64(fit.device(at).cast_signed()) - truth).abs();
            assert!(
                error <= to_f64(fit.uncertainty.cast_signed()) + 1.0,
                "{at}: {error} {fit:?}"
            );
        }
    }

    #[test]
    fn contradictions_are_named() {
        let mut all = bounds(0, 0.0, 10, [20_000, 20_000]);
        // The driver saw marker 7 two milliseconds before the device wrote it.
        all[15].difference += 2_000_000;
        let Err(NoFit::Contradiction(lower, upper)) = solve(&all) else {
            panic!("a fit");
        };
        assert_eq!(lower.batch, 7);
        assert!(!upper.lower);
        assert!(matches!(solve(&[]), Err(NoFit::Unbounded { .. })));
        let uppers: Vec<_> = all.into_iter().filter(|bound| !bound.lower).collect();
        assert_eq!(solve(&uppers), Err(NoFit::Unbounded { lower: true }));
    }
}
